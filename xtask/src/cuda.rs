//! The CUDA build. Every machine checks it, with a replacement for nvcc that compiles no kernel.
//! `gpu_bundle.rs` builds it with nvcc. docs/gpu.md lists which parts have run.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};

use crate::checkout::repo_root;
use crate::machine;
use crate::shell::{cargo, output, run as run_command};

/// Runs clippy over the CUDA code. It needs no CUDA: only programs link the libraries, and a check
/// builds no programs.
pub(crate) fn clippy() -> Result<()> {
    let with_mpi = machine::lacks_for_mpi().is_empty();
    let with_mpi = with_mpi.then_some("candelabrum/cuda,candelabrum/mpi");
    for features in ["candelabrum/cuda"].into_iter().chain(with_mpi) {
        let mut command = cargo(&["clippy", "--workspace", "--features", features]);
        run_command(with_stand_in(command.args(["--", "--deny", "warnings"])))?;
    }
    Ok(())
}

/// The environment in which build scripts find the replacement for nvcc.
fn with_stand_in(command: &mut Command) -> &mut Command {
    let folder = repo_root().join("scripts/cuda/stand-in");
    let bin = folder.join("bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin.clone()].into_iter().chain(env::split_paths(&path)));
    command
        .env("CUDA_HOME", &folder)
        .env("CUDA_PATH", &folder)
        .env("NVCC", bin.join("nvcc"))
        .env("PATH", path.unwrap_or_else(|_| bin.into_os_string()))
        .env("CUDA_COMPUTE_CAP", "90")
        .env("CUDARC_CUDA_VERSION", "13000")
}

/// The environment of a build with nvcc: the current one if it has nvcc, otherwise that of a
/// toolkit made of Python wheels.
pub(crate) fn toolkit() -> Result<Vec<(String, OsString)>> {
    if crate::shell::find_program("nvcc").is_some() {
        return Ok(Vec::new());
    }
    let script = repo_root().join("scripts/cuda/toolkit.sh");
    let exports = output(&mut Command::new(&script));
    let exports = exports.with_context(|| {
        format!("no nvcc on the PATH, and {} could not make one", script.display())
    })?;
    let path = env::var("PATH").unwrap_or_default();
    let parse = |line: &str| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.replace("$PATH", &path).into()))
    };
    Ok(exports.lines().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stand_in_answers_what_build_scripts_ask() {
        let nvcc = repo_root().join("scripts/cuda/stand-in/bin/nvcc");
        let version = output(Command::new(&nvcc).arg("--version")).expect("a version");
        // cudarc's build script reads the fourth line.
        assert!(version.lines().nth(3).is_some_and(|line| line.contains("release 13.0")));
        assert!(output(Command::new(&nvcc).arg("--list-gpu-code")).is_some());
    }
}
