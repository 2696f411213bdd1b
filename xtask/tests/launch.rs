//! `cargo xtask launch` from its command line to the ends of its processes, which are shells.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// The launcher with these arguments. The processes of a job write below `$FOLDER`.
struct Job {
    launcher: Option<Child>,
    folder: TempDir,
    start: Instant,
}

impl Job {
    fn start(options: &[&str], script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("launch").args(options).args(["--", "sh", "-c", script]);
        command.env("FOLDER", folder.path()).stdin(Stdio::null()).process_group(0);
        let launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { launcher: Some(launcher), folder, start: Instant::now() }
    }

    fn launcher(&self) -> Pid {
        Pid::from_child(self.launcher.as_ref().unwrap())
    }

    /// The content of a file that a process writes, once it is there.
    fn read(&self, name: &str) -> String {
        let read = || fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        wait_until(|| read().ends_with('\n'));
        read().trim().to_owned()
    }

    fn finish(mut self) -> (Output, Duration) {
        let mut launcher = self.launcher.take().unwrap();
        wait_until(|| launcher.try_wait().unwrap().is_some());
        let took = self.start.elapsed();
        (launcher.wait_with_output().unwrap(), took)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(launcher) = &mut self.launcher {
            drop(launcher.kill());
            drop(launcher.wait());
        }
    }
}

#[track_caller]
fn wait_until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "it took longer than {LIMIT:?}");
        sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs. One that has ended, and for which nobody has waited, does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
fn error_line(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim().to_owned()
}

const VARIABLES: &str = "echo $DMLC_ROLE $DMLC_TASK_ID $DMLC_NUM_WORKER $DMLC_NUM_SERVER \
     $DMLC_PS_ROOT_URI $DMLC_JOB_CLUSTER $MINE/$DMLC_PS_ROOT_PORT $CANDELABRUM_JOB";

#[test]
fn every_process_learns_its_role_as_from_mxnets_tracker() {
    let words = |options: &[&str]| {
        let (output, _) = Job::start(options, VARIABLES).finish();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let pairs = text.lines().map(|line| line.split_once('/').unwrap());
        let (roles, job): (BTreeSet<String>, BTreeSet<String>) =
            pairs.map(|(role, job)| (role.to_owned(), job.to_owned())).unzip();
        assert_eq!(job.len(), 1, "{job:?}");
        let job = job.into_iter().next().unwrap();
        let (port, word) = job.split_once(' ').unwrap();
        assert!(port.parse::<u16>().unwrap() > 0 && word.len() == 32, "{job}");
        (Vec::from_iter(roles), job)
    };
    let (roles, job) = words(&["-n", "2", "-s", "1", "--env", "MINE=a b"]);
    assert_eq!(
        roles,
        [
            "server 2 2 1 127.0.0.1 local a b",
            "worker 0 2 1 127.0.0.1 local a b",
            "worker 1 2 1 127.0.0.1 local a b",
        ]
    );
    // Without -s there are as many servers as workers.
    let (roles, other_job) = words(&["--num-workers", "1"]);
    assert_eq!(roles, ["server 1 1 1 127.0.0.1 local ", "worker 0 1 1 127.0.0.1 local "]);
    assert_ne!(job, other_job);
    assert_eq!(words(&["-n", "1", "-s", "0"]).0, ["worker 0 1 0 127.0.0.1 local "]);
}

#[test]
fn the_first_failure_is_named_and_ends_the_others() {
    for (script, expected) in [
        ("[ $DMLC_TASK_ID = 1 ] && exit 3; sleep 600", "error: worker 1 failed (exit status: 3)"),
        (
            "[ $DMLC_ROLE = server ] && kill -KILL $$; sleep 600",
            "error: server 0 failed (signal: 9 (SIGKILL))",
        ),
    ] {
        // The shell of worker 0 waits for another process, which ends, too.
        let script = format!(
            "if [ $DMLC_TASK_ID = 0 ]; then sleep 600 & echo $! >$FOLDER/sleeps; wait; fi; {script}"
        );
        let job = Job::start(&["-n", "2", "-s", "1"], &script);
        let sleeps = job.read("sleeps");
        let (output, took) = job.finish();
        assert_eq!(error_line(&output, 1), expected);
        assert!(took >= Duration::from_secs(2), "no time for the others: {took:?}");
        wait_until(|| !runs(&sleeps));
    }
}

#[test]
fn others_may_say_why_they_fail_too() {
    let script = "[ $DMLC_TASK_ID = 1 ] && exit 3; while [ -d $FOLDER ]; do sleep 0.3; \
                  echo worker 0 has noticed; exit 4; done";
    let (output, took) = Job::start(&["-n", "2", "-s", "0"], script).finish();
    assert_eq!(error_line(&output, 1), "error: worker 1 failed (exit status: 3)");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "worker 0 has noticed\n");
    // Nobody waits for processes that have ended.
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn an_interrupt_ends_all_processes() {
    for (signal, name, code) in [(Signal::INT, "SIGINT", 130), (Signal::TERM, "SIGTERM", 143)] {
        // The server does not listen.
        let script = "[ $DMLC_ROLE = server ] && trap '' TERM INT; \
                      echo $$ >$FOLDER/$DMLC_ROLE; while true; do sleep 0.1; done";
        let job = Job::start(&["-n", "1", "-s", "1"], script);
        let processes = [job.read("worker"), job.read("server")];
        kill_process(job.launcher(), signal).unwrap();
        let (output, _) = job.finish();
        assert_eq!(error_line(&output, code), format!("error: interrupted by {name}"));
        assert!(!processes.iter().any(|pid| runs(pid)));
    }
}

#[test]
fn the_launchers_death_ends_all_processes() {
    let job = Job::start(&["-n", "1", "-s", "1"], "echo $$ >$FOLDER/$DMLC_ROLE; exec sleep 600");
    let processes = [job.read("worker"), job.read("server")];
    assert!(processes.iter().all(|pid| runs(pid)));
    kill_process(job.launcher(), Signal::KILL).unwrap();
    wait_until(|| !processes.iter().any(|pid| runs(pid)));
}

#[test]
fn a_wrong_command_line_takes_one_line_or_the_help() {
    let launch = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("launch").args(arguments).output().unwrap()
    };
    let missing = launch(&["-n", "2", "--", "no-such-program-here"]);
    assert_eq!(error_line(&missing, 1), "error: there is no program `no-such-program-here`");
    let stderr = |arguments| String::from_utf8(launch(arguments).stderr).unwrap();
    assert!(stderr(&["-n", "0", "--", "true"]).contains("0 is not in 1..=256"));
    assert!(stderr(&["-n", "1", "--env", "A", "--", "true"]).contains("it must be KEY=VALUE"));
    assert!(stderr(&["-n", "1"]).contains("<COMMAND>..."));
    let help = String::from_utf8(launch(&["--help"]).stdout).unwrap();
    assert!(help.contains("[default: as many as workers, as MXNet does]"), "{help}");
}
