//! Worlds in which some ranks are servers of the key-value store: by our launcher, by mpiexec and by
//! MXNet's tracker, whose part this test plays. Also what a user sees when one of them dies.

use std::env;
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use candelabrum::kvstore::{Error, KvStore};
use candelabrum::train::cli::run_with_servers;
use candelabrum_testkit::{EndedProgram, Program, Running, kill};
use rustix::process::Signal;

use crate::programs::{example, wait_for_training};

/// What a process of these tests does: the numbers of workers and servers, or `-`.
const MARK: &str = "SERVERS_TEST";

/// The program of the processes of these tests.
#[test]
fn rank_main() {
    let Ok(mark) = env::var(MARK) else { return };
    let numbers: Vec<Option<usize>> = mark.split(' ').map(|word| word.parse().ok()).collect();
    let exit = run_with_servers(numbers[0], numbers[1], Some(1), None, |world| {
        let of_mxnet = env::var("DMLC_ROLE").unwrap_or_default();
        let mut servers = Vec::new();
        if world.servers() > 0 {
            // Only servers answer, and only workers run this program.
            let store = KvStore::create("dist_sync", world)?;
            servers = store.stats()?.iter().map(|server| server.rank).collect();
            store.barrier()?;
        }
        let (rank, all) = (world.rank(), world.world_size());
        println!("worker {rank} of {all} has the servers {servers:?} [{of_mxnet}]");
        world.comm().barrier()?;
        Ok::<(), Error>(())
    });
    // libtest would exit with a success if this test returned.
    std::process::exit(i32::from(exit != ExitCode::SUCCESS));
}

/// A process of this test with the given numbers of workers and servers.
fn program(mark: &str) -> Program {
    Program::from_test(rank_main).env(MARK, mark)
}

/// The ranks' lines, sorted.
#[track_caller]
fn lines(ended: &EndedProgram) -> Vec<String> {
    assert!(ended.succeeded(), "{}", ended.err);
    let mut lines: Vec<String> = (ended.out.lines())
        .filter_map(|line| Some(line[line.find("worker ")?..].to_owned()))
        .filter(|line| line.contains(" has the servers "))
        .collect();
    lines.sort();
    lines
}

#[test]
fn our_launcher_starts_servers_beside_the_workers_and_tells_mxnets_scripts() {
    assert_eq!(
        lines(&program("2 1").run()),
        [
            "worker 0 of 2 has the servers [2] [worker]",
            "worker 1 of 2 has the servers [2] [worker]",
        ]
    );
    assert_eq!(
        lines(&program("2 -").run()),
        ["worker 0 of 2 has the servers [] []", "worker 1 of 2 has the servers [] []"]
    );
}

#[test]
fn of_the_ranks_under_mpiexec_the_last_ones_are_servers() {
    // By our variable, and by the program's option.
    for (mark, variable) in [("- -", "2"), ("- 2", ""), ("1 2", "2")] {
        let program = program(mark).env("CANDELABRUM_SERVERS", variable);
        let Some(program) = program.under_mpiexec(3) else { return };
        assert_eq!(lines(&program.run()), ["worker 0 of 1 has the servers [1, 2] []"]);
    }
}

/// The processes of MXNet's tracker for one host: 2 workers, 1 server, and the scheduler.
fn by_the_tracker(mark: &str, with_scheduler: bool) -> (Vec<Running>, Option<Running>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let start = |role: &str, task: Option<&str>| {
        let program = program(mark)
            .envs([("DMLC_ROLE", role), ("DMLC_NUM_WORKER", "2"), ("DMLC_NUM_SERVER", "1")])
            .envs([("DMLC_PS_ROOT_URI", "127.0.0.1"), ("DMLC_PS_ROOT_PORT", &port.to_string())]);
        let program = match task {
            Some(task) => program.envs([("DMLC_TASK_ID", task), ("DMLC_JOB_CLUSTER", "local")]),
            None => program,
        };
        program.start()
    };
    let scheduler = with_scheduler.then(|| start("scheduler", None));
    let ranks = [("worker", "0"), ("worker", "1"), ("server", "2")];
    (ranks.map(|(role, task)| start(role, Some(task))).into(), scheduler)
}

#[test]
fn mxnets_tracker_starts_a_world_and_waits_for_its_scheduler() {
    for with_scheduler in [true, false] {
        let (ranks, scheduler) = by_the_tracker("- -", with_scheduler);
        for (rank, running) in ranks.into_iter().enumerate() {
            let line = format!("worker {rank} of 2 has the servers [2] [worker]");
            assert_eq!(lines(&running.finish()), if rank < 2 { vec![line] } else { vec![] });
        }
        if let Some(scheduler) = scheduler {
            let ended = scheduler.finish();
            assert!(lines(&ended).is_empty());
            let err = &ended.err;
            assert!(err.starts_with("note: this process is the scheduler of 3 "), "{err}");
            assert_eq!(err.lines().count(), 1, "{err}");
        }
    }
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    let refuse = |mark, variables: &[(&str, &str)], parts: &[&str]| {
        program(mark).envs(variables.iter().copied()).run().fails(parts);
    };
    let start = "`--workers 1 --kvstore dist_sync` starts";
    refuse("- 1", &[], &["1 server(s)", "1 rank(s)", start]);
    refuse("0 1", &[], &["1 server(s)", "1 rank(s)", start]);
    refuse("200 57", &[], &["--workers plus --servers", "257", "from 1 to 256"]);
    let ranks = [("CANDELABRUM_RANK", "0"), ("CANDELABRUM_WORLD_SIZE", "3")];
    refuse("3 1", &ranks, &["--workers is 3 beside 1 servers", "already started 3"]);
    refuse("- 3", &ranks, &["3 server(s)", "3 rank(s)", start]);
    let said = [&ranks[..], &[("CANDELABRUM_SERVERS", "2")]].concat();
    refuse("- 1", &said, &["2 of 3 ranks", "asks for 1", "--servers"]);
}

#[test]
fn a_training_program_uses_servers_only_with_a_store() {
    let refuse = |options: &[&str], servers, parts: &[&str]| {
        let program = example("mnist_dist").args(["--dataset", "synthetic"]).args(options);
        let place = [("CANDELABRUM_RANK", "0"), ("CANDELABRUM_WORLD_SIZE", "2")];
        program.envs(place).env("CANDELABRUM_SERVERS", servers).run().fails(parts);
    };
    refuse(&[], "1", &["1 of 2 ranks", "asks for 0", "--kvstore"]);
    refuse(&["--kvstore", "dist_sync", "--servers", "2"], "0", &["leaves no worker"]);
}

#[test]
fn a_dead_server_and_a_dead_worker_end_the_job_and_are_named() {
    for (kind, rank) in [("dist_sync", 2), ("dist_async", 2), ("dist_sync", 1), ("dist_async", 0)] {
        let running = example("kvstore_mnist")
            .args(["--workers", "2", "--servers", "1", "--kvstore", kind])
            .args(["--dataset", "synthetic", "--epochs", "1000", "--threads", "1"])
            .start();
        let victim = running.ranks(3)[rank];
        wait_for_training(&running);
        let killed = Instant::now();
        kill(victim, Signal::KILL);
        running.finish().fails([format!("rank {rank} was killed by SIGKILL")]);
        println!("{kind}, rank {rank}: the job ended within {:?}", killed.elapsed());
        assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    }
}

#[test]
fn a_worker_that_fails_is_the_cause_and_not_its_leaving() {
    for kind in ["dist_sync", "dist_async"] {
        let ended = example("kvstore_mnist")
            .args(["--workers", "2", "--servers", "1", "--kvstore", kind, "--lr", "1e20"])
            .args(["--dataset", "synthetic", "--threads", "1"])
            .run()
            // New values arrive late here, so a rank may also say that some have not come.
            .says(["error: ", "not finite"]);
        assert!(!ended.succeeded(), "{}", ended.text);
        println!("{kind}: {:?}", ended.took);
    }
}
