//! `cargo xtask ci`: the steps of continuous integration, cheapest first, up to the first failure.

use std::env;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::checkout::repo_root;
use crate::shell::{cargo, find_program, run as run_command};
use crate::test::{self, Report};
use crate::{gpu_bundle, kernels, machine, softgpu, tidy};

pub(crate) fn run() -> Result<()> {
    let (mut steps, mut report) = (Steps::default(), Report::default());
    let result = run_steps(&mut steps, &mut report);
    println!("\n== summary\n{}", steps.0);
    if !report.runs.is_empty() {
        println!("{}", report.closing_line());
    }
    result
}

fn run_steps(steps: &mut Steps, report: &mut Report) -> Result<()> {
    let mpi = machine::lacks_for_mpi().is_empty().then_some("candelabrum/mpi");
    let clippy = |options: &[&str], prepare: fn(&mut Command) -> &mut Command| {
        [Some(""), mpi].into_iter().flatten().try_for_each(|mpi| {
            let mut command = cargo(&["clippy", "--workspace", "--features", mpi]);
            run_command(prepare(command.args(options).args(["--", "--deny", "warnings"])))
        })
    };
    steps.run("fmt", || run_command(&mut cargo(&["fmt", "--all", "--check"])))?;
    steps.run("tidy", tidy::run)?;
    steps.run("clippy", || clippy(&["--all-targets"], |command| command))?;
    // It needs no CUDA: only programs link the libraries, and a check builds no programs.
    steps.run("cuda", || clippy(&["--features", "candelabrum/cuda"], with_stand_in))?;
    steps.run("doc", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
        run_command(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    match kernels::nvrtc() {
        Ok(nvrtc) => steps.run("ptxas", || kernels::check(&nvrtc))?,
        Err(error) => steps.add("ptxas", &format!("not run: {error}")),
    }
    steps.run("test --all", || {
        *report = test::run_tests(true)?;
        print!("{}", report.table());
        report.verdict(true)
    })?;
    steps.run("gpu-test", || {
        report.runs.extend(softgpu::run_tests()?.runs);
        report.verdict(true)
    })?;
    steps.run("gpu-check", gpu_bundle::rehearse)?;
    if find_program("cargo-deny").is_some() {
        steps.run("deny", || run_command(&mut cargo(&["deny", "check"])))
    } else {
        steps.add("deny", "not run: cargo-deny is not installed");
        Ok(())
    }
}

/// The environment in which build scripts find a replacement for nvcc that compiles no kernel.
fn with_stand_in(command: &mut Command) -> &mut Command {
    let folder = repo_root().join("scripts/cuda/stand-in");
    let bin = folder.join("bin");
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    command
        .env("CUDA_HOME", &folder)
        .env("CUDA_PATH", &folder)
        .env("NVCC", bin.join("nvcc"))
        .env("PATH", path)
        .env("CUDA_COMPUTE_CAP", "90")
        .env("CUDARC_CUDA_VERSION", "13000")
}

/// The summary of the steps so far, a line for each.
#[derive(Default)]
struct Steps(String);

impl Steps {
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
    use crate::shell::output;

    #[test]
    fn the_summary_tells_passed_and_failed_apart() {
        let mut steps = Steps::default();
        steps.run("fmt", || Ok(())).unwrap();
        let error = steps.run("doc", || bail!("broken link")).unwrap_err();
        assert_eq!(error.to_string(), "ci failed at doc");
        assert!(steps.0.contains("fmt          passed"), "{}", steps.0);
        assert!(steps.0.contains("doc          FAILED"), "{}", steps.0);
    }

    #[test]
    fn the_stand_in_answers_what_build_scripts_ask() {
        let nvcc = repo_root().join("scripts/cuda/stand-in/bin/nvcc");
        let version = output(Command::new(&nvcc).arg("--version")).expect("a version");
        // cudarc's build script reads the fourth line.
        assert!(version.lines().nth(3).is_some_and(|line| line.contains("release 13.0")));
        assert!(output(Command::new(&nvcc).arg("--list-gpu-code")).is_some());
    }
}
