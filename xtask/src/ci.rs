//! `cargo xtask ci`: the steps of continuous integration, cheapest first, up to the first failure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::shell::{cargo, find_program, run as run_command};
use crate::{cuda, machine, softgpu, test, tidy};

pub(crate) fn run() -> Result<()> {
    let mut steps = Steps::default();
    let result = run_steps(&mut steps);
    print!("{}", steps.summary());
    if let Some(report) = &steps.tests {
        println!("{}", report.closing_line());
    }
    result
}

fn run_steps(steps: &mut Steps) -> Result<()> {
    const CLIPPY: [&str; 3] = ["clippy", "--workspace", "--all-targets"];
    const DENY_WARNINGS: [&str; 3] = ["--", "--deny", "warnings"];
    let mpi = machine::lacks_for_mpi().is_empty();

    steps.run("fmt", || run_command(&mut cargo(&["fmt", "--all", "--check"])))?;
    steps.run("tidy", tidy::run)?;
    steps.run("clippy", || {
        run_command(cargo(&CLIPPY).args(DENY_WARNINGS))?;
        if !mpi {
            return Ok(());
        }
        let with_mpi = ["--features", "candelabrum/mpi"];
        run_command(cargo(&CLIPPY).args(with_mpi).args(DENY_WARNINGS))
    })?;
    steps.run("cuda", cuda::clippy)?;
    steps.run("doc", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
        run_command(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;

    let all = test::Args { all: true };
    let mut report = None;
    let tested =
        steps.run("test --all", || report.insert(test::run_and_report(&all)?).verdict(&all));
    steps.tests = report;
    tested?;
    let mut report = None;
    let tested = steps.run("gpu-test", || report.insert(softgpu::run_tests()?).verdict(&all));
    if let (Some(tests), Some(report)) = (&mut steps.tests, report) {
        tests.add(report);
    }
    tested?;

    if find_program("cargo-deny").is_some() {
        steps.run("deny", || run_command(&mut cargo(&["deny", "check"])))?;
    } else {
        steps.not_run("deny", "cargo-deny is not installed");
    }
    Ok(())
}

/// The steps so far.
#[derive(Debug, Default)]
struct Steps {
    done: Vec<(&'static str, Outcome)>,
    tests: Option<test::Report>,
}

#[derive(Debug)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun(&'static str),
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        let outcome = if result.is_ok() { Outcome::Passed(took) } else { Outcome::Failed(took) };
        self.done.push((name, outcome));
        result.with_context(|| format!("ci failed at {name}"))
    }

    fn not_run(&mut self, name: &'static str, why: &'static str) {
        self.done.push((name, Outcome::NotRun(why)));
    }

    fn summary(&self) -> String {
        let mut summary = String::from("\n== summary\n");
        for (name, outcome) in &self.done {
            summary += &match outcome {
                Outcome::Passed(took) => {
                    format!("  {name:<12} passed  {:>7.1} s\n", took.as_secs_f64())
                }
                Outcome::Failed(took) => {
                    format!("  {name:<12} FAILED  {:>7.1} s\n", took.as_secs_f64())
                }
                Outcome::NotRun(why) => format!("  {name:<12} not run: {why}\n"),
            };
        }
        summary + "\n"
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_summary_tells_passed_failed_and_not_run_apart() {
        let mut steps = Steps::default();
        steps.run("fmt", || Ok(())).unwrap();
        let error = steps.run("doc", || bail!("broken link")).unwrap_err();
        steps.not_run("deny", "cargo-deny is not installed");
        assert_eq!(error.to_string(), "ci failed at doc");
        let summary = steps.summary();
        assert!(summary.contains("fmt          passed"), "{summary}");
        assert!(summary.contains("doc          FAILED"), "{summary}");
        assert!(summary.contains("deny         not run: cargo-deny"), "{summary}");
    }
}
