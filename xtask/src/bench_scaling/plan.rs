//! The plan of the measurement: every combination of model, backend, strategy and number of
//! workers.

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

/// The way to start ranks, which also determines their transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Backend {
    /// Shared memory; the program starts its ranks
    Local,
    /// MPI; mpiexec starts them
    Mpi,
}

impl Backend {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mpi => "mpi",
        }
    }
}

/// One combination: a point of the curves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Point {
    pub(super) model: String,
    pub(super) backend: Backend,
    pub(super) strategy: String,
    pub(super) workers: usize,
}

/// The whole plan. No list has repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Plan {
    pub(super) models: Vec<String>,
    pub(super) backends: Vec<Backend>,
    pub(super) strategies: Vec<String>,
    pub(super) workers: Vec<usize>,
}

impl Plan {
    /// The points in the order of the table.
    pub(super) fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for model in &self.models {
            for &backend in &self.backends {
                for strategy in &self.strategies {
                    for &workers in &self.workers {
                        let (model, strategy) = (model.clone(), strategy.clone());
                        points.push(Point { model, backend, strategy, workers });
                    }
                }
            }
        }
        points
    }
}

/// The maximum number of ranks that the library starts on one machine.
const MOST_WORKERS: usize = 256;

/// The numbers of workers: the requested ones, or powers of two up to the number of cores.
pub(super) fn worker_counts(asked: &[usize], cores: usize) -> Result<Vec<usize>> {
    let possible = |count: &usize| (1..=MOST_WORKERS).contains(count);
    ensure!(asked.iter().all(possible), "--workers are numbers from 1 to {MOST_WORKERS}");
    let mut counts = asked.to_vec();
    if counts.is_empty() {
        counts = (0..usize::BITS).map(|power| 1 << power).take_while(|&n| n <= cores).collect();
    }
    counts.sort_unstable();
    counts.dedup();
    Ok(counts)
}

/// The requested names, or all names. `what` is the option for the error.
pub(super) fn pick(what: &str, asked: &[String], known: &[String]) -> Result<Vec<String>> {
    let mut picked = Vec::new();
    for name in asked {
        if name == "all" {
            return Ok(known.to_vec());
        }
        if !known.contains(name) {
            bail!("{what} has no `{name}`: there is all, {}", known.join(", "));
        }
        if !picked.contains(name) {
            picked.push(name.clone());
        }
    }
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_default_is_powers_of_two_up_to_the_cores() {
        assert_eq!(worker_counts(&[], 1).unwrap(), [1]);
        assert_eq!(worker_counts(&[], 2).unwrap(), [1, 2]);
        assert_eq!(worker_counts(&[], 12).unwrap(), [1, 2, 4, 8]);
        assert_eq!(worker_counts(&[4, 1, 4], 2).unwrap(), [1, 4]);
        assert!(worker_counts(&[1, 0], 2).is_err());
    }

    #[test]
    fn names_are_checked_and_taken_once() {
        let known = strings(&["fp32", "fp16"]);
        let pick = |asked: &[&str]| pick("--strategies", &strings(asked), &known);
        assert_eq!(pick(&["all"]).unwrap(), known);
        assert_eq!(pick(&["fp16", "fp16"]).unwrap(), ["fp16"]);
        let message = pick(&["fp16", "fp8"]).unwrap_err().to_string();
        assert_eq!(message, "--strategies has no `fp8`: there is all, fp32, fp16");
    }

    #[test]
    fn the_points_are_all_combinations() {
        let plan = Plan {
            models: strings(&["cnn", "mlp"]),
            backends: vec![Backend::Local],
            strategies: strings(&["fp32", "fp16"]),
            workers: vec![1, 2],
        };
        let points = plan.points();
        assert_eq!(points.len(), 8);
        assert_eq!((points[1].strategy.as_str(), points[1].workers), ("fp32", 2));
        assert_eq!((points[4].model.as_str(), points[4].workers), ("mlp", 1));
    }
}
