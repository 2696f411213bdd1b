//! `cargo xtask setup`: installs the missing parts that `cargo xtask test --all` needs, or downloads pretrained models.
//!
//! It checks for the parts and not for package names. So it keeps an MPICH, or an Open MPI built
//! from source.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checkout::repo_root;
use crate::machine;
use crate::shell::{find_program, run as run_command};

pub(crate) mod models;

#[derive(Debug, clap::Args)]
pub(crate) struct SetupArgs {
    /// Also make a virtual environment `.venv` with PyTorch and TensorBoard, for the benchmarks, golden files
    /// and the test of event files
    #[arg(long)]
    pytorch: bool,
    /// Only download two small pretrained models, 190 MB in $CANDELABRUM_MODELS or else the user's cache, for the
    /// examples and for tests on real weights
    #[arg(long, conflicts_with = "pytorch")]
    models: bool,
}

pub(crate) fn run(args: &SetupArgs) -> Result<()> {
    if args.models {
        return models::fetch();
    }
    install_missing()?;
    if args.pytorch { install_pytorch() } else { Ok(()) }
}

/// Installs the packages with what MPI and the software GPU of the GPU tests lack.
fn install_missing() -> Result<()> {
    const PARTS: &str = "MPI library, mpiexec, libclang, g++, ar and python3";
    let find_missing = || [machine::lacks_for_mpi(), machine::lacks_for_softgpu()].concat();
    let missing = find_missing();
    if missing.is_empty() {
        println!("{PARTS}: already here");
        return Ok(());
    }
    println!("missing: {}", missing.join(", "));
    let packages = packages_for(&missing);
    ensure!(
        find_program("apt-get").is_some(),
        "no apt-get on this system. Install with its own package manager: {} (Debian calls \
         them {})",
        missing.join(", "),
        packages.join(", ")
    );
    run_command(apt_get()?.arg("update"))?;
    let options = ["install", "--yes", "--no-install-recommends"];
    run_command(apt_get()?.args(options).args(&packages))?;
    let still = find_missing();
    ensure!(still.is_empty(), "still missing after the installation: {}", still.join(", "));
    println!("{PARTS}: installed");
    Ok(())
}

/// The Debian packages with the missing parts.
fn packages_for(missing: &[&str]) -> Vec<&'static str> {
    let package = |part: &&str| match *part {
        "an MPI library" | "mpiexec" => &["libopenmpi-dev", "openmpi-bin"][..],
        "libclang" => &["libclang-dev"],
        "g++" | "ar" => &["g++"],
        "python3" => &["python3"],
        _ => &[],
    };
    BTreeSet::from_iter(missing.iter().flat_map(package).copied()).into_iter().collect()
}

/// `apt-get` as root: directly, or through sudo.
fn apt_get() -> Result<Command> {
    let is_root = rustix::process::geteuid().is_root();
    let has_sudo = find_program("sudo").is_some();
    ensure!(is_root || has_sudo, "not root and no sudo here: run `cargo xtask setup` as root");
    let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
    if !is_root {
        command.args(["--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
    }
    command.env("DEBIAN_FRONTEND", "noninteractive");
    Ok(command)
}

/// The packages in `.venv`.
const PYTHON_PACKAGES: [&str; 5] = ["torch", "torchvision", "numpy", "safetensors", "tensorboard"];

fn install_pytorch() -> Result<()> {
    let folder = repo_root().join(".venv");
    let python = folder.join("bin/python");
    let has_all = |python: &Path| PYTHON_PACKAGES.iter().all(|name| machine::imports(python, name));
    if has_all(&python) {
        println!("PyTorch and TensorBoard in .venv: already here");
        return Ok(());
    }
    run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("cannot make .venv: on Debian, install python3-venv")?;
    let mut pip = Command::new(&python);
    run_command(pip.args(["-m", "pip", "install", "--no-input"]).args(PYTHON_PACKAGES))?;
    let names = PYTHON_PACKAGES.join(", ");
    ensure!(has_all(&python), "{names}: not all of them can be imported by .venv/bin/python");
    println!("PyTorch and TensorBoard in .venv: installed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_installed() {
        assert_eq!(packages_for(&["libclang"]), ["libclang-dev"]);
        assert_eq!(packages_for(&["g++", "ar", "python3"]), ["g++", "python3"]);
        assert_eq!(packages_for(&["mpiexec"]), ["libopenmpi-dev", "openmpi-bin"]);
        let all = packages_for(&["an MPI library", "mpiexec", "libclang"]);
        assert_eq!(all, ["libclang-dev", "libopenmpi-dev", "openmpi-bin"]);
    }
}
