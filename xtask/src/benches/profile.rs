//! `cargo xtask bench-step --profile`: the time of our step, operation by operation.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::training::Training;
use crate::bench::table;
use crate::bench::{Output, Programs, Wanted, counted};
use crate::shell::{display, output};

/// The player's output: seconds of one mean step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Profile {
    steps: usize,
    step_seconds: f64,
    operations: Vec<Operation>,
    /// candle's backward of its own operations.
    candle: Vec<Region>,
    /// Packing gradients, the collective, the checks.
    exchange_seconds: f64,
    optimizer_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Operation {
    name: String,
    output: Vec<usize>,
    /// In a step.
    calls: f64,
    forward_seconds: f64,
    backward_seconds: f64,
}

/// candle's own operations between two calls of ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Region {
    name: String,
    /// Of the first operation.
    output: Vec<usize>,
    /// In a step.
    calls: f64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Entry {
    network: &'static str,
    batch_size: usize,
    threads: usize,
    #[serde(flatten)]
    profile: Profile,
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
        let profile: Profile =
            serde_json::from_str(&line).with_context(|| format!("`{shown}` printed {line}"))?;
        let &Training { network, batch_size, threads } = training;
        let ms = 1000.0 * profile.step_seconds;
        println!(
            "\nours, {}, batch {batch_size}, {}: {ms:.3} ms per step ({} steps)",
            network.name,
            counted(threads, "thread"),
            profile.steps
        );
        print!("{}", operations(&profile));
        entries.push(Entry { network: network.name, batch_size, threads, profile });
    }
    println!("\nwrote {}", folder.json("bench_step_profile.json", &entries)?.display());
    Ok(())
}

/// The operations in the order of their time, candle's in theirs, then the other parts of the step.
fn operations(profile: &Profile) -> String {
    let mut sorted: Vec<&Operation> = profile.operations.iter().collect();
    sorted.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    let mut candle: Vec<&Region> = profile.candle.iter().collect();
    candle.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let known = sorted.iter().map(|operation| operation.seconds()).sum::<f64>()
        + candle.iter().map(|region| region.seconds).sum::<f64>();
    let rest = profile.step_seconds - known - profile.exchange_seconds - profile.optimizer_seconds;
    let ms = |seconds: f64| format!("{:.3}", 1000.0 * seconds);
    let both =
        |seconds: f64| [ms(seconds), format!("{:.1}%", 100.0 * seconds / profile.step_seconds)];
    let mut lines: Vec<Vec<String>> = Vec::new();
    let own = |name: String, output: &[usize], calls: f64| {
        let output: Vec<String> = output.iter().map(usize::to_string).collect();
        [name, output.join("×"), format!("{calls:.0}")]
    };
    for operation in sorted {
        let own = own(operation.name.clone(), &operation.output, operation.calls);
        let passes = [operation.forward_seconds, operation.backward_seconds].map(ms);
        lines.push([&own[..], &passes, &both(operation.seconds())].concat());
    }
    for region in candle {
        let own = own(format!("candle: {}", region.name), &region.output, region.calls);
        let passes = [String::new(), ms(region.seconds)];
        lines.push([&own[..], &passes, &both(region.seconds)].concat());
    }
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
        self.forward_seconds + self.backward_seconds
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
        let text = operations(&serde_json::from_str(line).unwrap());
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
