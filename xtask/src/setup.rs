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
    if args.pytorch {
        install_pytorch()?;
    }
    Ok(())
}

fn install_mpi() -> Result<()> {
    let lacks = machine::lacks_for_mpi();
    if lacks.is_empty() {
        println!("MPI library, mpiexec and libclang: already here");
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
    let still = machine::lacks_for_mpi();
    ensure!(still.is_empty(), "still missing after the installation: {}", still.join(", "));
    println!("MPI library, mpiexec and libclang: installed");
    Ok(())
}

/// The Debian packages with the missing parts.
fn packages_for(lacks: &[&str]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    if lacks.iter().any(|&what| what != "libclang") {
        packages.extend(["libopenmpi-dev", "openmpi-bin"]);
    }
    if lacks.contains(&"libclang") {
        packages.push("libclang-dev");
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
        assert_eq!(packages_for(&["mpiexec"]), ["libopenmpi-dev", "openmpi-bin"]);
        let all = packages_for(&["an MPI library", "mpiexec", "libclang"]);
        assert_eq!(all, ["libopenmpi-dev", "openmpi-bin", "libclang-dev"]);
    }
}
