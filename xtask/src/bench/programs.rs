//! The programs that are measured: builds of our players, a C program, and a Python with PyTorch.

use std::env;
use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::checkout::{repo_root, target_folder};
use crate::machine;
use crate::shell::{cargo, output, run};

const PACKAGE: &str = "candelabrum-bench-player";
const PROGRAM: &str = "bench-player";

/// The programs of a run.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Our players, built from this checkout.
    pub(crate) player: PathBuf,
    /// Our players of another commit.
    pub(crate) other: Option<OtherCommit>,
    /// The C program that reduces over MPI.
    pub(crate) c: Option<PathBuf>,
    /// A Python with PyTorch.
    pub(crate) python: Option<PathBuf>,
    /// Whether the players were built with MPI.
    pub(crate) has_mpi: bool,
}

/// Another commit's players.
#[derive(Debug)]
pub(crate) struct OtherCommit {
    pub(crate) commit: String,
    pub(crate) program: PathBuf,
}

/// The programs that a benchmark can use besides our players.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NeededPrograms {
    pub(crate) mpi: bool,
    pub(crate) c: bool,
    pub(crate) python: bool,
}

impl Programs {
    /// Builds and finds the programs, and says in a line which of them this machine lacks. In a
    /// comparison with another commit, only our players take part.
    #[expect(clippy::print_stdout, reason = "a benchmark says what it leaves out")]
    pub(crate) fn find(needed: NeededPrograms, against: Option<&str>) -> Result<Self> {
        let lacks = if needed.mpi { machine::lacks_for_mpi() } else { Vec::new() };
        if !lacks.is_empty() {
            println!("MPI: no {} here, left out (cargo xtask setup)", lacks.join(", no "));
        }
        let has_mpi = needed.mpi && lacks.is_empty();
        let python = (needed.python && against.is_none()).then(machine::python_with_torch);
        if python == Some(None) {
            println!("PyTorch is not installed: left out (cargo xtask setup --pytorch)");
        }
        let other = against.map(|commit| build_commit(commit, has_mpi)).transpose()?;
        let player = build(&mut cargo(&[]), &repo_root(), has_mpi, &target_folder())?;
        let c = (needed.c && has_mpi && against.is_none()).then(compile_c).transpose()?;
        Ok(Self { player, other, c, python: python.flatten(), has_mpi })
    }
}

/// Compiles the C program against MPI and returns its path.
fn compile_c() -> Result<PathBuf> {
    let folder = target_folder().join("release");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = folder.join("bench-allreduce-c");
    let compiler = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "benches/player/allreduce.c", "-o"]).arg(&program);
    run(command.current_dir(repo_root()))?;
    Ok(program)
}

/// Builds the players of the checkout `tree` with the release profile and returns the program's path.
fn build(command: &mut Command, tree: &Path, with_mpi: bool, target: &Path) -> Result<PathBuf> {
    command.args(["build", "--release", "--package", PACKAGE]);
    command.args(with_mpi.then_some("--features=mpi"));
    // Older players have pretrained models without a feature.
    let manifest = fs::read_to_string(tree.join("benches/player/Cargo.toml"))?;
    command.args(manifest.contains("\nfinetune =").then_some("--features=finetune"));
    run(command)?;
    Ok(target.join("release").join(format!("{PROGRAM}{EXE_SUFFIX}")))
}

/// Builds the players of another commit, in a work tree and a target directory of their own: cargo
/// would take one checkout's build for another's.
#[expect(clippy::print_stdout, reason = "the first such build takes minutes")]
fn build_commit(commit: &str, with_mpi: bool) -> Result<OtherCommit> {
    let git = |folder: &Path| {
        let mut git = Command::new("git");
        git.arg("-C").arg(folder);
        git
    };
    let root = repo_root();
    let name = format!("{commit}^{{commit}}");
    let short = output(git(&root).args(["rev-parse", "--short", "--verify", "--quiet", &name]));
    let short = short.with_context(|| format!("--against: this repository has no {commit}"))?;
    let folder = target_folder().join("against");
    let (tree, target) = (folder.join("tree"), folder.join("target"));
    if !tree.join(".git").exists() {
        println!("the first build of another commit compiles candle again, which takes minutes");
        run(git(&root).args(["worktree", "prune"]))?;
        run(git(&root).args(["worktree", "add", "--quiet", "--detach"]).arg(&tree).arg(&short))?;
    }
    run(git(&tree).args(["checkout", "--quiet", "--force", "--detach", &short]))?;
    let has_players = tree.join("benches/player/Cargo.toml").exists();
    ensure!(
        has_players,
        "--against: {short} has no {PROGRAM}, it is older than this form of benchmark"
    );
    let mut command = cargo(&[]);
    command.current_dir(&tree).env("CARGO_TARGET_DIR", &target);
    let program = build(&mut command, &tree, with_mpi, &target)?;
    Ok(OtherCommit { commit: short, program })
}
