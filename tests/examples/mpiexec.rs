//! `mnist_dist`, `kvstore_mnist` and `mpi_sgd` under mpiexec: over MPI if the build has it, over the local backend
//! otherwise.

use std::env;
use std::time::Duration;

use candelabrum_testkit::Program;
use serde_json::Value;

use crate::common::{features, programs};
use crate::precision::few_digits;
use crate::run::example;

const BACKEND: &str = if cfg!(feature = "mpi") { "mpi" } else { "local" };

/// An example on few digits, for one epoch.
fn small(name: &str) -> Program {
    example(name).args(["--dataset", "synthetic", "--epochs", "1", "--threads", "1"])
}

/// `cargo run` of an example, in the build of this test.
fn cargo_run(name: &str) -> Program {
    programs();
    let mut words = ["run", "--quiet", "--example", name].map(str::to_owned).to_vec();
    words.extend(features());
    words.extend((!cfg!(debug_assertions)).then(|| "--release".to_owned()));
    // The variables that cargo sets for a test would make build scripts run again.
    let of_package =
        |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = env::vars().map(|(name, _)| name).filter(of_package);
    let cargo = names.fold(Program::new(env!("CARGO")), Program::env_remove);
    cargo.args(words).arg("--").folder(env!("CARGO_MANIFEST_DIR"))
}

/// The report of a run.
fn report(program: Program) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    program.arg("--report").arg(&path).run().success();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn two_ranks_under_mpiexec_train_the_model_of_two_workers() {
    let Some(mpiexec) = small("mnist_dist").under_mpiexec(2) else { return };
    let (mpiexec, workers) =
        (report(mpiexec), report(small("mnist_dist").args(["--workers", "2"])));
    assert_eq!(mpiexec["backend"], BACKEND);
    assert_eq!(workers["backend"], "local");
    assert_eq!(mpiexec["world_size"], 2);
    let digests = |report: &Value| report["parameters_sha256"].as_array().unwrap().clone();
    assert_eq!(digests(&mpiexec)[0], digests(&mpiexec)[1]);
    // A sum of two numbers has one order, so every backend gives the same bits.
    assert_eq!(digests(&mpiexec), digests(&workers));
}

/// README's command as it is: each rank is a cargo that finds everything built, and then becomes the program.
#[test]
fn two_cargo_runs_under_mpiexec_train_one_model() {
    let data = few_digits(256, 64);
    let few = |program: Program| {
        let program = program.arg("--data-dir").arg(data.path()).env_remove("MNIST_DIR");
        program.args(["--epochs", "1", "--threads", "1", "--batch-size", "16"])
    };
    let Some(mpiexec) = few(cargo_run("mnist_dist")).under_mpiexec(2) else { return };
    // cargo looks at all sources, twice, and waits where another cargo builds.
    let by_cargo = report(mpiexec.limit(Duration::from_secs(600)));
    let workers = report(few(example("mnist_dist")).args(["--workers", "2"]));
    assert_eq!((&by_cargo["world_size"], &by_cargo["backend"]), (&2.into(), &BACKEND.into()));
    assert_eq!(by_cargo["parameters_sha256"], workers["parameters_sha256"]);
}

#[test]
fn two_workers_and_a_server_under_mpiexec_train_the_model_of_an_all_reduce() {
    let store = small("kvstore_mnist").args(["--servers", "1"]);
    let Some(store) = store.under_mpiexec(3) else { return };
    let store = report(store);
    let all_reduce = report(small("mnist_dist").args(["--workers", "2"]));
    assert_eq!((&store["backend"], &store["servers"]), (&BACKEND.into(), &1.into()));
    assert_eq!((&store["kvstore"], &store["world_size"]), (&"dist_sync".into(), &2.into()));
    assert_eq!(all_reduce["kvstore"], Value::Null);
    assert_eq!(store["parameters_sha256"], all_reduce["parameters_sha256"]);
}

#[test]
fn a_failing_rank_ends_mpiexec() {
    let program = example("mnist_dist").args(["--dataset", "synthetic", "--lr", "1e20"]);
    let Some(program) = program.under_mpiexec(2) else { return };
    let ended = program.limit(Duration::from_secs(30)).run();
    assert!(!ended.succeeded() && !ended.err.contains("panicked"), "{}", ended.err);
    assert!(ended.err.contains("is not finite on rank"), "{}", ended.err);
}

#[test]
fn mpi_sgd_under_mpiexec_has_the_parameters_of_three_workers() {
    let Some(by_mpiexec) = example("mpi_sgd").under_mpiexec(3) else { return };
    let digests = |program: Program| {
        let text = program.limit(Duration::from_secs(60)).run().success().out;
        let digest = |line: &str| Some(line.rsplit_once("parameters ")?.1.to_owned());
        let digests: Vec<String> = text.lines().filter_map(digest).collect();
        assert_eq!(digests.len(), 3, "{text}");
        (digests, text)
    };
    let (of_mpiexec, text) = digests(by_mpiexec);
    for program in ["sync-server: 2", "all-reduce: 3", "async-server: 2"] {
        assert!(text.contains(&format!("{program} worker(s), {BACKEND} backend\n")), "{text}");
    }
    let (of_workers, _) = digests(example("mpi_sgd").args(["--workers", "3"]));
    // The asynchronous server depends on the order in which gradients arrive.
    assert_eq!(of_mpiexec[..2], of_workers[..2]);
}
