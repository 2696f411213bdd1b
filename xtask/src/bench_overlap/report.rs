//! The summary of the samples: medians, and shares within a round.

use serde::Serialize;

use super::{Measured, Plan, Ready, Results, Sample, Way};
use crate::figures::{Spread, median};
use crate::host::Host;
use crate::split::Split;

/// The content of overlap.json.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) machine: &'a Host,
    pub(super) plan: &'a Plan,
    pub(super) ranks: Option<&'a Ready>,
    pub(super) wire_megabits_per_second: Option<f64>,
    /// Steps without overlap and with it.
    pub(super) off: Option<Step>,
    pub(super) on: Option<Step>,
    /// An exchange of all gradients without other work.
    pub(super) exchange_seconds: Option<Spread>,
    /// The most that overlap can hide of a step: the lesser of exchange and backward.
    pub(super) hideable_seconds: Option<f64>,
    /// The saved time of the step divided by that, as the median of the rounds.
    pub(super) hidden_share: Option<Spread>,
    pub(super) samples: &'a [Sample],
}

/// The summary of the steps of one kind, in seconds.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) total: Spread,
    pub(super) parts: Split<f64>,
    /// The time in which collectives were running.
    pub(super) communication: f64,
}

impl<'a> Report<'a> {
    pub(super) fn new(machine: &'a Host, plan: &'a Plan, results: &'a Results) -> Self {
        let samples = &results.samples;
        let of = |way: Way| samples.iter().filter(move |sample| sample.way == way);
        let rounds = |at: &dyn Fn(&Round<'_>) -> Option<f64>| -> Vec<f64> {
            (0..plan.rounds).filter_map(|round| at(&Round::of(samples, round)?)).collect()
        };
        Self {
            machine,
            plan,
            ranks: results.ready.as_ref(),
            wire_megabits_per_second: results.rate,
            off: Step::of(&of(Way::Off).collect::<Vec<_>>()),
            on: Step::of(&of(Way::On).collect::<Vec<_>>()),
            exchange_seconds: Spread::of(of(Way::Exchange).map(|s| s.measured.seconds).collect()),
            hideable_seconds: median(rounds(&|round| round.hideable())),
            hidden_share: Spread::of(rounds(&|round| round.hidden())),
            samples,
        }
    }
}

/// The three samples of a round.
struct Round<'a> {
    off: &'a Measured,
    on: &'a Measured,
    exchange: &'a Measured,
}

impl<'a> Round<'a> {
    fn of(samples: &'a [Sample], round: usize) -> Option<Self> {
        let find = |way| samples.iter().find(|s| s.round == round && s.way == way);
        let measured = |way| Some(&find(way)?.measured);
        Some(Self {
            off: measured(Way::Off)?,
            on: measured(Way::On)?,
            exchange: measured(Way::Exchange)?,
        })
    }

    fn hideable(&self) -> Option<f64> {
        Some(self.off.step_seconds?.backward.min(self.exchange.seconds))
    }

    fn hidden(&self) -> Option<f64> {
        Some((self.off.seconds - self.on.seconds) / self.hideable()?)
    }
}

impl Step {
    fn of(samples: &[&Sample]) -> Option<Self> {
        let splits: Vec<Split<f64>> =
            samples.iter().filter_map(|s| s.measured.step_seconds).collect();
        let parts =
            Split::try_from_parts(|part| median(splits.iter().map(|s| *s.get(part)).collect()))?;
        let busy = samples.iter().filter_map(|sample| sample.measured.communication_seconds);
        Some(Self {
            total: Spread::of(samples.iter().map(|sample| sample.measured.seconds).collect())?,
            parts,
            communication: median(busy.collect())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::bench_overlap::fixture::{plan, results};

    use super::*;

    #[test]
    fn what_is_hidden_is_measured_by_what_can_be() {
        let (machine, plan) = (Host::look(), plan());
        // Backward takes 0.3 and the exchange alone 0.4, so 0.3 can be hidden. The step saves 0.27.
        let results = results(&[(1.0, 0.73), (2.0, 1.73)], 0.3, 0.4);
        let report = Report::new(&machine, &plan, &results);
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        assert!(close(report.hideable_seconds, 0.3));
        assert!(close(report.hidden_share.map(|share| share.median), 0.9), "{report:?}");
    }

    #[test]
    fn a_round_that_is_not_whole_does_not_count() {
        let (machine, plan) = (Host::look(), plan());
        let mut results = results(&[(1.0, 0.8)], 0.3, 0.2);
        results.samples.retain(|sample| sample.way != Way::On);
        let report = Report::new(&machine, &plan, &results);
        assert!(report.hidden_share.is_none() && report.on.is_none());
        assert!(report.off.is_some());
    }
}
