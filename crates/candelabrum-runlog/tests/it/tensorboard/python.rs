//! TensorBoard's own reader, in a Python that has it.

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Prints each scalar of a directory: tag, step, value.
const SCRIPT: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
run.Reload()
for tag in sorted(run.Tags()['scalars']):
    for event in run.Scalars(tag):
        assert event.wall_time > 1.7e9
        print(tag, event.step, event.value)
";

/// The time in which Python must answer. It imports numpy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A Python with the module: the repository's `.venv`, `$CANDELABRUM_PYTHON`, `python3`.
pub(crate) fn with_tensorboard() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let named = env::var_os("CANDELABRUM_PYTHON").map(PathBuf::from);
    let candidates = [Some(own), named, Some(PathBuf::from("python3"))];
    let question = "import importlib.util as u; exit(u.find_spec('tensorboard') is None)";
    let answers = |python: &PathBuf| run(Command::new(python).args(["-c", question])).is_some();
    candidates.into_iter().flatten().find(answers)
}

/// The scalars of a directory, one per line.
pub(crate) fn read_scalars(python: &Path, dir: &Path) -> String {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).arg(dir).env("TF_CPP_MIN_LOG_LEVEL", "3");
    run(&mut command).expect("TensorBoard fails: see above")
}

/// The output of a command that succeeds before the deadline.
fn run(command: &mut Command) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output");
    command.stdin(Stdio::null()).stdout(File::create(&path).unwrap());
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("Python gave no answer for {DEADLINE:?}");
            }
        }
    };
    status.success().then(|| std::fs::read_to_string(&path).unwrap())
}
