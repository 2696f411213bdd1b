//! `cargo xtask ci`: the steps of continuous integration, cheapest first, up to the first failure.

use std::time::Instant;

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
        tests.runs.extend(report.runs);
    }
    tested?;

    if find_program("cargo-deny").is_some() {
        steps.run("deny", || run_command(&mut cargo(&["deny", "check"])))?;
    } else {
        steps.done.push(("deny", "not run: cargo-deny is not installed".into()));
    }
    Ok(())
}

/// The steps so far, each with its outcome.
#[derive(Debug, Default)]
struct Steps {
    done: Vec<(&'static str, String)>,
    tests: Option<test::Report>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let (start, result) = (Instant::now(), step());
        let word = if result.is_ok() { "passed" } else { "FAILED" };
        self.done.push((name, format!("{word}  {:>7.1} s", start.elapsed().as_secs_f64())));
        result.with_context(|| format!("ci failed at {name}"))
    }

    fn summary(&self) -> String {
        let lines = self.done.iter().map(|(name, outcome)| format!("  {name:<12} {outcome}\n"));
        format!("\n== summary\n{}\n", lines.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_summary_tells_passed_and_failed_apart() {
        let mut steps = Steps::default();
        steps.run("fmt", || Ok(())).unwrap();
        let error = steps.run("doc", || bail!("broken link")).unwrap_err();
        steps.done.push(("deny", "not run: cargo-deny is not installed".into()));
        assert_eq!(error.to_string(), "ci failed at doc");
        let summary = steps.summary();
        assert!(summary.contains("fmt          passed"), "{summary}");
        assert!(summary.contains("doc          FAILED"), "{summary}");
    }
}
