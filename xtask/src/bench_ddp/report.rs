//! The summary of the outcomes: medians, and ratios within a round.

use serde::Serialize;

use super::contender::Contender;
use super::{Outcome, Plan, Sample};
use crate::figures::{Spread, median, ratio_by_round};
use crate::host::Host;
use crate::live::Failure;

/// The content of ddp.json.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) machine: &'a Host,
    pub(super) pytorch: Option<String>,
    pub(super) plan: &'a Plan,
    /// The DDP with the highest median.
    pub(super) best_ddp: Option<Contender>,
    pub(super) rows: Vec<Row<'a>>,
}

/// One contender, over the rounds that it reached.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    pub(super) contender: Contender,
    pub(super) workers: usize,
    /// Images or sequences of all workers. `None` if there is no sample.
    pub(super) examples_per_second: Option<Spread>,
    pub(super) step_seconds: Option<f64>,
    /// The median over the rounds of the ratio of its speed to that of one worker of the same
    /// library.
    pub(super) times_one_worker: Option<f64>,
    /// The median ratio to the best DDP.
    pub(super) times_best_ddp: Option<f64>,
    pub(super) peak_rss_mb: Option<f64>,
    pub(super) warm_up_losses: &'a [f64],
    pub(super) failure: Option<&'a Failure>,
    pub(super) samples: &'a [Sample],
}

impl<'a> Report<'a> {
    pub(super) fn new(machine: &'a Host, plan: &'a Plan, outcomes: &'a [Outcome]) -> Self {
        let find = |who: Contender| outcomes.iter().find(|outcome| outcome.contender == who);
        let ddps = outcomes.iter().filter(|o| matches!(o.contender, Contender::Ddp(..)));
        let known = ddps.filter_map(|outcome| Some((outcome, median_speed(plan, outcome)?)));
        let best = known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(outcome, _)| outcome);
        let row = |outcome: &'a Outcome| {
            let ratio = |other: Option<&Outcome>| {
                ratio_by_round(&speeds(plan, outcome), &speeds(plan, other?))
            };
            let workers = outcome.contender.workers(plan.workers);
            let own = speeds(plan, outcome).into_iter().map(|(_, speed)| speed).collect();
            let steps =
                outcome.samples.iter().map(|s| s.measured.seconds / s.measured.steps as f64);
            Row {
                contender: outcome.contender,
                workers,
                examples_per_second: Spread::of(own),
                step_seconds: median(steps.collect()),
                times_one_worker: ratio(find(outcome.contender.alone())),
                times_best_ddp: ratio(best),
                peak_rss_mb: outcome.peak_rss_mb,
                warm_up_losses: outcome.ready.as_ref().map_or(&[], |ready| &ready.warm_up_losses),
                failure: outcome.failure.as_ref(),
                samples: &outcome.samples,
            }
        };
        let mut readies = outcomes.iter().filter_map(|outcome| outcome.ready.as_ref());
        Self {
            machine,
            pytorch: readies.find_map(|ready| ready.version.clone()),
            plan,
            best_ddp: best.map(|outcome| outcome.contender),
            rows: outcomes.iter().map(row).collect(),
        }
    }

    /// Whether all contenders with the same number of workers had the same loss in the same step.
    pub(super) fn losses_agree(&self) -> bool {
        let check = self.plan.network.loss_check();
        let loss = |row: &Row<'_>| row.warm_up_losses.get(check.step - 1).copied();
        self.rows.iter().all(|row| {
            let peers = self.rows.iter().filter(|other| other.workers == row.workers);
            let own = loss(row);
            // A NaN loss agrees with no other loss.
            peers
                .filter_map(loss)
                .all(|peer| own.is_none_or(|own| (own - peer).abs() <= check.tolerance))
        })
    }
}

/// The examples per second of all workers, in each round that the contender reached.
fn speeds(plan: &Plan, outcome: &Outcome) -> Vec<(usize, f64)> {
    let examples = (plan.batch_size * outcome.contender.workers(plan.workers)) as f64;
    let speed = |sample: &Sample| {
        let measured = &sample.measured;
        (sample.round, measured.steps as f64 * examples / measured.seconds)
    };
    outcome.samples.iter().map(speed).collect()
}

fn median_speed(plan: &Plan, outcome: &Outcome) -> Option<f64> {
    median(speeds(plan, outcome).into_iter().map(|(_, speed)| speed).collect())
}

#[cfg(test)]
mod tests {
    use super::super::contender::{Buckets, Layout};
    use super::*;
    use crate::bench_ddp::fixture::{outcome, plan};

    const COPIED: Contender = Contender::Ddp(Layout::Default, Buckets::Copied);
    const VIEWS: Contender = Contender::Ddp(Layout::Default, Buckets::Views);

    #[test]
    fn workers_are_compared_with_one_and_with_the_best_ddp_of_the_same_round() {
        let (machine, plan) = (Host::look(), plan());
        // Steps per second. In round 1 the machine has half its speed.
        let outcomes = [
            outcome(Contender::OursAlone, &[100.0, 50.0, 100.0], 2.0),
            outcome(Contender::OursLocal, &[95.0, 47.5, 95.0], 2.1),
            outcome(COPIED, &[30.0, 15.0, 30.0], 2.1),
            outcome(VIEWS, &[38.0, 19.0, 38.0], 2.1),
        ];
        let report = Report::new(&machine, &plan, &outcomes);
        assert_eq!(report.best_ddp, Some(VIEWS));
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(close(report.rows[1].times_one_worker, 1.9), "{:?}", report.rows[1]);
        assert!(close(report.rows[1].times_best_ddp, 2.5));
        assert_eq!(report.rows[3].times_one_worker, None, "there was no PyTorch alone");
        assert_eq!(report.rows[1].examples_per_second.unwrap().median, 95.0 * 128.0);
        assert!(report.losses_agree());
    }

    #[test]
    fn losses_are_compared_among_equal_numbers_of_workers() {
        let (machine, plan) = (Host::look(), plan());
        let outcomes = [outcome(Contender::OursLocal, &[1.0], 2.1), outcome(COPIED, &[1.0], 2.2)];
        assert!(!Report::new(&machine, &plan, &outcomes).losses_agree());
    }
}
