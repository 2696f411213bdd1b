//! `bench-player train`: one contender trains one network.

use std::time::Duration;

use anyhow::Context;
use candelabrum::dist::World;
use candelabrum::nn::ops::profile;
use serde_json::{Value, json};

use crate::pace::Repeat;
use crate::serve::{Seconds, serve};
use crate::settings::Settings;
use crate::training::Training;

/// Serves requests; or prints the time of each operation in some seconds of training.
pub(crate) fn run(
    settings: &Settings,
    profiled: Option<Seconds>,
    world: &World,
) -> anyhow::Result<()> {
    let mut training = Training::new(settings, world)?;
    let Some(seconds) = profiled else { return serve(&mut training, world) };
    println!("{}", profile(&mut training, seconds)?);
    Ok(())
}

/// The seconds of one mean step, operation by operation, as the library measures them.
pub(crate) fn profile(training: &mut Training, seconds: Seconds) -> anyhow::Result<Value> {
    profile::start();
    let sample = training.train(Repeat::Seconds(seconds));
    let profile = profile::stop();
    let sample = sample?;
    let steps = sample["steps"].as_f64().context("a sample has steps")?;
    let per_step = |time: Duration| time.as_secs_f64() / steps;
    let operation = |row: profile::Row| {
        let (forward, backward) = (per_step(row.forward), per_step(row.backward));
        json!({
            "name": row.name, "output": row.output, "calls": row.calls as f64 / steps,
            "forward_seconds": forward, "backward_seconds": backward,
        })
    };
    let region = |region: profile::Region| {
        json!({
            "name": region.name, "output": region.output, "calls": region.calls as f64 / steps,
            "seconds": per_step(region.time),
        })
    };
    let parts = |names: &[&str]| -> anyhow::Result<f64> {
        let sum: Option<f64> = names.iter().map(|&name| sample[name].as_f64()).sum();
        sum.context("only ours can be profiled")
    };
    Ok(json!({
        "steps": sample["steps"],
        "step_seconds": sample["step_seconds"],
        "operations": profile.operations.into_iter().map(operation).collect::<Vec<_>>(),
        // candle's backward of its own operations.
        "candle": profile.candle.into_iter().map(region).collect::<Vec<_>>(),
        // Packing gradients, the collective, the checks.
        "exchange_seconds": parts(&["compress_seconds", "exposed_seconds", "decompress_seconds"])?,
        "optimizer_seconds": parts(&["update_seconds"])?,
    }))
}
