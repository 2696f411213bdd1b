//! `cargo xtask ci`: the steps of continuous integration, cheapest first, up to the first failure.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::checkout::target_folder;
use crate::machine::OPEN_MPI;
use crate::shell::{DENY_WARNINGS, UNOPTIMIZED, cargo, find_program, run as run_command};
use crate::test::build::TestBuild;
use crate::test::report::TestReport;
use crate::test::{self, TestPart};
use crate::{gpu_bundle, interface, kernels, portable, tidy};

pub(crate) fn run() -> Result<()> {
    let (mut steps, mut report) = (CiSteps::default(), TestReport::default());
    let result = run_steps(&mut steps, &mut report);
    println!("\n== summary\n{}", steps.0);
    if !report.runs.is_empty() {
        println!("{}", report.closing_line());
    }
    result
}

fn run_steps(steps: &mut CiSteps, report: &mut TestReport) -> Result<()> {
    let build = TestBuild::of_this_machine()?;
    steps.run("fmt", || run_command(&mut cargo(&["fmt", "--all", "--check"])))?;
    steps.run("tidy", tidy::run)?;
    steps.run("clippy", || {
        let mut clippy = build.cargo(&["clippy", "--all-targets"]);
        run_command(clippy.args(["--", "--deny", "warnings"]))
    })?;
    steps.run("defaults", defaults)?;
    steps.run("portable", || portable::run(&build))?;
    steps.run("doc", || interface::check(&build))?;
    match kernels::nvrtc() {
        Ok(nvrtc) => steps.run("ptxas", || kernels::check(&nvrtc, &kernels::FIRST_AND_LAST))?,
        Err(error) => steps.add("ptxas", &format!("not run: {error}")),
    }
    steps.run("test --all", || {
        *report = test::run_part(&build, TestPart::All, true)?;
        print!("{}", report.table());
        report.verdict(true)
    })?;
    steps.run("gpu-check", gpu_bundle::rehearse)?;
    steps.run("publish", publish)?;
    if find_program("cargo-deny").is_some() {
        steps.run("deny", || run_command(&mut cargo(&["deny", "check"])))
    } else {
        steps.add("deny", "not run: cargo-deny is not installed");
        Ok(())
    }
}

/// Builds a program with the default features, as most users do, and trains on two ranks: by its own launcher, and by
/// MPI's where there is one. All tests are built with more features.
fn defaults() -> Result<()> {
    // Of this package alone, because the whole workspace has more features of other crates.
    let package = ["--package", "candelabrum", "--example", "regression"];
    let mut build = cargo(&["build", "--profile", UNOPTIMIZED]);
    build.args(package);
    run_command(build.env("RUSTFLAGS", DENY_WARNINGS))?;
    let program = target_folder().join(UNOPTIMIZED).join("examples/regression");
    run_command(Command::new(&program).args(["--epochs", "1", "--workers", "2"]))?;
    let Some(mpiexec) = find_program("mpiexec") else { return Ok(()) };
    let mut job = Command::new(mpiexec);
    job.envs(OPEN_MPI).args(["-n", "2"]).arg(&program).args(["--epochs", "1"]);
    run_command(&mut job)
}

/// Makes the packages as a release uploads them. Their builds are left out: `cargo publish --workspace --dry-run` adds
/// them before a release.
fn publish() -> Result<()> {
    // Other changes than those of a commit are no reason to fail here.
    run_command(&mut cargo(&[
        "publish",
        "--workspace",
        "--dry-run",
        "--no-verify",
        "--allow-dirty",
    ]))
}

/// The summary of the steps so far, a line for each.
#[derive(Default)]
struct CiSteps(String);

impl CiSteps {
    fn run(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let (start, result) = (Instant::now(), step());
        let word = if result.is_ok() { "passed" } else { "FAILED" };
        self.add(name, &format!("{word}  {:>7.1} s", start.elapsed().as_secs_f64()));
        result.with_context(|| format!("ci failed at {name}"))
    }

    fn add(&mut self, name: &str, outcome: &str) {
        self.0 += &format!("  {name:<12} {outcome}\n");
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn the_summary_tells_passed_and_failed_apart() {
        let mut steps = CiSteps::default();
        steps.run("fmt", || Ok(())).unwrap();
        let error = steps.run("doc", || bail!("broken link")).unwrap_err();
        assert_eq!(error.to_string(), "ci failed at doc");
        assert!(steps.0.contains("fmt          passed"), "{}", steps.0);
        assert!(steps.0.contains("doc          FAILED"), "{}", steps.0);
    }
}
