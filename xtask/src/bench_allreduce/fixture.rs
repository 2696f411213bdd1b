//! Artificial samples of two ranks for tests.

use super::contender::Contender;
use super::plan::Plan;
use super::report::Report;
use super::{Dropout, Measured, Results, Sample};
use crate::host::Host;
use crate::live::Failure;

pub(super) struct Fixture {
    machine: Host,
    pub(super) plan: Plan,
    results: Results,
}

impl Fixture {
    pub(super) fn new(sizes: &[&str]) -> Self {
        let sizes = sizes.iter().map(|size| size.parse().unwrap()).collect();
        let contenders =
            [Contender::Local, Contender::Mpi, Contender::MpiC, Contender::Gloo, Contender::Memory];
        let plan = Plan {
            ranks: vec![2],
            sizes,
            contenders: contenders.to_vec(),
            rounds: 3,
            seconds: 0.1,
            cache: 32_000_000,
        };
        Self { machine: Host::look(), plan, results: Results::default() }
    }

    /// A sample at the first size.
    pub(super) fn add(&mut self, round: usize, contender: Contender, seconds: f64) {
        self.add_at(0, round, contender, seconds);
    }

    pub(super) fn add_at(&mut self, size: usize, round: usize, contender: Contender, seconds: f64) {
        self.results.samples.push(Sample {
            round,
            ranks: 2,
            size: self.plan.sizes[size],
            contender,
            measured: Measured { seconds, batches: 3, operations: 1, correct: true },
            others_cpu_share: Some(0.01),
        });
    }

    pub(super) fn drop_out(&mut self, contender: Contender, reason: &str) {
        let failure = Failure { reason: reason.into(), stderr: Vec::new() };
        self.results.dropouts.push(Dropout { ranks: 2, contender, failure });
    }

    pub(super) fn report(&self) -> Report<'_> {
        Report::new(&self.machine, &self.plan, &self.results)
    }
}
