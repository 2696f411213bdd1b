//! `cargo xtask softgpu`: any command with the software GPU (crates/candelabrum-softgpu, docs/software-gpu.md).

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use candelabrum_softgpu::SoftGpuKit;

use crate::checkout::{repo_root, target_folder};
use crate::machine;
use crate::shell::{display, without_package};

#[derive(Debug, clap::Args)]
pub(crate) struct SoftgpuArgs {
    /// The command, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Builds the kit, and runs the command in its environment and in the current folder. cargo builds
/// below the kit's folder there, unless the command has a `--target-dir`.
pub(crate) fn run(args: &SoftgpuArgs) -> Result<()> {
    let lacks = machine::lacks_for_softgpu().join(" and ");
    ensure!(lacks.is_empty(), "the software GPU needs {lacks}: cargo xtask setup installs it");
    let kit = SoftGpuKit::build(&repo_root(), &target_folder()).context("no software GPU")?;
    let mut command = Command::new(&args.command[0]);
    let shown = display(command.args(&args.command[1..]));
    without_package(&mut command);
    command.envs(kit.environment());
    // Not announced: what the command prints may be read by another program.
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}
