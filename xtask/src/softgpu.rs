//! The software GPU (crates/softgpu, docs/gpu.md): any command with it, and the GPU tests on it.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use candelabrum_softgpu::Kit;

use crate::checkout::{repo_root, target_folder};
use crate::machine;
use crate::shell::{cargo, display, run as run_command, without_package};
use crate::test::{Report, Run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Builds the kit, and runs the command in its environment and in the current folder. cargo builds
/// below the kit's folder there, unless the command has a `--target-dir`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let lacks = machine::lacks_for_softgpu().join(" and ");
    ensure!(lacks.is_empty(), "the software GPU needs {lacks}: cargo xtask setup installs it");
    let kit = Kit::build(&repo_root(), &target_folder()).context("no software GPU")?;
    let mut command = Command::new(&args.command[0]);
    let shown = display(command.args(&args.command[1..]));
    without_package(&mut command);
    command.envs(kit.environment()).env("CARGO_TARGET_DIR", kit.build_folder());
    // Not announced: what the command prints may be read by another program.
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}

/// The GPU tests: the test programs, by their names in all of the workspace, and for each the tests
/// to run, those with one of these in their names, or all.
const TESTS: [(&str, &[&str]); 5] = [
    ("softgpu", &[]),
    ("gpu", &[]),
    ("ops", &["composites", "on_a_gpu"]),
    ("examples", &["on_a_gpu"]),
    // Over the other backends, ranks that see a GPU would take it.
    ("conformance", &["nccl"]),
];

/// Builds the GPU tests together and runs them one after the other.
pub(crate) fn run_tests() -> Result<Report> {
    run_command(
        cargo_test().arg("--no-run").args(TESTS.iter().flat_map(|(name, _)| ["--test", name])),
    )?;
    let mut report = Report::default();
    for (program, only) in TESTS {
        let mut command = cargo_test();
        command.args(["--no-fail-fast", "--test", program, "--"]).args(only);
        report.runs.push(Run::start(program, command.env("REQUIRE_GPUS", "1"))?);
    }
    Ok(report)
}

/// `cargo test` with the software GPU. One set of features for all programs, since cargo would
/// otherwise build candle several times.
fn cargo_test() -> Command {
    let mut command = cargo(&["xtask", "softgpu", "--", "cargo", "test", "--workspace"]);
    command.args(["--features", "candelabrum/cuda,candelabrum-softgpu/cuda"]);
    command
}
