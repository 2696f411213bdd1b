//! Runs of the examples as by a user, with a time limit.

#![allow(dead_code, reason = "every test binary uses its own part")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail where all of it is used")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum::datasets::Mnist;
pub(crate) use candelabrum_testkit::Running;
use candelabrum_testkit::leftovers::processes_with;
use tempfile::TempDir;

/// The executable of an example. It is built first if it is missing or out of date.
pub(crate) fn example(name: &str) -> PathBuf {
    programs().join("examples").join(name)
}

/// The executable of the command `candelabrum`, built as [`example`] is.
pub(crate) fn command() -> PathBuf {
    programs().join("candelabrum")
}

/// The directory of the executables, which are built at the first call.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `cargo xtask test` has built them.
        if std::env::var_os("CANDELABRUM_PROGRAMS_ARE_BUILT").is_none() {
            build();
        }
        let mut dir = std::env::current_exe().expect("a test knows its own program");
        dir.pop(); // deps
        dir.pop();
        dir
    })
}

fn build() {
    let mut build = Command::new(env!("CARGO"));
    // For the whole workspace and with examples, like `cargo test --workspace`: for this package alone,
    // or for the command alone, which needs no dev-dependencies, cargo would choose other features of the
    // dependencies and build most of them again.
    build.args(["build", "--quiet", "--workspace", "--examples", "--bin", "candelabrum"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    // The variables that cargo sets for a test would make build scripts run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    if cfg!(feature = "mpi") {
        build.args(["--features", "candelabrum/mpi"]);
    }
    if cfg!(feature = "cuda") {
        build.args(["--features", "candelabrum/cuda"]);
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the programs do not build");
}

/// `mnist_dist` with these options.
pub(crate) fn mnist_dist(options: &[&str]) -> Command {
    let mut command = Command::new(example("mnist_dist"));
    command.args(options).stdin(Stdio::null());
    command
}

/// A folder with MNIST's files, in which the digits are synthetic.
pub(crate) fn few_digits(train: usize, test: usize) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let digits = Mnist::synthetic(0, train, test).expect("digits");
    for (part, data) in [("train", digits.train), ("t10k", digits.test)] {
        let header = |magic: u32, dims: &[u32]| -> Vec<u8> {
            [magic, data.len() as u32].iter().chain(dims).flat_map(|n| n.to_be_bytes()).collect()
        };
        let (mut images, mut labels) = (header(0x803, &[28, 28]), header(0x801, &[]));
        for (image, label) in (0..data.len()).filter_map(|index| data.get(index)) {
            images.extend_from_slice(image);
            labels.push(label as u8);
        }
        for (what, bytes) in [("images-idx3", images), ("labels-idx1", labels)] {
            let path = dir.path().join(format!("{part}-{what}-ubyte"));
            std::fs::write(path, bytes).expect("the test's directory");
        }
    }
    dir
}

/// The processes that a launcher has started, as pairs of rank and process number.
pub(crate) fn ranks_of(launcher: &Running) -> Vec<(usize, i32)> {
    let launcher = launcher.child.id().to_string();
    let rank = |environment: &[String]| {
        environment.iter().find_map(|line| line.strip_prefix("CANDELABRUM_RANK="))?.parse().ok()
    };
    let ranks = processes_with("CANDELABRUM_PARENT", &launcher).into_iter();
    let ranks = ranks.filter_map(|(process, environment)| {
        Some((rank(&environment)?, process.as_raw_nonzero().get()))
    });
    let mut ranks: Vec<(usize, i32)> = ranks.collect();
    ranks.sort_unstable();
    ranks
}

/// Waits until the launcher has started `count` ranks.
pub(crate) fn wait_for_ranks(launcher: &Running, count: usize) -> Vec<(usize, i32)> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let ranks = ranks_of(launcher);
        if ranks.len() == count {
            return ranks;
        }
        assert!(Instant::now() < end, "only {ranks:?} of {count} ranks started");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a training begins its first epoch.
#[track_caller]
pub(crate) fn wait_for_training(program: &Running) {
    program.wait_for("Starting Epoch 0:", Duration::from_secs(20));
}

/// Asserts that a program failed in order: exit code not 0, one line that begins with `error:` and
/// contains all of `parts`, no panic.
pub(crate) fn assert_one_line_error(output: &Output, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it succeeded: {stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(lines.len(), 1, "one line was expected: {stderr}");
    assert!(lines[0].starts_with("error: "), "{stderr}");
    for part in parts {
        assert!(lines[0].contains(part), "`{part}` is missing: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}
