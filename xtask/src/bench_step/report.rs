//! The summary of the outcomes: medians, and ratios within a round.

use serde::Serialize;

use super::contender::Contender;
use super::plan::{Config, Plan};
use super::trial::{Outcome, Sample};
use crate::figures::{Spread, median, ratio_by_round};
use crate::host::Host;
use crate::live::Failure;

/// The content of bench_step.json.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) machine: &'a Host,
    pub(super) pytorch: Option<String>,
    pub(super) plan: &'a Plan,
    pub(super) rows: Vec<Row<'a>>,
}

/// One contender in one configuration, over the rounds that it reached.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
    #[serde(flatten)]
    pub(super) config: Config,
    pub(super) contender: Contender,
    /// Images or sequences. `None` if there is no sample.
    pub(super) examples_per_second: Option<Spread>,
    pub(super) step_seconds: Option<f64>,
    /// The median over the rounds of the ratio of this contender's speed to candle's in the same
    /// round.
    pub(super) ratio_to_candle: Option<f64>,
    /// The median ratio to the PyTorch contender with the highest median.
    pub(super) ratio_to_best_pytorch: Option<f64>,
    pub(super) peak_rss_mb: Option<f64>,
    /// Processor time divided by time: the number of threads that really worked.
    pub(super) cores_used: Option<f64>,
    pub(super) warm_up_losses: &'a [f64],
    pub(super) failure: Option<&'a Failure>,
    pub(super) samples: &'a [Sample],
}

impl<'a> Report<'a> {
    pub(super) fn new(machine: &'a Host, plan: &'a Plan, outcomes: &'a [Outcome]) -> Self {
        let mut versions = outcomes.iter().filter_map(|outcome| outcome.ready.as_ref());
        Self {
            machine,
            pytorch: versions.find_map(|ready| ready.version.clone()),
            plan,
            rows: rows(outcomes),
        }
    }
}

impl Row<'_> {
    /// The loss by which contenders are compared.
    pub(super) fn compared_loss(&self) -> Option<f64> {
        self.warm_up_losses.get(self.config.network.loss_check().step - 1).copied()
    }

    /// Whether the contender used at most its threads. A small difference of the clocks is allowed.
    pub(super) fn is_bounded(&self) -> bool {
        self.cores_used.is_none_or(|cores| cores <= 1.05 * self.config.threads as f64)
    }
}

/// A row for every outcome, in the outcomes' order.
fn rows(outcomes: &[Outcome]) -> Vec<Row<'_>> {
    let peers = |config: Config| outcomes.iter().filter(move |other| other.config == config);
    let mut rows = Vec::new();
    for outcome in outcomes {
        let candle = peers(outcome.config).find(|other| other.contender == Contender::Candle);
        let best_pytorch = peers(outcome.config)
            .filter(|other| other.contender.is_pytorch())
            .max_by(|a, b| median_speed(a).total_cmp(&median_speed(b)));
        rows.push(row(outcome, candle, best_pytorch));
    }
    rows
}

fn row<'a>(
    outcome: &'a Outcome,
    candle: Option<&Outcome>,
    best_pytorch: Option<&Outcome>,
) -> Row<'a> {
    let samples = outcome.samples.iter().map(|sample| &sample.measured);
    let ratio = |other: Option<&Outcome>| other.and_then(|other| speed_ratio(outcome, other));
    Row {
        config: outcome.config,
        contender: outcome.contender,
        examples_per_second: Spread::of(speeds(outcome).map(|(_, speed)| speed).collect()),
        step_seconds: median(samples.clone().map(|s| s.seconds / s.steps as f64).collect()),
        ratio_to_candle: ratio(candle),
        ratio_to_best_pytorch: ratio(best_pytorch),
        peak_rss_mb: outcome.peak_rss_mb,
        cores_used: median(samples.map(|s| s.cpu_seconds / s.seconds).collect()),
        warm_up_losses: outcome.ready.as_ref().map_or(&[], |ready| &ready.warm_up_losses),
        failure: outcome.failure.as_ref(),
        samples: &outcome.samples,
    }
}

/// The examples per second of each round that the contender reached.
fn speeds(outcome: &Outcome) -> impl Iterator<Item = (usize, f64)> {
    let batch_size = outcome.config.batch_size as f64;
    outcome.samples.iter().map(move |sample| {
        let measured = &sample.measured;
        (sample.round, measured.steps as f64 * batch_size / measured.seconds)
    })
}

fn median_speed(outcome: &Outcome) -> f64 {
    median(speeds(outcome).map(|(_, speed)| speed).collect()).unwrap_or(0.0)
}

/// The median of the ratios within the rounds that both reached.
fn speed_ratio(ours: &Outcome, theirs: &Outcome) -> Option<f64> {
    ratio_by_round(&speeds(ours).collect::<Vec<_>>(), &speeds(theirs).collect::<Vec<_>>())
}

/// The contenders whose training agrees, as far as the losses show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    All,
    /// All but candle.
    ButCandle,
    None,
}

/// Whether the contenders of one configuration had the same loss in the same step.
pub(super) fn agreement(rows: &[&Row<'_>]) -> Agreement {
    let agree = |counts: fn(&Row<'_>) -> bool| {
        let rows = rows.iter().filter(|row| counts(row));
        let losses: Vec<(f64, f64)> = rows
            .filter_map(|row| {
                Some((row.compared_loss()?, row.config.network.loss_check().tolerance))
            })
            .collect();
        // A NaN loss agrees with no other loss.
        losses.iter().all(|(a, tolerance)| losses.iter().all(|(b, _)| (a - b).abs() <= *tolerance))
    };
    if agree(|_| true) {
        Agreement::All
    } else if agree(|row| row.contender != Contender::Candle) {
        Agreement::ButCandle
    } else {
        Agreement::None
    }
}

#[cfg(test)]
mod tests {
    use Contender::{Candle, Ours, PyTorch, PyTorchChannelsLast};

    use super::*;
    use crate::bench_step::fixture::{config, outcome};

    const ORDER: [Contender; 4] = [Ours, Candle, PyTorch, PyTorchChannelsLast];

    #[test]
    fn rows_compare_with_candle_and_the_best_pytorch_of_the_same_round() {
        // In round 1 the machine has half its speed.
        let outcomes: Vec<_> = ORDER
            .iter()
            .zip([600.0, 100.0, 200.0, 300.0])
            .map(|(&who, speed)| outcome(config(64, 1), who, &[speed, speed / 2.0, speed], 2.0))
            .collect();
        let rows = rows(&outcomes);
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(close(rows[0].ratio_to_candle, 6.0), "{:?}", rows[0]);
        assert!(close(rows[0].ratio_to_best_pytorch, 2.0), "{:?}", rows[0]);
        assert!(close(rows[1].ratio_to_candle, 1.0));
        assert!(close(rows[0].step_seconds, 64.0 / 600.0));
        let speed = rows[0].examples_per_second.unwrap();
        assert!((speed.min - 300.0).abs() < 1e-9 && (speed.max - 600.0).abs() < 1e-9);
    }

    #[test]
    fn configurations_are_compared_with_themselves_alone() {
        let outcomes = [
            outcome(config(64, 1), Ours, &[400.0], 2.0),
            outcome(config(64, 1), Candle, &[100.0], 2.0),
            outcome(config(64, 2), Ours, &[600.0], 2.0),
            outcome(config(64, 2), Candle, &[100.0], 2.0),
            outcome(config(256, 2), Ours, &[600.0], 2.0),
        ];
        let ratios: Vec<_> = rows(&outcomes).iter().map(|row| row.ratio_to_candle).collect();
        assert_eq!(ratios, [Some(4.0), Some(1.0), Some(6.0), Some(1.0), None]);
    }

    #[test]
    fn rounds_that_one_did_not_reach_do_not_count() {
        let mut late = outcome(config(64, 1), Ours, &[500.0, 300.0], 2.0);
        // This contender has no sample of round 0.
        late.samples[0].round = 1;
        late.samples[1].round = 2;
        let other = outcome(config(64, 1), PyTorch, &[1000.0, 100.0], 2.0);
        assert_eq!(rows(&[late, other])[0].ratio_to_best_pytorch, Some(5.0));
    }

    #[test]
    fn a_contender_without_samples_has_a_row_and_no_figures() {
        let outcomes = [
            outcome(config(64, 1), Ours, &[400.0], 2.0),
            outcome(config(64, 1), PyTorch, &[], 2.0),
        ];
        let rows = rows(&outcomes);
        assert_eq!(rows[0].ratio_to_best_pytorch, None);
        assert_eq!((rows[1].examples_per_second, rows[1].step_seconds), (None, None));
    }

    #[test]
    fn only_candle_may_have_another_loss() {
        let agreement_of = |losses: [f64; 3]| {
            let outcomes: Vec<_> = ORDER
                .iter()
                .zip(losses)
                .map(|(&who, loss)| outcome(config(64, 1), who, &[1.0], loss))
                .collect();
            agreement(&rows(&outcomes).iter().collect::<Vec<_>>())
        };
        assert_eq!(agreement_of([2.0, 2.00001, 2.00005]), Agreement::All);
        assert_eq!(agreement_of([2.0, 2.1, 2.00005]), Agreement::ButCandle);
        assert_eq!(agreement_of([2.0, 2.1, 2.1]), Agreement::None);
        assert_eq!(agreement_of([f64::NAN, 2.0, 2.0]), Agreement::None);
    }
}
