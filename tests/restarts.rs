//! A job of `candelabrum run` whose ranks die: it starts again from its last checkpoint, and ends as if nothing
//! had happened.

#![expect(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Running, command, example, ranks_of, wait_for_ranks};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// The regression on two ranks, by the command. It writes its report and its log into `dir`.
fn job(dir: &Path, more: &[&str]) -> Command {
    let mut job = Command::new(command());
    job.args([
        "run",
        "--workers",
        "2",
        "--threads",
        "1",
        "--max-restarts",
        "5",
        "--backoff",
        "0.1",
    ]);
    job.arg("--").arg(example("regression")).args(["--epochs", "300"]).args(more);
    job.arg("--report").arg(dir.join("report.json")).arg("--log-dir").arg(dir.join("log"));
    job.stdin(Stdio::null());
    job
}

fn digests(dir: &Path) -> Value {
    let report = fs::read_to_string(dir.join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["epochs"].as_array().unwrap().len(), 300);
    report["parameters_sha256"].clone()
}

/// The checkpoints that have their names.
fn checkpoints(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

#[test]
fn a_job_whose_ranks_die_starts_again_and_ends_as_if_nothing_had_happened() {
    let whole = tempfile::tempdir().unwrap();
    let (output, _) = Running::start(job(whole.path(), &[])).finish(LIMIT);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("checkpoints");
    let options = ["--checkpoint-every", "50", "--checkpoint-dir", saved.to_str().unwrap()];
    let running = Running::start(job(dir.path(), &options));
    let mut victims = Vec::new();
    for victim in [1, 0] {
        let before = checkpoints(&saved);
        let end = Instant::now() + LIMIT;
        // A checkpoint of this attempt, so that each attempt goes further than the one before.
        while checkpoints(&saved).iter().all(|name| before.contains(name)) {
            assert!(Instant::now() < end, "no new checkpoint after {victims:?}");
            thread::sleep(Duration::from_millis(5));
        }
        let (_, process) = wait_for_ranks(&running, 2)[victim];
        assert!(!victims.contains(&process));
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
        victims.push(process);
        while ranks_of(&running).iter().any(|(_, pid)| *pid == process) {
            assert!(Instant::now() < end, "rank {victim} is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let (output, _) = running.finish(LIMIT);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for (number, victim) in [(1, 1), (2, 0)] {
        let note = format!("rank {victim} was killed by SIGKILL; restart {number} of 5");
        assert!(text.contains(&note), "{note}: {text}");
    }
    assert_eq!(digests(dir.path()), digests(whole.path()));
    // The log of the whole run has each epoch.
    let log = fs::read_to_string(dir.path().join("log/metrics.jsonl")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("start"), count("resume")), (1, 2), "{log}");
    assert_eq!(events.last().unwrap()["reason"], "finished");
    assert!(count("epoch") >= 300 && count("checkpoint") > 0 && count("train") > 0);
}
