//! The memory's speed: as many threads as ranks, each changing its own numbers in place.
//!
//! An all-reduce cannot be faster: with `N` ranks of `n` bytes each, all `N·n` bytes must be read
//! and `N·n` bytes of results written in their place. The threads use the same numbers in every
//! batch, as an all-reduce does, so both benefit equally from the caches.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::talk::{Event, next_request, say};

/// Answers every request, and prints the last line.
pub(crate) fn serve(threads: usize) -> anyhow::Result<()> {
    ensure!(threads > 0, "--memory starts at 1");
    say(&Event::Ready { backend: "memory", ranks: threads })?;
    let mut arrays = Vec::new();
    while let Some(request) = next_request()? {
        if arrays.first().is_none_or(|array: &Vec<f32>| array.len() != request.elements) {
            arrays = vec![vec![1.0_f32; request.elements]; threads];
        }
        let took = median(time(&mut arrays, 3)?);
        let batches = ((request.seconds / took) as usize).clamp(3, 500);
        let seconds = median(time(&mut arrays, batches)?);
        let correct = arrays.iter().flatten().all(|value| value.abs() == 1.0);
        say(&Event::Sample { seconds, batches, operations: 1, correct })?;
    }
    say(&Event::Done {})
}

/// For each batch, the seconds until the last thread has changed its numbers.
fn time(arrays: &mut [Vec<f32>], batches: usize) -> anyhow::Result<Vec<f64>> {
    let barrier = Barrier::new(arrays.len());
    let work = |array: &mut [f32]| -> Vec<f64> {
        let batch = |_| {
            barrier.wait();
            let start = Instant::now();
            array.iter_mut().for_each(|value| *value = -*value);
            start.elapsed().as_secs_f64()
        };
        (0..batches).map(batch).collect()
    };
    let times: Option<Vec<Vec<f64>>> = thread::scope(|scope| {
        let threads: Vec<_> = arrays.iter_mut().map(|array| scope.spawn(|| work(array))).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    });
    let times = times.context("a thread panicked")?;
    Ok((0..batches).map(|i| times.iter().map(|own| own[i]).fold(0.0, f64::max)).collect())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_changes_its_own_numbers() -> anyhow::Result<()> {
        let mut arrays = vec![vec![1.0; 10], vec![2.0; 10]];
        let times = time(&mut arrays, 3)?;
        assert!(times.len() == 3 && times.iter().all(|&time| time > 0.0));
        assert_eq!(arrays, [vec![-1.0; 10], vec![-2.0; 10]]);
        Ok(())
    }
}
