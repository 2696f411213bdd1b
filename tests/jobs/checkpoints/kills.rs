//! A run is killed again and again, at random moments and in every phase. What it ends with is what a run ends
//! with that nobody killed.
//!
//! `CANDELABRUM_TESTS=all` kills more often, and `CANDELABRUM_KILLS=1000 cargo test --release --test jobs killed --
//! --nocapture` a thousand times.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use candelabrum_testkit::{Running, runs_all, split_mix};
use rustix::process::{Signal, kill_process};

use super::job::{Outcome, Place, kill_rank};
use super::phases::{self, NAMES, SYNC};

/// The kills of a usual test over all numbers of ranks, and those of a long one.
const KILLS: [usize; 2] = [12, 200];

const OPTIONS: &str = "--epochs 3 --batch-size 8 --optimizer adamw --threads 1 \
                       --checkpoint-every 3 --evaluate-every 5";

/// The number of kills by the number of ranks and the phase.
type Counts = BTreeMap<(usize, String), usize>;

#[test]
fn a_killed_run_ends_as_if_nobody_had_killed_it() {
    let wanted = std::env::var("CANDELABRUM_KILLS").ok().and_then(|text| text.parse().ok());
    let wanted: usize = wanted.unwrap_or(KILLS[usize::from(runs_all())]);
    let mut counts = Counts::new();
    let mut random = Random(1);
    let (mut starts, mut runs) = (0, 0);
    for workers in 1..=3 {
        let options = format!("{OPTIONS} --workers {workers}");
        let begin = Instant::now();
        let expected = Place::new(&options).succeed("");
        let length = begin.elapsed();
        let before: usize = counts.values().sum();
        while counts.values().sum::<usize>() - before < wanted.div_ceil(3) {
            starts += one_run(&options, workers, length, &expected, &mut random, &mut counts);
            runs += 1;
        }
    }
    let kills: usize = counts.values().sum();
    println!("{kills} kills in {starts} starts of {runs} runs, each ended with the expected bits");
    for ((workers, phase), count) in &counts {
        println!("{workers} rank(s), {phase}: {count}");
    }
}

/// Starts a run until it ends. Returns the number of starts.
fn one_run(
    options: &str,
    workers: usize,
    length: Duration,
    expected: &Outcome,
    random: &mut Random,
    counts: &mut Counts,
) -> usize {
    let place = Place::new(options);
    for start in 1.. {
        for rank in 0..workers {
            drop(fs::remove_file(place.notes().join(format!("pid-{rank}"))));
            drop(fs::remove_file(place.notes().join(format!("phase-{rank}"))));
        }
        let victim = random.below(workers);
        // Half of the deaths are at a random moment, half are in a random phase.
        let in_phase = random.below(2) == 0;
        let ended = if in_phase {
            let all: Vec<&str> = NAMES.into_iter().chain([SYNC]).collect();
            let phase = all[random.below(all.len())];
            let count = 1 + random.below(6);
            place.start(&format!("--die {victim} {phase} {count}")).finish()
        } else {
            let running = place.start("");
            std::thread::sleep(length.mul_f64(1.2 * random.unit()));
            let everybody = random.below(2) == 0;
            kill(&running, &place, if everybody { None } else { Some(victim) }, workers);
            running.finish()
        };
        let text = &ended.err;
        assert!(!text.contains("skipped"), "a checkpoint that has its name is whole: {text}");
        assert!(!text.contains("panicked"), "{text}");
        if ended.succeeded() {
            assert_eq!(place.outcome(), *expected, "{workers} ranks, start {start}");
            return start;
        }
        // A signal, or the launcher's message that a rank was killed.
        assert!(ended.code.is_none() || text.contains("SIGKILL"), "{text}");
        let phase = phases::last(&place.notes(), victim);
        *counts.entry((workers, phase)).or_default() += 1;
    }
    unreachable!("the loop returns")
}

/// Kills one rank, or the launcher and all ranks.
fn kill(running: &Running, place: &Place, victim: Option<usize>, workers: usize) {
    match victim {
        Some(rank) if workers > 1 => {
            kill_rank(&place.notes(), rank);
        }
        _ => {
            kill_process(running.pid(), Signal::KILL).ok();
            for rank in 0..workers {
                kill_rank(&place.notes(), rank);
            }
        }
    }
}

/// Reproducible random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = split_mix(self.0);
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
