//! `cargo xtask gpu-bundle`: one folder that checks and measures everything on a machine with a
//! GPU, without Rust and without the repository.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cargo_metadata::Artifact;
use fs_err as fs;

use crate::checkout::{repo_root, target_folder};
use crate::kernels::NVRTC;
use crate::machine;
use crate::shell::{cargo, find_program, output, run as run_command};
use crate::test::build::artifacts;
use crate::tidy::files_below;

/// The largest bundle. Some machines with a GPU accept no larger file.
const MOST_BYTES: u64 = 40 << 20;

/// The test of `run.py`, beside it.
const REHEARSAL: &str = "rehearsal.py";

/// The programs of the bundle, as arguments of cargo.
const PROGRAMS: [[&str; 2]; 5] = [
    ["--test", "gpu"],
    ["--test", "ops"],
    ["--test", "conformance"],
    ["--example", "mnist_dist"],
    ["--bin", "bench-player"],
];

/// Builds the folder.
pub(crate) fn build() -> Result<PathBuf> {
    let variables = toolkit()?;
    let bundle = target_folder().join("gpu-bundle");
    if bundle.exists() {
        fs::remove_dir_all(&bundle)?;
    }
    compile_kernels(&variables, &bundle.join("kernels"))?;
    // For the whole workspace, so that all programs have one set of features.
    let mut command = cargo(&["build", "--release", "--workspace"]);
    command.args(["--features", "candelabrum/cuda"]).args(PROGRAMS.as_flattened());
    command
        .envs(variables)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_TARGET_DIR", target_folder().join("gpu"));
    let program = |artifact: Artifact| Some((artifact.target.name, artifact.executable?));
    let built: BTreeMap<_, _> = artifacts(&mut command)?.into_iter().filter_map(program).collect();
    let programs = bundle.join("programs");
    fs::create_dir_all(&programs)?;
    for [_, name] in PROGRAMS {
        let to = programs.join(name);
        fs::copy(built.get(name).with_context(|| format!("cargo built no {name}"))?, &to)?;
        // Each program has candle's kernels in it, as text.
        run_command(Command::new("xz").arg(&to))?;
    }
    for script in scripts()? {
        fs::copy(&script, bundle.join(script.file_name().unwrap_or_default()))?;
    }
    let commit = output(Command::new("git").args(["describe", "--always", "--dirty"]));
    let commit = commit.unwrap_or_else(|| "not in a repository".to_owned());
    fs::write(bundle.join("BUILT"), commit)?;

    let sizes = files_below(&bundle)?.into_iter().map(|file| fs::metadata(file).map(|it| it.len()));
    let bytes = sizes.sum::<std::io::Result<u64>>()?;
    println!("{}: {:.1} MB", bundle.display(), bytes as f64 / 1e6);
    ensure!(bytes <= MOST_BYTES, "the bundle has {bytes} bytes, more than {MOST_BYTES}");
    Ok(bundle)
}

/// `run.py` and the files that it uses.
fn scripts() -> Result<Vec<PathBuf>> {
    let root = repo_root();
    let mut scripts = files_below(&root.join("scripts/cuda/check"))?;
    scripts.retain(|file| !file.ends_with(REHEARSAL));
    scripts.extend(["bench_step.py", "networks.py"].map(|name| root.join("scripts").join(name)));
    Ok(scripts)
}

/// Runs the folder's `run.py` with stand-ins for its programs, and some of them fail, hang or die on purpose.
pub(crate) fn rehearse() -> Result<()> {
    run_command(Command::new("python3").arg(repo_root().join("scripts/cuda/check").join(REHEARSAL)))
}

/// The environment of a build with nvcc: the current one if it has nvcc, otherwise that of a
/// toolkit made of Python wheels.
fn toolkit() -> Result<BTreeMap<String, String>> {
    if find_program("nvcc").is_some() {
        return Ok(BTreeMap::new());
    }
    let exports = output(&mut Command::new(repo_root().join("scripts/cuda/toolkit.sh")));
    let exports =
        exports.context("no nvcc on the PATH, and scripts/cuda/toolkit.sh could not make one")?;
    let path = env::var("PATH").unwrap_or_default();
    let variables =
        exports.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.replace("$PATH", &path))).collect())
}

/// Compiles our kernels by NVRTC into this folder, if the toolkit has it. A mistake in a kernel
/// would otherwise show only on the other machine.
fn compile_kernels(variables: &BTreeMap<String, String>, kernels: &Path) -> Result<()> {
    let home = variables.get("CUDA_HOME").cloned().or_else(|| env::var("CUDA_HOME").ok());
    let Some(home) = home else { return Ok(()) };
    let folders = ["lib", "lib64"].map(|lib| Path::new(&home).join(lib));
    let Some(folder) = folders.iter().find(|folder| folder.join(NVRTC).exists()) else {
        println!("our kernels are not compiled here: {NVRTC} is not in the toolkit");
        return Ok(());
    };
    let mut command = Command::new("python3");
    command.arg("scripts/cuda/compile_kernels.py").arg(folder.join(NVRTC)).arg(".");
    command.arg("--cache").arg(kernels);
    run_command(command.env("LD_LIBRARY_PATH", folder).current_dir(repo_root()))
}

/// Builds the folder and runs it, if this machine has a GPU.
pub(crate) fn check() -> Result<()> {
    let bundle = build()?;
    if machine::has_gpu() {
        let mut command = Command::new("python3");
        return run_command(command.arg(bundle.join("run.py")).args(["--out", "gpu-check"]));
    }
    println!(
        "built, not run: no GPU here. On a machine that has one, with NCCL, cuDNN and CUDA's \
         libraries (those of a PyTorch for CUDA will do), copy the folder and run\n  python3 \
         {}/run.py --out RESULTS",
        bundle.display()
    );
    Ok(())
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
