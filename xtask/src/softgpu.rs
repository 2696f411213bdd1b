//! The software GPU (crates/softgpu, docs/gpu.md): any command with it, and the GPU tests on it.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use candelabrum_softgpu::Kit;

use crate::checkout::{repo_root, target_folder};
use crate::machine;
use crate::shell::{cargo, display, run_as, without_package};
use crate::test::{self, Report, Run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command in the current folder. cargo builds below the kit's folder there, unless the
/// command has a `--target-dir`.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let shown = display(&command);
    without_package(&mut command);
    // Not announced: what the command prints may be read by another program.
    let status = with_software_gpu(&mut command)?.status();
    let status = status.with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}

/// Builds the kit, and gives the command its environment.
fn with_software_gpu(command: &mut Command) -> Result<&mut Command> {
    let lacks = machine::lacks_for_softgpu();
    ensure!(
        lacks.is_empty(),
        "the software GPU needs {}: cargo xtask setup installs it",
        lacks.join(" and ")
    );
    let kit = Kit::build(&repo_root(), &target_folder()).context("no software GPU")?;
    Ok(command.envs(kit.environment()).env("CARGO_TARGET_DIR", kit.build_folder()))
}

/// One of the GPU tests.
struct Target {
    /// The test program, by its name in all of the workspace.
    program: &'static str,
    /// Only tests with one of these in their names; all if empty.
    only: &'static [&'static str],
}

const TARGETS: &[Target] = &[
    Target { program: "softgpu", only: &[] },
    Target { program: "gpu", only: &[] },
    Target { program: "ops", only: &["composites", "on_a_gpu"] },
    Target { program: "examples", only: &["on_a_gpu"] },
    // Over the other backends, ranks that see a GPU would take it.
    Target { program: "conformance", only: &["nccl"] },
];

/// One set of features for all of them, since cargo would otherwise build candle several times.
const FEATURES: &str = "candelabrum/cuda,candelabrum-softgpu/cuda";

/// Runs the GPU tests, and fails if one failed.
pub(crate) fn gpu_test() -> Result<()> {
    let report = run_tests()?;
    print!("{}", report.table());
    println!("{}", report.closing_line());
    report.verdict(&test::Args { all: true })
}

/// Builds the GPU tests together and runs them one after the other.
pub(crate) fn run_tests() -> Result<Report> {
    let mut build = cargo(&["test", "--workspace", "--features", FEATURES, "--no-run"]);
    build.args(TARGETS.iter().flat_map(|target| ["--test", target.program]));
    let shown = format!("cargo xtask softgpu -- {}", display(&build));
    run_as(&shown, with_software_gpu(&mut build)?)?;
    let mut runs = Vec::new();
    for target in TARGETS {
        let mut command = cargo(&["test", "--no-fail-fast", "--workspace", "--features", FEATURES]);
        command.args(["--test", target.program, "--"]).args(target.only);
        let shown = format!("REQUIRE_GPUS=1 cargo xtask softgpu -- {}", display(&command));
        with_software_gpu(&mut command)?.env("REQUIRE_GPUS", "1");
        runs.push(Run::start_as(target.program, &shown, command)?);
    }
    Ok(Report::of(runs))
}
