//! The summary of each point's samples: medians, speed-up, efficiency.

use serde::Serialize;

use super::plan::{Plan, Point};
use super::sample::{Sample, Settings};
use crate::figures::{Spread, median, paired_ratio};
use crate::host::Host;
use crate::split::Split;

/// The strategy whose speed with one worker is the reference of all speed-ups.
pub(super) const BASELINE: &str = "fp32";

/// The content of scaling.json.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) machine: &'a Host,
    pub(super) settings: &'a Settings,
    pub(super) plan: &'a Plan,
    /// All strategies of the program, measured or not.
    pub(super) known_strategies: &'a [String],
    pub(super) points: Vec<Row>,
    pub(super) samples: &'a [Sample],
}

/// One point, over all rounds that reached it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) point: Point,
    /// Whether there are more ranks than cores, so that ranks share a core.
    pub(super) oversubscribed: bool,
    pub(super) samples: usize,
    pub(super) steps: usize,
    /// Of all ranks together.
    pub(super) images_per_second: Spread,
    /// The median over the rounds of the ratio of this point's speed to that of one worker with
    /// fp32, with the same model and backend, in the same round.
    pub(super) speed_up: Option<f64>,
    /// The speed-up divided by the number of workers.
    pub(super) efficiency: Option<f64>,
    /// Rank 0's.
    pub(super) step_seconds: Split<Spread>,
    pub(super) communication_seconds: f64,
    pub(super) bytes_sent_per_step: f64,
    pub(super) bytes_received_per_step: f64,
    pub(super) residual_norm: Option<f64>,
}

/// The rows of the points that have a sample.
pub(super) fn rows(plan: &Plan, samples: &[Sample], cores: usize) -> Vec<Row> {
    let of = |point: &Point| -> Vec<&Sample> {
        samples.iter().filter(|sample| sample.point == *point).collect()
    };
    let speeds = |samples: &[&Sample]| -> Vec<f64> {
        samples.iter().map(|sample| sample.measured.images_per_second).collect()
    };
    let row = |point: Point| {
        let own = of(&point);
        let base = of(&Point { strategy: BASELINE.into(), workers: 1, ..point.clone() });
        let speed_up = paired_ratio(&speeds(&own), &speeds(&base));
        let middle = |figure: fn(&Sample) -> f64| median(own.iter().map(|s| figure(s)).collect());
        let norms = own.iter().filter_map(|sample| sample.measured.residual_norm).collect();
        Some(Row {
            oversubscribed: point.workers > cores,
            samples: own.len(),
            steps: own.first()?.measured.steps,
            images_per_second: Spread::of(speeds(&own))?,
            speed_up,
            efficiency: speed_up.map(|times| times / point.workers as f64),
            step_seconds: Split::try_from_parts(|part| {
                Spread::of(own.iter().map(|s| *s.measured.step_seconds.get(part)).collect())
            })?,
            communication_seconds: middle(|sample| sample.measured.communication_seconds)?,
            bytes_sent_per_step: middle(|sample| sample.measured.bytes_sent_per_step)?,
            bytes_received_per_step: middle(|sample| sample.measured.bytes_received_per_step)?,
            residual_norm: median(norms),
            point,
        })
    };
    plan.points().into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use crate::bench_scaling::fixture;

    #[test]
    fn speed_up_is_measured_by_one_worker_with_fp32_of_the_same_round() {
        let mut fixture = fixture::of(&["fp32", "fp16"], &[1, 2]);
        // On one worker fp16 is faster than fp32 by half, and the second worker adds 80 %. In round
        // 1 the machine has half its speed.
        for round in 0..3 {
            let speed = if round == 1 { 50.0 } else { 100.0 };
            for (strategy, factor) in [("fp32", 1.0), ("fp16", 1.5)] {
                fixture.add(round, strategy, 1, speed * factor);
                fixture.add(round, strategy, 2, speed * factor * 1.8);
            }
        }
        let rows = fixture.rows();
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-9);
        let expected = [(1.0, 1.0), (1.8, 0.9), (1.5, 1.5), (2.7, 1.35)];
        for (row, (speed_up, efficiency)) in rows.iter().zip(expected) {
            assert!(close(row.speed_up, speed_up), "{row:?}");
            assert!(close(row.efficiency, efficiency), "{row:?}");
            assert_eq!(row.samples, 3);
        }
        let speed = rows[0].images_per_second;
        assert_eq!((speed.min, speed.median, speed.max), (50.0, 100.0, 100.0));
    }

    #[test]
    fn without_the_baseline_there_is_no_speed_up() {
        let mut fixture = fixture::of(&["fp32", "fp16"], &[1, 2]);
        fixture.add(0, "fp16", 1, 100.0);
        let rows = fixture.rows();
        assert_eq!(rows.len(), 1, "points without a sample have no row");
        assert_eq!((rows[0].speed_up, rows[0].efficiency), (None, None));
    }

    #[test]
    fn more_ranks_than_cores_are_marked() {
        let mut fixture = fixture::of(&["fp32"], &[2, 4]);
        fixture.add(0, "fp32", 2, 100.0);
        fixture.add(0, "fp32", 4, 100.0);
        let marks: Vec<bool> = fixture.rows().iter().map(|row| row.oversubscribed).collect();
        assert_eq!(marks, [false, true]);
    }
}
