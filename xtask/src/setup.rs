//! `cargo xtask setup`: installs the missing parts that `cargo xtask test --all` needs.
//!
//! It checks for the parts and not for package names. So it keeps an MPICH, or an Open MPI built
//! from source.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::checkout::repo_root;
use crate::machine;
use crate::shell::{find_program, output, run as run_command};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also make a virtual environment `.venv` with PyTorch, for bench-step and golden files
    #[arg(long)]
    pytorch: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    install_mpi()?;
    install_compiler()?;
    if args.pytorch {
        install_pytorch()?;
    }
    Ok(())
}

fn install_mpi() -> Result<()> {
    install("MPI library, mpiexec and libclang", machine::lacks_for_mpi)
}

/// What compiles the software GPU of the GPU tests.
fn install_compiler() -> Result<()> {
    install("g++, ar and python3", machine::lacks_for_softgpu)
}

/// Installs the packages with what `lacks` names. `parts` names all of the parts.
fn install(parts: &str, lacks: fn() -> Vec<&'static str>) -> Result<()> {
    let still_missing = lacks;
    let lacks = lacks();
    if lacks.is_empty() {
        println!("{parts}: already here");
        return Ok(());
    }
    println!("missing: {}", lacks.join(", "));
    let packages = packages_for(&lacks);
    if find_program("apt-get").is_none() {
        bail!(
            "no apt-get on this system. Install with its own package manager: {} (Debian calls \
             them {})",
            lacks.join(", "),
            packages.join(", ")
        );
    }
    run_command(&mut apt_get(&["update"])?)?;
    let mut install = apt_get(&["install", "--yes", "--no-install-recommends"])?;
    run_command(install.args(&packages))?;
    let still = still_missing();
    ensure!(still.is_empty(), "still missing after the installation: {}", still.join(", "));
    println!("{parts}: installed");
    Ok(())
}

/// The Debian packages with the missing parts.
fn packages_for(lacks: &[&str]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    let lacks_any = |parts: &[&str]| parts.iter().any(|part| lacks.contains(part));
    if lacks_any(&["an MPI library", "mpiexec"]) {
        packages.extend(["libopenmpi-dev", "openmpi-bin"]);
    }
    if lacks_any(&["libclang"]) {
        packages.push("libclang-dev");
    }
    if lacks_any(&["g++", "ar"]) {
        packages.push("g++");
    }
    if lacks_any(&["python3"]) {
        packages.push("python3");
    }
    packages
}

/// `apt-get <args>` as root: directly, or through sudo.
fn apt_get(args: &[&str]) -> Result<Command> {
    let is_root = output(Command::new("id").arg("-u")).as_deref() == Some("0");
    let mut command = if is_root {
        Command::new("apt-get")
    } else if find_program("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        sudo
    } else {
        bail!("not root and no sudo here: run `cargo xtask setup` as root");
    };
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    Ok(command)
}

/// The packages in `.venv`.
const PYTHON_PACKAGES: [&str; 3] = ["torch", "numpy", "safetensors"];

fn install_pytorch() -> Result<()> {
    let folder = repo_root().join(".venv");
    let python = folder.join("bin/python");
    let has_all = |python: &Path| PYTHON_PACKAGES.iter().all(|name| machine::imports(python, name));
    if has_all(&python) {
        println!("PyTorch in .venv: already here");
        return Ok(());
    }
    run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("cannot make .venv: on Debian, install python3-venv")?;
    let mut pip = Command::new(&python);
    run_command(pip.args(["-m", "pip", "install", "--no-input"]).args(PYTHON_PACKAGES))?;
    ensure!(has_all(&python), "PyTorch still cannot be imported by .venv/bin/python");
    println!("PyTorch in .venv: installed");
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
        assert_eq!(all, ["libopenmpi-dev", "openmpi-bin", "libclang-dev"]);
    }
}
