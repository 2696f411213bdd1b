//! `mnist_dist`, `kvstore_mnist` and `mpi_sgd` under mpiexec: over MPI if the build has it, over the local backend
//! otherwise.

mod common;

use std::process::Command;
use std::time::Duration;

use candelabrum_testkit::ranks::mpiexec;
use common::{Running, example};

const BACKEND: &str = if cfg!(feature = "mpi") { "mpi" } else { "local" };

#[test]
fn two_ranks_under_mpiexec_train_the_model_of_two_workers() {
    let Some(mut command) = mpiexec(2) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = |report: &str| {
        let report = dir.path().join(report).display().to_string();
        let options = ["--dataset", "synthetic", "--epochs", "1", "--threads", "1", "--report"];
        options.map(str::to_owned).into_iter().chain([report]).collect::<Vec<_>>()
    };
    command.arg(example("mnist_dist")).args(options("mpiexec.json"));
    let (output, _) = Running::start(command).finish(Duration::from_secs(120));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut command = Command::new(example("mnist_dist"));
    command.args(options("workers.json")).args(["--workers", "2"]);
    let (output, _) = Running::start(command).finish(Duration::from_secs(120));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap()
    };
    let (mpiexec, workers) = (read("mpiexec.json"), read("workers.json"));
    assert_eq!(mpiexec["backend"], BACKEND);
    assert_eq!(workers["backend"], "local");
    assert_eq!(mpiexec["world_size"], 2);
    let digests =
        |report: &serde_json::Value| report["parameters_sha256"].as_array().unwrap().clone();
    assert_eq!(digests(&mpiexec)[0], digests(&mpiexec)[1]);
    // A sum of two numbers has one order, so every backend gives the same bits.
    assert_eq!(digests(&mpiexec), digests(&workers));
}

#[test]
fn two_workers_and_a_server_under_mpiexec_train_the_model_of_an_all_reduce() {
    let Some(mut command) = mpiexec(3) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let report = |mut command: Command, name: &str| -> serde_json::Value {
        let path = dir.path().join(name);
        command.args(["--dataset", "synthetic", "--epochs", "1", "--threads", "1", "--report"]);
        command.arg(&path);
        let (output, _) = Running::start(command).finish(Duration::from_secs(120));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    command.arg(example("kvstore_mnist")).args(["--servers", "1"]);
    let store = report(command, "store.json");
    let mut command = Command::new(example("mnist_dist"));
    command.args(["--workers", "2"]);
    let all_reduce = report(command, "all_reduce.json");
    assert_eq!((&store["backend"], &store["servers"]), (&BACKEND.into(), &1.into()));
    assert_eq!((&store["kvstore"], &store["world_size"]), (&"dist_sync".into(), &2.into()));
    assert_eq!(all_reduce["kvstore"], serde_json::Value::Null);
    assert_eq!(store["parameters_sha256"], all_reduce["parameters_sha256"]);
}

#[test]
fn a_failing_rank_ends_mpiexec() {
    let Some(mut command) = mpiexec(2) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    command.arg(example("mnist_dist")).args(["--dataset", "synthetic", "--lr", "1e20"]);
    let (output, _) = Running::start(command).finish(Duration::from_secs(30));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("is not finite on rank"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn mpi_sgd_under_mpiexec_has_the_parameters_of_three_workers() {
    let Some(mut command) = mpiexec(3) else {
        println!("left out: there is no mpiexec here");
        return;
    };
    let digests = |command| {
        let (output, _) = Running::start(command).finish(Duration::from_secs(60));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let digest = |line: &str| Some(line.rsplit_once("parameters ")?.1.to_owned());
        let digests: Vec<String> = text.lines().filter_map(digest).collect();
        assert_eq!(digests.len(), 3, "{text}");
        (digests, text)
    };
    command.arg(example("mpi_sgd"));
    let (of_mpiexec, text) = digests(command);
    for program in ["sync-server: 2", "all-reduce: 3", "async-server: 2"] {
        assert!(text.contains(&format!("{program} worker(s), {BACKEND} backend\n")), "{text}");
    }
    let mut command = Command::new(example("mpi_sgd"));
    command.args(["--workers", "3"]);
    let (of_workers, _) = digests(command);
    // The asynchronous server depends on the order in which gradients arrive.
    assert_eq!(of_mpiexec[..2], of_workers[..2]);
}
