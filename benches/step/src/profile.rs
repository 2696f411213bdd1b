//! The time of our step, operation by operation, as the library measures it.

use std::time::Duration;

use anyhow::Context;
use candelabrum::nn::ops::profile as ops;
use serde::Serialize;

use crate::run::Run;

/// The output of a profile. Times are seconds of one mean step.
#[derive(Debug, Serialize)]
pub(crate) struct Profile {
    steps: usize,
    step_seconds: f64,
    operations: Vec<Operation>,
    /// Packing gradients, the collective, the checks.
    exchange_seconds: f64,
    optimizer_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Operation {
    name: &'static str,
    output: Vec<usize>,
    calls: f64,
    forward_seconds: f64,
    backward_seconds: f64,
}

/// Trains for some seconds and measures.
pub(crate) fn profile(run: &mut Run, seconds: f64) -> anyhow::Result<Profile> {
    let figures = |run: &Run| run.contender().figures().context("only ours can be profiled");
    let before = figures(run)?;
    ops::start();
    let trained = run.train(seconds);
    let rows = ops::stop();
    let (steps, elapsed, _) = trained?;
    let cost = figures(run)? - before;
    let per_step = |time: Duration| time.as_secs_f64() / steps as f64;
    let operation = |row: ops::Row| Operation {
        name: row.name,
        output: row.output,
        calls: row.calls as f64 / steps as f64,
        forward_seconds: per_step(row.forward),
        backward_seconds: per_step(row.backward),
    };
    Ok(Profile {
        steps,
        step_seconds: per_step(elapsed),
        operations: rows.into_iter().map(operation).collect(),
        exchange_seconds: per_step(cost.compress + cost.exposed + cost.decompress),
        optimizer_seconds: per_step(cost.update),
    })
}
