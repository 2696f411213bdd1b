//! Systems that lack something or limit it: file locks, the size of files, a common PID namespace.

use std::fs;
use std::process::{Command, Stdio};

use candelabrum_testkit::Program;

use crate::programs::example;

/// A training of four steps, with a checkpoint after each two.
fn training(dir: &str) -> Program {
    let args = ["--epochs", "1", "--max-steps", "4", "--threads", "1"];
    example("regression").args(args).args(["--checkpoint-dir", dir, "--checkpoint-every", "2"])
}

#[test]
fn a_file_system_without_locks_is_used_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("no_locks.so");
    let source = dir.path().join("no_locks.c");
    for errno in ["ENOSYS", "EOPNOTSUPP", "ENOLCK", "EACCES"] {
        let text = format!(
            "#include <errno.h>\nint flock(int f, int o) {{ errno = {errno}; return -1; }}\n"
        );
        fs::write(&source, text).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
        if !compile.status().is_ok_and(|status| status.success()) {
            println!("left out: a library without locks needs a C compiler");
            return;
        }
        let place = dir.path().join(errno);
        let place = place.to_str().unwrap();
        let run = training(place).env("LD_PRELOAD", &library).run();
        if errno == "EACCES" {
            run.fails(["cannot be used", "Permission denied"]);
        } else {
            run.success().says(["note: ", place, "this file system has no locks"]);
            assert!(dir.path().join(errno).join("step-00000004").exists(), "{errno}");
        }
    }
}

#[test]
fn a_limit_of_file_sizes_costs_checkpoints_and_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let ended = training(place).after("ulimit -f 1;").run().expect(1);
    let ended = ended.says(["File too large", "the training goes on"]);
    assert!(ended.out.contains("Evaluation loss"), "the training went on: {}", ended.text);
}

#[test]
fn ranks_of_two_pid_namespaces_meet() {
    let namespace = ["-p", "-f", "--mount-proc"];
    let tried = Command::new("unshare").args(namespace).arg("true").stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("left out: a PID namespace needs root and unshare");
        return;
    }
    let ranks = ["0", "1"].map(|rank| {
        let place = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")];
        let size = [("LOCAL_WORLD_SIZE", "2"), ("CANDELABRUM_JOB", "two namespaces")];
        let args = ["--epochs", "1", "--max-steps", "1", "--threads", "1"];
        let rank = example("regression").args(args);
        rank.behind(Program::new("unshare").args(namespace)).envs(place).envs(size).start()
    });
    for rank in ranks {
        rank.finish().success();
    }
}
