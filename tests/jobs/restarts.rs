//! A job of `candelabrum run` whose ranks die: it starts again from its last checkpoint, and ends as if nothing
//! had happened.

use std::fs;
use std::path::Path;

use candelabrum_testkit::{Program, kill, lives, until};
use rustix::process::Signal;
use serde_json::Value;

use crate::programs::{command, example};

/// The regression on two ranks, by the command. It writes its report and its log into `dir`.
fn job(dir: &Path, more: &[&str]) -> Program {
    let run = command().args(["run", "--workers", "2", "--threads", "1"]);
    let run = run.args(["--max-restarts", "5", "--backoff", "0.1", "--"]);
    let program = example("regression").args(["--epochs", "300"]).args(more).behind(run);
    let program = program.arg("--report").arg(dir.join("report.json"));
    program.arg("--log-dir").arg(dir.join("log"))
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
    job(whole.path(), &[]).run().success();

    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("checkpoints");
    let options = ["--checkpoint-every", "50", "--checkpoint-dir", saved.to_str().unwrap()];
    let running = job(dir.path(), &options).start();
    let mut victims = Vec::new();
    for victim in [1, 0] {
        let before = checkpoints(&saved);
        // A checkpoint of this attempt, so that each attempt goes further than the one before.
        let is_new = |name: &String| !before.contains(name);
        until("a checkpoint", || checkpoints(&saved).iter().any(is_new).then_some(()));
        let process = running.ranks(2)[victim];
        assert!(!victims.contains(&process));
        kill(process, Signal::KILL);
        victims.push(process);
        until("the end of the rank", || (!lives(process)).then_some(()));
    }
    let note =
        |number, victim| format!("rank {victim} was killed by SIGKILL; restart {number} of 5");
    running.finish().success().says([note(1, 1), note(2, 0)]);
    assert_eq!(digests(dir.path()), digests(whole.path()));
    // The log of the whole run has each epoch.
    let log = fs::read_to_string(dir.path().join("log/metrics.jsonl")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("start"), count("resume")), (1, 2), "{log}");
    assert_eq!(events.last().unwrap()["reason"], "finished");
    assert!(count("epoch") >= 300 && count("checkpoint") > 0 && count("train") > 0);
}
