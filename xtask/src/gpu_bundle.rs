//! `cargo xtask gpu-bundle`: one folder that checks and measures everything on a machine with a GPU,
//! without Rust and without the repository.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checkout::{repo_root, target_folder};
use crate::cuda::toolkit;
use crate::machine;
use crate::shell::{cargo, output, run as run_command};
use crate::tidy::collect_files;

/// The largest bundle. Some machines with a GPU accept no larger file.
const MOST_BYTES: u64 = 40 << 20;

/// NVIDIA's compiler of kernels at run time. It needs no GPU.
const NVRTC: &str = "libnvrtc.so.13";

/// The programs of the bundle: the arguments of cargo that choose each, and the folder below the
/// profile's in which cargo puts it.
const PROGRAMS: [([&str; 2], &str); 5] = [
    (["--test", "gpu"], "deps"),
    (["--test", "ops"], "deps"),
    (["--test", "conformance"], "deps"),
    (["--example", "mnist_dist"], "examples"),
    (["--bin", "bench-player"], ""),
];

/// Builds the folder.
pub(crate) fn build() -> Result<PathBuf> {
    let variables = toolkit()?;
    let kernels = target_folder().join("gpu-bundle-kernels");
    compile_kernels(&variables, &kernels)?;
    let folder = target_folder().join("gpu");
    for is_test in [true, false] {
        let mut command = cargo(&[if is_test { "test" } else { "build" }, "--release"]);
        if is_test {
            command.arg("--no-run");
        }
        // For the whole workspace, so that all programs have one set of features.
        command.args(["--workspace", "--features", "candelabrum/cuda"]);
        let programs = PROGRAMS.iter().filter(|(chosen, _)| (chosen[0] == "--test") == is_test);
        command.args(programs.flat_map(|(chosen, _)| chosen));
        command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env("CARGO_TARGET_DIR", &folder);
        run_command(&mut command)?;
    }
    let bundle = target_folder().join("gpu-bundle");
    if bundle.exists() {
        fs::remove_dir_all(&bundle).context("remove the last bundle")?;
    }
    let programs = bundle.join("programs");
    fs::create_dir_all(&programs).with_context(|| format!("make {}", programs.display()))?;
    for ([_, name], built) in PROGRAMS {
        let from = newest(&folder.join("release").join(built), name)?;
        let to = programs.join(name);
        copy(&from, &to)?;
        // Each program has candle's kernels in it, as text.
        run_command(Command::new("gzip").arg("-9").arg(&to))?;
    }
    if kernels.exists() {
        let to = bundle.join("kernels");
        fs::rename(&kernels, &to)
            .with_context(|| format!("move the kernels to {}", to.display()))?;
    }
    let root = repo_root();
    copy(&root.join("scripts/cuda/bundle.py"), &bundle.join("run.py"))?;
    copy(&root.join("scripts/bench_step.py"), &bundle.join("bench_step.py"))?;
    let commit = output(Command::new("git").args(["describe", "--always", "--dirty"]));
    let commit = commit.unwrap_or_else(|| "not in a repository".to_owned());
    fs::write(bundle.join("BUILT"), commit).context("write BUILT")?;

    let mut files = Vec::new();
    collect_files(&bundle, &mut files)?;
    let bytes: u64 = files.iter().map(|file| file.metadata().map_or(0, |data| data.len())).sum();
    println!("{}: {:.1} MB", bundle.display(), bytes as f64 / 1e6);
    ensure!(bytes <= MOST_BYTES, "the bundle has {bytes} bytes, more than {MOST_BYTES}");
    Ok(bundle)
}

/// Compiles our kernels by NVRTC into this folder, if the toolkit has it. A mistake in a kernel would
/// otherwise show only on the other machine.
fn compile_kernels(variables: &[(String, OsString)], kernels: &Path) -> Result<()> {
    if kernels.exists() {
        fs::remove_dir_all(kernels).context("remove the last kernels")?;
    }
    let home = variables.iter().find(|(name, _)| name == "CUDA_HOME").map(|(_, home)| home);
    let Some(home) = home.cloned().or_else(|| env::var_os("CUDA_HOME")) else { return Ok(()) };
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
        return run_command(command.arg(bundle.join("run.py")).args(["--out", "gpu-check.json"]));
    }
    println!(
        "built, not run: no GPU here. On a machine that has one, with NCCL, cuDNN and CUDA's \
         libraries (those of a PyTorch for CUDA will do), copy the folder and run\n  python3 \
         {}/run.py",
        bundle.display()
    );
    Ok(())
}

/// The newest program of this name. cargo puts a hash into the names of tests, so an older build may
/// be in the same folder.
fn newest(folder: &Path, name: &str) -> Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let rest = file.strip_prefix(name);
        rest.is_some_and(|rest| (rest.is_empty() || is_hash(rest)) && path.is_file())
    };
    let entries = folder.read_dir().with_context(|| format!("read {}", folder.display()))?;
    let programs = entries.flatten().map(|entry| entry.path()).filter(is_program);
    let newest = programs.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.with_context(|| format!("no {name} in {}", folder.display()))
}

/// Whether this is `-` and a hash.
fn is_hash(text: &str) -> bool {
    text.strip_prefix('-')
        .is_some_and(|hash| !hash.is_empty() && hash.chars().all(|c| c.is_ascii_hexdigit()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_program_is_taken_and_no_other_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(newest(folder.path(), "conformance").is_err());
        for name in
            ["conformance-1.d", "libconformance-1.rlib", "conformance-abc", "conformance_gpu-abc"]
        {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        let found = newest(folder.path(), "conformance").expect("one");
        assert!(found.ends_with("conformance-abc"));
    }
}
