//! Samples for tests: one model on a machine of two cores, with figures that are easy to check.

use super::plan::{Backend, Plan, Point};
use super::report::{Report, Row, rows};
use super::sample::{Measured, Sample, Settings};
use crate::host::Host;
use crate::split::{Part, Split};

pub(super) struct Fixture {
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    machine: Host,
    samples: Vec<Sample>,
}

/// A plan of one model, without samples.
pub(super) fn of(strategies: &[&str], workers: &[usize]) -> Fixture {
    let strategies = strategies.iter().map(|&name| name.to_owned()).collect();
    let settings = Settings {
        batch_size: 64,
        threads_per_rank: 1,
        rounds: 3,
        steps: None,
        spars: 0.05,
        threshold_spars: 0.001,
    };
    let (models, workers) = (vec!["cnn".to_owned()], workers.to_vec());
    let plan = Plan { models, backends: vec![Backend::Local], strategies, workers };
    let word = || "unknown".to_owned();
    let machine = Host {
        cpu: "A CPU <of tests>".into(),
        cores: 2,
        system: word(),
        date: word(),
        commit: "c0ffee".into(),
        rustc: word(),
        candle: word(),
    };
    Fixture { settings, plan, machine, samples: Vec::new() }
}

impl Fixture {
    /// A sample of this speed, whose step takes 1 ms in each of its parts.
    pub(super) fn add(&mut self, round: usize, strategy: &str, workers: usize, speed: f64) {
        let point = Point {
            model: "cnn".into(),
            backend: Backend::Local,
            strategy: strategy.into(),
            workers,
        };
        let time = |part| Some(if part == Part::Total { 0.007 } else { 0.001 });
        let step_seconds = Split::try_from_parts(time).unwrap();
        let measured = Measured {
            world_size: workers,
            backend: "local".into(),
            steps: 10,
            warm_up_steps: 1,
            spars: None,
            images_per_second: speed,
            step_seconds,
            communication_seconds: 0.001,
            bytes_sent_per_step: 1000.0,
            bytes_received_per_step: 1000.0,
            residual_norm: None,
            final_loss: 1.0,
        };
        self.samples.push(Sample { round, point, measured, others_cpu_share: None });
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        rows(&self.plan, &self.samples, self.machine.cores)
    }

    pub(super) fn report(&self) -> Report<'_> {
        Report {
            machine: &self.machine,
            settings: &self.settings,
            known_strategies: &self.plan.strategies,
            plan: &self.plan,
            points: self.rows(),
            samples: &self.samples,
        }
    }
}
