//! The summary of the samples: medians, and ratios within a round.

use std::collections::BTreeMap;

use serde::Serialize;

use super::contender::Contender;
use super::plan::{Plan, Size};
use super::{Dropout, Results, Sample};
use crate::figures::{Spread, median, ratio_by_round};
use crate::host::Host;

/// The content of allreduce.json.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) machine: &'a Host,
    pub(super) versions: &'a BTreeMap<&'static str, String>,
    pub(super) plan: &'a Plan,
    pub(super) points: Vec<Point>,
    pub(super) dropouts: &'a [Dropout],
    pub(super) samples: &'a [Sample],
}

/// One size with one number of ranks. Ratios are of times: above 1, ours is faster.
#[derive(Debug, Serialize)]
pub(super) struct Point {
    pub(super) ranks: usize,
    pub(super) size: Size,
    /// Of one operation, by contender.
    pub(super) seconds: BTreeMap<&'static str, Spread>,
    /// The time of the better of MPI from C and Gloo, divided by that of ours over shared memory.
    pub(super) local_to_best_peer: Option<f64>,
    pub(super) best_peer: Option<Contender>,
    /// The time of MPI from C, divided by that of ours over MPI.
    pub(super) mpi_to_c: Option<f64>,
    /// The time that the memory needs, divided by that of ours over shared memory, if no cache
    /// holds the numbers.
    pub(super) share_of_memory_speed: Option<f64>,
}

impl<'a> Report<'a> {
    pub(super) fn new(machine: &'a Host, plan: &'a Plan, results: &'a Results) -> Self {
        let Results { samples, dropouts, versions } = results;
        let mut points = Vec::new();
        for &ranks in &plan.ranks {
            for &size in &plan.sizes {
                let of = samples.iter().filter(|s| s.ranks == ranks && s.size == size);
                let of: Vec<&Sample> = of.collect();
                if !of.is_empty() {
                    points.push(point(ranks, size, &of));
                }
            }
        }
        Self { machine, versions, plan, points, dropouts, samples }
    }
}

fn point(ranks: usize, size: Size, samples: &[&Sample]) -> Point {
    let times = |who: Contender| -> Vec<(usize, f64)> {
        let own = samples.iter().filter(|sample| sample.contender == who);
        own.map(|sample| (sample.round, sample.measured.seconds)).collect()
    };
    let median_time = |who| median(times(who).into_iter().map(|(_, time)| time).collect());
    let peers = [Contender::MpiC, Contender::Gloo];
    let known = peers.into_iter().filter_map(|who| Some((who, median_time(who)?)));
    let best_peer = known.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(who, _)| who);
    let ratio = |theirs, ours| ratio_by_round(&times(theirs), &times(ours));
    let mut spreads = BTreeMap::new();
    for sample in samples {
        let own = times(sample.contender).into_iter().map(|(_, time)| time).collect();
        spreads.extend(Spread::of(own).map(|spread| (sample.contender.name(), spread)));
    }
    Point {
        ranks,
        size,
        seconds: spreads,
        local_to_best_peer: best_peer.and_then(|peer| ratio(peer, Contender::Local)),
        best_peer,
        mpi_to_c: ratio(Contender::MpiC, Contender::Mpi),
        share_of_memory_speed: ratio(Contender::Memory, Contender::Local),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_allreduce::fixture::Fixture;

    #[test]
    fn ours_is_compared_with_the_better_peer_of_the_same_round() {
        let mut fixture = Fixture::new(&["4KB"]);
        // In round 1 the machine has half its speed.
        for (round, factor) in [(0, 1.0), (1, 2.0), (2, 1.0)] {
            fixture.add(round, Contender::Local, factor * 1e-6);
            fixture.add(round, Contender::Mpi, factor * 5e-6);
            fixture.add(round, Contender::MpiC, factor * 3e-6);
            fixture.add(round, Contender::Gloo, factor * 50e-6);
        }
        let report = fixture.report();
        let point = &report.points[0];
        assert_eq!(point.best_peer, Some(Contender::MpiC));
        assert!((point.local_to_best_peer.unwrap() - 3.0).abs() < 1e-9);
        assert!((point.mpi_to_c.unwrap() - 0.6).abs() < 1e-9);
        assert_eq!(point.share_of_memory_speed, None);
        assert_eq!(point.seconds["gloo"].max, 100e-6);
    }

    #[test]
    fn the_bound_is_what_the_memory_takes_in_the_same_round() {
        let mut fixture = Fixture::new(&["100MB"]);
        for (round, factor) in [(0, 1.0), (1, 3.0)] {
            fixture.add(round, Contender::Memory, factor * 20e-3);
            fixture.add(round, Contender::Local, factor * 40e-3);
        }
        let point = &fixture.report().points[0];
        assert!((point.share_of_memory_speed.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_missing_has_no_ratio() {
        let mut fixture = Fixture::new(&["4KB", "1MB"]);
        fixture.add(0, Contender::Local, 1e-6);
        fixture.add(1, Contender::Gloo, 1e-6);
        let report = fixture.report();
        assert_eq!(report.points.len(), 1, "the other size was not reached");
        assert_eq!(report.points[0].local_to_best_peer, None, "they never met in a round");
    }
}
