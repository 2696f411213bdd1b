//! The CUDA build. Every machine checks it, with a replacement for nvcc that compiles no kernel.
//! `cargo xtask gpu-check` builds it with nvcc and runs it. docs/gpu.md lists which parts have run.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
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

pub(crate) fn target_folder() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo_root().join("target"), PathBuf::from)
}

/// Builds the conformance suite with CUDA and runs it over NCCL, with several ranks on one GPU.
/// Without a GPU, it builds the program and prints how to run it on another machine.
pub(crate) fn gpu_check() -> Result<()> {
    let variables = toolkit()?;
    let folder = target_folder().join("gpu");
    let mut build = cargo(&["test", "--release", "--no-run", "--package", "candelabrum-dist"]);
    build
        .args(["--features", "cuda", "--test", "conformance"])
        .envs(variables)
        // Small enough to be copied to the machine with the GPU.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_TARGET_DIR", &folder);
    run_command(&mut build)?;
    let program = newest_program(&folder.join("release/deps"))?;
    let arguments = ["nccl", "--nocapture", "--test-threads=1"];
    if !machine::has_gpu() {
        println!(
            "built, not run: no GPU here. On a machine that has one, with libnccl.so.2 and CUDA's \
             libraries in LD_LIBRARY_PATH:\n  REQUIRE_GPUS=1 {} {}",
            program.display(),
            arguments.join(" ")
        );
        return Ok(());
    }
    run_command(Command::new(program).args(arguments).env("REQUIRE_GPUS", "1"))
}

/// The environment of a build with nvcc: the current one if it has nvcc, otherwise that of a
/// toolkit made of Python wheels.
fn toolkit() -> Result<Vec<(String, OsString)>> {
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

/// The newest program. cargo puts a hash into the name, so an older build may be in the same
/// folder.
fn newest_program(folder: &Path) -> Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("conformance-") && !name.contains('.')
    };
    let entries = folder.read_dir().with_context(|| format!("read {}", folder.display()))?;
    let programs = entries.flatten().map(|entry| entry.path()).filter(is_program);
    let newest = programs.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.with_context(|| format!("no conformance suite in {}", folder.display()))
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

    #[test]
    fn the_newest_suite_is_taken_and_no_other_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(newest_program(folder.path()).is_err());
        for name in ["conformance-1.d", "libconformance-1.rlib", "conformance-abc"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        let found = newest_program(folder.path()).expect("one");
        assert!(found.ends_with("conformance-abc"));
    }
}
