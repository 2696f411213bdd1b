//! `bench-player train`: one contender trains one network.

use std::time::Duration;

use anyhow::Context;
use candelabrum::dist::World;
use candelabrum::nn::ops::profile;

use crate::pace::Repeat;
use crate::serve::{Seconds, serve};
use crate::settings::TrainingSettings;
use crate::training::Training;

/// Serves requests; or prints the time of each operation in some seconds of training.
pub(crate) fn run(
    settings: &TrainingSettings,
    profiled: Option<Seconds>,
    world: &World,
) -> anyhow::Result<()> {
    let mut training = Training::new(settings, world)?;
    let Some(seconds) = profiled else { return serve(&mut training, world) };
    println!("{}", profile(&mut training, seconds)?);
    Ok(())
}

/// The time of one mean step as a table: our operations by their time, candle's backward of its own operations, then the
/// other parts of the step.
pub(crate) fn profile(training: &mut Training, seconds: Seconds) -> anyhow::Result<String> {
    profile::start();
    let sample = training.train(Repeat::Seconds(seconds));
    let profile = profile::stop();
    let sample = sample?;
    let figure = |name: &str| sample[name].as_f64().context("only ours can be profiled");
    let (steps, step) = (figure("steps")?, 1e3 * figure("step_seconds")?);
    let ms = |time: Duration| 1e3 * time.as_secs_f64() / steps;
    let line = |name: &str, output: &[usize], calls: u64, passes: [f64; 2]| {
        let output = output.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
        let (calls, [forward, backward], both) =
            (calls as f64 / steps, passes, passes[0] + passes[1]);
        let share = 100.0 * both / step;
        let text = format!(
            "{name:<28}{output:>20}{calls:>7.0}{forward:>12.3}{backward:>12.3}{both:>12.3}{share:>7.1}%"
        );
        (both, text)
    };
    let own = profile
        .operations
        .iter()
        .map(|row| line(row.name, &row.output, row.calls, [ms(row.forward), ms(row.backward)]));
    let mut lines: Vec<(f64, String)> = own.collect();
    lines.extend(profile.candle.iter().map(|region| {
        line(
            &format!("candle: {}", region.name),
            &region.output,
            region.calls,
            [0.0, ms(region.time)],
        )
    }));
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut part = |name: &str, figures: &[&str]| -> anyhow::Result<()> {
        let times = figures.iter().map(|name| figure(name)).collect::<anyhow::Result<Vec<_>>>()?;
        lines.push(line(name, &[], 0, [0.0, 1e3 * times.iter().sum::<f64>()]));
        Ok(())
    };
    // Packing gradients, the collective, the checks.
    part("exchange", &["compress_seconds", "exposed_seconds", "decompress_seconds"])?;
    part("optimizer", &["update_seconds"])?;
    // The parts are measured with separate clock readings, so their sum may exceed the total.
    let rest = (step - lines.iter().map(|(both, _)| both).sum::<f64>()).max(0.0);
    lines.push(line("rest", &[], 0, [0.0, rest]));
    let head = format!(
        "{:<28}{:>20}{:>7}{:>12}{:>12}{:>12}{:>8}",
        "operation", "output", "calls", "forward ms", "backward ms", "both ms", "share"
    );
    let lines = lines.into_iter().map(|(_, text)| text);
    let title = format!("{steps} steps of {step:.3} ms");
    Ok([title, head].into_iter().chain(lines).collect::<Vec<_>>().join("\n"))
}
