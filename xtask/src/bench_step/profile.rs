//! `--profile`: the time of our step, operation by operation.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Programs;
use super::contender::Contender;
use super::plan::{Config, Plan};
use crate::bench::Output;
use crate::live::last_line;
use crate::shell::display;

/// The contender's output: seconds of one mean step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Profile {
    steps: usize,
    step_seconds: f64,
    operations: Vec<Operation>,
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

#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    config: Config,
    #[serde(flatten)]
    profile: Profile,
}

/// Profiles every configuration of the plan for the plan's seconds.
pub(super) fn run(plan: &Plan, programs: &Programs, output: &Output) -> Result<()> {
    let mut entries = Vec::new();
    for config in plan.configs() {
        let mut command = programs.command(Contender::Ours, config)?;
        command.args(["--profile", &plan.seconds.to_string()]);
        let shown = display(&command);
        let line = last_line(&mut command).with_context(|| format!("`{shown}`"))?;
        let profile: Profile =
            serde_json::from_str(&line).with_context(|| format!("`{shown}` printed {line}"))?;
        print!("{}", table(config, &profile));
        entries.push(Entry { config, profile });
    }
    let path = output.json("bench_step_profile.json", &entries)?;
    println!("\nwrote {}", path.display());
    Ok(())
}

/// The operations in the order of their time, then the other parts of the step.
fn table(config: Config, profile: &Profile) -> String {
    let Config { network, batch_size, threads } = config;
    let ms = |seconds: f64| format!("{:.3}", 1000.0 * seconds);
    let plural = if threads == 1 { "" } else { "s" };
    let title = format!(
        "ours, {}, batch {batch_size}, {threads} thread{plural}: {} ms per step ({} steps)",
        network.name(),
        ms(profile.step_seconds),
        profile.steps
    );
    let heading = ["operation", "output", "calls", "forward ms", "backward ms", "both ms", "share"];
    let mut lines = vec![heading.map(str::to_owned)];
    let share = |seconds: f64| format!("{:.1}%", 100.0 * seconds / profile.step_seconds);

    let mut operations: Vec<&Operation> = profile.operations.iter().collect();
    operations.sort_by(|a, b| b.seconds().total_cmp(&a.seconds()));
    let mut rest = profile.step_seconds;
    for operation in operations {
        let output: Vec<String> = operation.output.iter().map(usize::to_string).collect();
        rest -= operation.seconds();
        lines.push([
            operation.name.clone(),
            output.join("×"),
            format!("{:.0}", operation.calls),
            ms(operation.forward_seconds),
            ms(operation.backward_seconds),
            ms(operation.seconds()),
            share(operation.seconds()),
        ]);
    }
    rest -= profile.exchange_seconds + profile.optimizer_seconds;
    for (name, seconds) in [
        ("exchange", profile.exchange_seconds),
        ("optimizer", profile.optimizer_seconds),
        // The parts are measured with separate clock readings, so their sum may exceed the total.
        ("rest", rest.max(0.0)),
    ] {
        let [output, calls, forward, backward] = [const { String::new() }; 4];
        lines.push([
            name.to_owned(),
            output,
            calls,
            forward,
            backward,
            ms(seconds),
            share(seconds),
        ]);
    }
    let shown = lines.iter().map(|[name, output, calls, forward, backward, both, share]| {
        format!("{name:<26}{output:<20}{calls:>7}{forward:>12}{backward:>13}{both:>10}{share:>8}")
    });
    format!("\n{title}\n{}\n", shown.collect::<Vec<_>>().join("\n"))
}

impl Operation {
    fn seconds(&self) -> f64 {
        self.forward_seconds + self.backward_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_step::fixture::config;

    #[test]
    fn operations_stand_by_their_time_and_the_rest_is_what_is_left() {
        let line = r#"{"steps": 10, "step_seconds": 0.1, "operations": [
            {"name": "relu", "output": [64, 10], "calls": 1.0,
             "forward_seconds": 0.004, "backward_seconds": 0.006},
            {"name": "linear", "output": [64, 500], "calls": 2.0,
             "forward_seconds": 0.02, "backward_seconds": 0.03}],
            "exchange_seconds": 0.005, "optimizer_seconds": 0.015}"#;
        let text = table(config(64, 1), &serde_json::from_str(line).unwrap());
        let rows: Vec<Vec<&str>> =
            text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            vec!["linear", "64×500", "2", "20.000", "30.000", "50.000", "50.0%"],
            vec!["relu", "64×10", "1", "4.000", "6.000", "10.000", "10.0%"],
            vec!["exchange", "5.000", "5.0%"],
            vec!["optimizer", "15.000", "15.0%"],
            vec!["rest", "20.000", "20.0%"],
        ];
        assert_eq!(rows, expected, "{text}");
        assert!(text.contains("ours, cnn, batch 64, 1 thread: 100.000 ms per step (10 steps)"));
    }
}
