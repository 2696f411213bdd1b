//! Child processes with a time limit: this program again, for one of its tests.

use std::fs;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "SOFTGPU_TEST_ROLE";
const LIMIT: Duration = Duration::from_secs(60);

/// How a child ended, and what it printed on stdout and stderr.
#[derive(Debug)]
pub(crate) struct EndedProgram {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

/// Whether this process is a child that plays a role in the test.
pub(crate) fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Runs only the test of this full name in a child, with these variables.
pub(crate) fn run(test: &str, variables: &[(&str, &str)]) -> EndedProgram {
    // Files and not pipes: nobody would read them while the child runs.
    let mut output = tempfile();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, "1").envs(variables.iter().copied()).stdin(Stdio::null());
    command.stdout(output.1.try_clone().expect("a file"));
    command.stderr(output.1.try_clone().expect("a file"));
    let mut child = command.spawn().expect("start a child");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("ask after the child") {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("end the child");
            child.wait().expect("the child ended");
            panic!("{test} took longer than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = Vec::new();
    output.1 = fs::File::open(&output.0).expect("the output");
    output.1.read_to_end(&mut text).expect("the output");
    fs::remove_file(&output.0).expect("remove the output");
    EndedProgram { status, output: String::from_utf8_lossy(&text).into_owned() }
}

/// A new file and its path.
fn tempfile() -> (std::path::PathBuf, fs::File) {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("softgpu-test-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = fs::OpenOptions::new().create(true).append(true).open(&path).expect("a file");
    (path, file)
}
