//! `cargo xtask portable`: the build for systems other than Linux, made and tried on Linux.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::checkout::target_folder;
use crate::shell::{DENY_WARNINGS, UNOPTIMIZED, cargo, run as run_command};
use crate::test::build::TestBuild;

/// The variable that leaves out what needs Linux (`crates/candelabrum-dist/build.rs`).
const PORTABLE: &str = "CANDELABRUM_PORTABLE";

/// What a program says that is asked for ranks.
const NO_RANKS: &str = "several ranks without MPI need Linux, and this build is for another system: build with `--features mpi`";

/// Lints everything that users build, with the features of the other checks, whose dependencies are compiled already.
/// Then with the default features trains in one process, and asks for ranks.
pub(crate) fn run(build: &TestBuild) -> Result<()> {
    let mut clippy = build.cargo(&["clippy", "--lib", "--bins", "--examples"]);
    run_command(clippy.args(["--", "--deny", "warnings"]).env(PORTABLE, "1"))?;

    let mut test = portable(&["test", "--profile", UNOPTIMIZED, "--package", "candelabrum"]);
    run_command(test.args(["--test", "portable"]))?;

    let mut build = portable(&["build", "--profile", UNOPTIMIZED, "--package", "candelabrum"]);
    run_command(build.args(["--example", "regression"]))?;
    let program = target_folder().join(UNOPTIMIZED).join("examples/regression");
    run_command(Command::new(&program).args(["--epochs", "1"]))?;
    let refused = Command::new(&program).args(["--epochs", "1", "--workers", "2"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && said.contains(NO_RANKS), "--workers 2 says: {said}");
    println!("--workers 2 says: {}", said.trim());
    Ok(())
}

fn portable(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.env(PORTABLE, "1").env("RUSTFLAGS", DENY_WARNINGS);
    command
}
