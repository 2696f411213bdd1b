//! The timing of an operation between ranks, for our program and for all programs compared with it.
//!
//! A clock is read around a *batch* of consecutive operations, because one operation on 4 KB is
//! shorter than the clock's resolution. All ranks meet in a barrier, read their clocks, run the
//! batch, and read their clocks again. The slowest rank's time is the time of the batch. The number
//! of operations in a batch is found once per size, by doubling until the best of three batches
//! takes [`BATCH`]. A sample is the median of as many batches as fill its time.

use std::thread;
use std::time::{Duration, Instant};

use crate::talk::{Event, Request, next_request, say};

/// The minimum time of a batch in seconds.
const BATCH: f64 = 2e-3;

/// The minimum and maximum number of batches of a sample.
const BATCHES: (usize, usize) = (3, 500);

/// A world of ranks with an operation to measure.
pub(crate) trait Ranks {
    /// The message after the warm-up.
    fn ready(&self) -> Event;
    /// Whether this rank speaks for all ranks.
    fn is_root(&self) -> bool;
    /// The request to the root, on every rank. `None` at the end.
    fn share(&mut self, request: Option<Request>) -> anyhow::Result<Option<Request>>;
    /// Allocates `elements` numbers, reduces known values, and returns whether every rank's result
    /// was right. It leaves zeros, whose repeated sums stay finite.
    fn prepare(&mut self, elements: usize) -> anyhow::Result<bool>;
    /// Reduces the numbers once.
    fn reduce(&mut self) -> anyhow::Result<()>;
    /// How much later than the others the root begins a batch.
    fn late(&self) -> Duration {
        Duration::ZERO
    }
    fn barrier(&mut self) -> anyhow::Result<()>;
    /// The largest of all ranks' values.
    fn max(&mut self, value: f64) -> anyhow::Result<f64>;
}

/// Answers every request, and prints the last line.
pub(crate) fn serve(ranks: &mut impl Ranks) -> anyhow::Result<()> {
    let is_root = ranks.is_root();
    if is_root {
        say(&ranks.ready())?;
    }
    let mut prepared = None;
    loop {
        let asked = if is_root { next_request()? } else { None };
        let Some(request) = ranks.share(asked)? else { break };
        let (correct, batch) = match prepared {
            Some((elements, correct, batch)) if elements == request.elements => (correct, batch),
            _ => (ranks.prepare(request.elements)?, Batch::find(ranks)?),
        };
        prepared = Some((request.elements, correct, batch));
        let (seconds, batches) = batch.sample(ranks, request.seconds)?;
        if is_root {
            let operations = batch.operations;
            say(&Event::Sample { seconds, batches, operations, correct })?;
        }
    }
    if is_root {
        say(&Event::Done {})?;
    }
    Ok(())
}

/// A number of operations that is large enough to be timed.
#[derive(Clone, Copy, Debug)]
struct Batch {
    operations: usize,
    seconds: f64,
}

impl Batch {
    fn find(ranks: &mut impl Ranks) -> anyhow::Result<Self> {
        let mut operations = 1;
        loop {
            // If the system delays a rank once, a single batch seems to be long enough.
            let mut seconds = f64::INFINITY;
            for _ in 0..3 {
                seconds = seconds.min(time(ranks, operations)?);
            }
            if seconds >= BATCH {
                return Ok(Self { operations, seconds });
            }
            operations *= 2;
        }
    }

    /// The seconds of an operation, and the number of batches of which this is the median.
    fn sample(self, ranks: &mut impl Ranks, seconds: f64) -> anyhow::Result<(f64, usize)> {
        // Every rank knows the same times, so all ranks run the same number of batches.
        let batches = ((seconds / self.seconds) as usize).clamp(BATCHES.0, BATCHES.1);
        let mut times = Vec::with_capacity(batches);
        for _ in 0..batches {
            times.push(time(ranks, self.operations)? / self.operations as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok((times[batches / 2], batches))
    }
}

/// The slowest rank's seconds for `operations` operations, from when the root begins them.
fn time(ranks: &mut impl Ranks, operations: usize) -> anyhow::Result<f64> {
    ranks.barrier()?;
    let (start, late) = (Instant::now(), ranks.late());
    if ranks.is_root() {
        thread::sleep(late);
    }
    for _ in 0..operations {
        ranks.reduce()?;
    }
    let took = start.elapsed().saturating_sub(late).as_secs_f64();
    ranks.max(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A world of one rank with a slow operation.
    struct Slow(Duration);

    impl Ranks for Slow {
        fn ready(&self) -> Event {
            Event::Ready { backend: "slow", ranks: 1 }
        }
        fn is_root(&self) -> bool {
            true
        }
        fn share(&mut self, request: Option<Request>) -> anyhow::Result<Option<Request>> {
            Ok(request)
        }
        fn prepare(&mut self, _: usize) -> anyhow::Result<bool> {
            Ok(true)
        }
        fn reduce(&mut self) -> anyhow::Result<()> {
            thread::sleep(self.0);
            Ok(())
        }
        fn barrier(&mut self) -> anyhow::Result<()> {
            Ok(())
        }
        fn max(&mut self, value: f64) -> anyhow::Result<f64> {
            Ok(value)
        }
    }

    #[test]
    fn short_operations_are_timed_many_at_a_time() -> anyhow::Result<()> {
        let mut ranks = Slow(Duration::from_micros(100));
        let batch = Batch::find(&mut ranks)?;
        let (seconds, batches) = batch.sample(&mut ranks, 0.0)?;
        assert!(seconds >= 100e-6 && batch.operations > 1 && batches == BATCHES.0);
        assert_eq!(Batch::find(&mut Slow(Duration::from_millis(3)))?.operations, 1);
        Ok(())
    }
}
