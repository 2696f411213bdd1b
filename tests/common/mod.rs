//! Runs of the examples as by a user, with a time limit.

#![allow(dead_code, reason = "every test binary uses its own part")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail where all of it is used")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum::datasets::Mnist;
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
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
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
    let mut dir = std::env::current_exe().expect("a test knows its own program");
    dir.pop(); // deps
    dir.pop();
    dir
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

/// A running program. Dropping this value kills the program.
pub(crate) struct Running {
    pub(crate) child: Child,
    start: Instant,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { child: child.expect("the program starts"), start: Instant::now() }
    }

    /// Waits at most `limit` for the end. Returns the output and the time since the start.
    pub(crate) fn finish(mut self, limit: Duration) -> (Output, Duration) {
        let mut stdout = self.child.stdout.take().expect("piped");
        let mut stderr = self.child.stderr.take().expect("piped");
        let read = |stream: &mut dyn Read| {
            let mut bytes = Vec::new();
            drop(stream.read_to_end(&mut bytes));
            bytes
        };
        let out = thread::spawn(move || read(&mut stdout));
        let err = thread::spawn(move || read(&mut stderr));
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > end {
                drop(self.child.kill());
                panic!("still running after {limit:?}");
            }
            thread::sleep(Duration::from_millis(5));
        };
        let took = self.start.elapsed();
        let (stdout, stderr) = (out.join().expect("reader"), err.join().expect("reader"));
        (Output { status, stdout, stderr }, took)
    }

    /// The processes that the program has started, as pairs of rank and process number.
    pub(crate) fn ranks(&self) -> Vec<(usize, i32)> {
        let launcher = self.child.id().to_string();
        let mut ranks = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let value = |name: &str| {
                environment.split(|&byte| byte == 0).find_map(|variable| {
                    let text = String::from_utf8_lossy(variable).into_owned();
                    text.strip_prefix(&format!("{name}=")).map(str::to_owned)
                })
            };
            if value("CANDELABRUM_PARENT").as_deref() == Some(&launcher) {
                let rank = value("CANDELABRUM_RANK").and_then(|text| text.parse().ok());
                ranks.extend(rank.map(|rank| (rank, pid)));
            }
        }
        ranks.sort_unstable();
        ranks
    }

    /// Waits until the program has started `count` ranks and printed the first epoch's line.
    pub(crate) fn wait_for_ranks(&self, count: usize) -> Vec<(usize, i32)> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let ranks = self.ranks();
            if ranks.len() == count {
                return ranks;
            }
            assert!(Instant::now() < end, "only {ranks:?} of {count} ranks started");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
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

/// The names in /dev/shm, to check that nothing is left there. Open MPI's names are left out,
/// because its jobs may run beside the tests.
pub(crate) fn shared_memory_names() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.contains("vader_segment") && !name.contains("sm_segment"));
    names.sort();
    names
}
