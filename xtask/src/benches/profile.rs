//! `cargo xtask bench-step --profile`: the time of our step, operation by operation.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::training::Training;
use crate::bench::table;
use crate::bench::{Output, Programs, Values, Wanted, counted, values};
use crate::shell::{display, output};

/// The player's output: seconds of one mean step.
#[derive(Debug, Deserialize)]
struct Profile {
    steps: usize,
    step_seconds: f64,
    operations: Vec<Operation>,
    /// candle's backward of its own operations between two calls of ours, named by the first one.
    candle: Vec<Operation>,
    /// Packing gradients, the collective, the checks.
    exchange_seconds: f64,
    optimizer_seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Operation {
    name: String,
    output: Vec<usize>,
    /// In a step.
    calls: f64,
    forward_seconds: Option<f64>,
    #[serde(alias = "seconds")]
    backward_seconds: f64,
}

/// Profiles every configuration for some seconds.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
pub(super) fn run(trainings: &[Training], seconds: f64, out: Option<&Path>) -> Result<()> {
    let folder = Output::new(out, "bench-step")?;
    let programs = Programs::find(Wanted::default(), None)?;
    let mut entries = Vec::new();
    for training in trainings {
        let player = training.rust(&programs.player, "ours").option("--profile", seconds);
        let mut command = player.commands()?.remove(0);
        let shown = display(&command);
        let line = output(&mut command).with_context(|| format!("`{shown}` failed"))?;
        let said = || format!("`{shown}` printed {line}");
        let profile: Profile = serde_json::from_str(&line).with_context(said)?;
        let &Training { network, batch_size, threads } = training;
        let ms = 1000.0 * profile.step_seconds;
        println!(
            "\nours, {}, batch {batch_size}, {}: {ms:.3} ms per step ({} steps)",
            network.name,
            counted(threads, "thread"),
            profile.steps
        );
        print!("{}", operations(profile));
        let mut entry = values([("network", network.name)]);
        entry.extend(values([("batch_size", batch_size), ("threads", threads)]));
        entry.extend(serde_json::from_str::<Values>(&line).with_context(said)?);
        entries.push(entry);
    }
    println!("\nwrote {}", folder.json("bench_step_profile.json", &entries)?.display());
    Ok(())
}

/// The operations in the order of their time, candle's in theirs, then the other parts of the step.
fn operations(mut profile: Profile) -> String {
    let ms = |seconds: f64| format!("{:.3}", 1000.0 * seconds);
    let both =
        |seconds: f64| [ms(seconds), format!("{:.1}%", 100.0 * seconds / profile.step_seconds)];
    let (mut lines, mut known) = (Vec::new(), 0.0);
    for (origin, operations) in [("", &mut profile.operations), ("candle: ", &mut profile.candle)] {
        operations.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
        for operation in operations {
            let Operation { name, output, calls, forward_seconds, backward_seconds } = operation;
            let output: Vec<String> = output.iter().map(usize::to_string).collect();
            let own = [format!("{origin}{name}"), output.join("×"), format!("{calls:.0}")];
            let passes = [forward_seconds.map(ms).unwrap_or_default(), ms(*backward_seconds)];
            lines.push([&own[..], &passes, &both(operation.seconds())].concat());
            known += operation.seconds();
        }
    }
    let rest = profile.step_seconds - known - profile.exchange_seconds - profile.optimizer_seconds;
    for (name, seconds) in [
        ("exchange", profile.exchange_seconds),
        ("optimizer", profile.optimizer_seconds),
        // The parts are measured with separate clock readings, so their sum may exceed the total.
        ("rest", rest.max(0.0)),
    ] {
        let empty = [const { String::new() }; 4];
        lines.push([&[name.to_owned()][..], &empty, &both(seconds)].concat());
    }
    let heads = ["operation", "output", "calls", "forward ms", "backward ms", "both ms", "share"];
    table::text(&heads, 2, &lines)
}

impl Operation {
    fn seconds(&self) -> f64 {
        self.forward_seconds.unwrap_or(0.0) + self.backward_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stand_by_their_time_and_the_rest_is_what_is_left() {
        let line = r#"{"steps": 10, "step_seconds": 0.1, "operations": [
            {"name": "relu", "output": [64, 10], "calls": 1.0,
             "forward_seconds": 0.004, "backward_seconds": 0.006},
            {"name": "linear", "output": [64, 500], "calls": 2.0,
             "forward_seconds": 0.02, "backward_seconds": 0.03}],
            "candle": [
            {"name": "reshape", "output": [64, 10], "calls": 2.0, "seconds": 0.002},
            {"name": "narrow", "output": [64, 3], "calls": 1.0, "seconds": 0.003}],
            "exchange_seconds": 0.005, "optimizer_seconds": 0.015}"#;
        let text = operations(serde_json::from_str(line).unwrap());
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            vec!["linear", "64×500", "2", "20.000", "30.000", "50.000", "50.0%"],
            vec!["relu", "64×10", "1", "4.000", "6.000", "10.000", "10.0%"],
            vec!["candle:", "narrow", "64×3", "1", "3.000", "3.000", "3.0%"],
            vec!["candle:", "reshape", "64×10", "2", "2.000", "2.000", "2.0%"],
            vec!["exchange", "5.000", "5.0%"],
            vec!["optimizer", "15.000", "15.0%"],
            vec!["rest", "15.000", "15.0%"],
        ];
        assert_eq!(rows, expected, "{text}");
    }
}
