//! Worlds in which some ranks are servers of the key-value store: by our launcher, by mpiexec and by
//! MXNet's tracker, whose part this test plays. Also what a user sees when one of them dies.

mod common;

use std::env;
use std::net::TcpListener;
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use candelabrum::kvstore::{Error, KvStore};
use candelabrum::train::cli::run_with_servers;
use candelabrum_testkit::ranks::mpiexec;
use common::{
    Running, assert_one_line_error, example, mnist_dist, wait_for_ranks, wait_for_training,
};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(60);

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
fn program(command: Option<Command>, mark: &str) -> Command {
    let test = env::current_exe().expect("a test knows its own program");
    let mut command = match command {
        Some(mut launcher) => {
            launcher.arg(test);
            launcher
        }
        None => Command::new(test),
    };
    command.args(["rank_main", "--exact", "--nocapture", "--test-threads=1"]).env(MARK, mark);
    command
}

/// The ranks' lines, sorted.
#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<String> = stdout
        .lines()
        .filter_map(|line| Some(line[line.find("worker ")?..].to_owned()))
        .filter(|line| line.contains(" has the servers "))
        .collect();
    lines.sort();
    lines
}

#[test]
fn our_launcher_starts_servers_beside_the_workers_and_tells_mxnets_scripts() {
    let (output, _) = Running::start(program(None, "2 1")).finish(LIMIT);
    assert_eq!(
        lines(&output),
        [
            "worker 0 of 2 has the servers [2] [worker]",
            "worker 1 of 2 has the servers [2] [worker]",
        ]
    );
    let (output, _) = Running::start(program(None, "2 -")).finish(LIMIT);
    assert_eq!(
        lines(&output),
        ["worker 0 of 2 has the servers [] []", "worker 1 of 2 has the servers [] []"]
    );
}

#[test]
fn of_the_ranks_under_mpiexec_the_last_ones_are_servers() {
    // By our variable, and by the program's option.
    for (mark, variable) in [("- -", "2"), ("- 2", ""), ("1 2", "2")] {
        let Some(launcher) = mpiexec(3) else {
            println!("left out: there is no mpiexec here");
            return;
        };
        let mut command = program(Some(launcher), mark);
        command.env("CANDELABRUM_SERVERS", variable);
        let (output, _) = Running::start(command).finish(LIMIT);
        assert_eq!(lines(&output), ["worker 0 of 1 has the servers [1, 2] []"]);
    }
}

/// The processes of MXNet's tracker for one host: 2 workers, 1 server, and the scheduler.
fn by_the_tracker(mark: &str, with_scheduler: bool) -> (Vec<Running>, Option<Running>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let start = |role: &str, task: Option<usize>| {
        let mut command = program(None, mark);
        command.env("DMLC_ROLE", role).env("DMLC_NUM_WORKER", "2").env("DMLC_NUM_SERVER", "1");
        command.env("DMLC_PS_ROOT_URI", "127.0.0.1").env("DMLC_PS_ROOT_PORT", port.to_string());
        if let Some(task) = task {
            command.env("DMLC_TASK_ID", task.to_string()).env("DMLC_JOB_CLUSTER", "local");
        }
        Running::start(command)
    };
    let scheduler = with_scheduler.then(|| start("scheduler", None));
    let ranks = [("worker", 0), ("worker", 1), ("server", 2)];
    (ranks.map(|(role, task)| start(role, Some(task))).into(), scheduler)
}

#[test]
fn mxnets_tracker_starts_a_world_and_waits_for_its_scheduler() {
    for with_scheduler in [true, false] {
        let (ranks, scheduler) = by_the_tracker("- -", with_scheduler);
        for (rank, running) in ranks.into_iter().enumerate() {
            let (output, _) = running.finish(LIMIT);
            let line = format!("worker {rank} of 2 has the servers [2] [worker]");
            assert_eq!(lines(&output), if rank < 2 { vec![line] } else { vec![] });
        }
        if let Some(scheduler) = scheduler {
            let (output, _) = scheduler.finish(LIMIT);
            assert!(lines(&output).is_empty());
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.starts_with("note: this process is the scheduler of 3 "), "{stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
    }
}

#[test]
fn numbers_that_contradict_each_other_are_refused() {
    let refuse = |mark, variables: &[(&str, &str)], parts: &[&str]| {
        let mut command = program(None, mark);
        command.envs(variables.iter().copied());
        assert_one_line_error(&Running::start(command).finish(LIMIT).0, parts);
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
        let mut command = mnist_dist(&[&["--dataset", "synthetic"], options].concat());
        command.env("CANDELABRUM_RANK", "0").env("CANDELABRUM_WORLD_SIZE", "2");
        command.env("CANDELABRUM_SERVERS", servers);
        assert_one_line_error(&Running::start(command).finish(LIMIT).0, parts);
    };
    refuse(&[], "1", &["1 of 2 ranks", "asks for 0", "--kvstore"]);
    refuse(&["--kvstore", "dist_sync", "--servers", "2"], "0", &["leaves no worker"]);
}

#[test]
fn a_dead_server_and_a_dead_worker_end_the_job_and_are_named() {
    for (kind, rank) in [("dist_sync", 2), ("dist_async", 2), ("dist_sync", 1), ("dist_async", 0)] {
        let mut command = Command::new(example("kvstore_mnist"));
        command.args(["--workers", "2", "--servers", "1", "--kvstore", kind]);
        command.args(["--dataset", "synthetic", "--epochs", "1000", "--threads", "1"]);
        let running = Running::start(command);
        let (_, process) = wait_for_ranks(&running, 3)[rank];
        wait_for_training(&running);
        let process = Pid::from_raw(process).expect("a process");
        kill_process(process, Signal::KILL).expect("it runs");
        let (output, took) = running.finish(Duration::from_secs(15));
        println!("{kind}, rank {rank}: the job ended within {took:?}");
        assert_one_line_error(&output, &[&format!("rank {rank} was killed by SIGKILL")]);
    }
}

#[test]
fn a_worker_that_fails_is_the_cause_and_not_its_leaving() {
    for kind in ["dist_sync", "dist_async"] {
        let mut command = Command::new(example("kvstore_mnist"));
        command.args(["--workers", "2", "--servers", "1", "--kvstore", kind, "--lr", "1e20"]);
        command.args(["--dataset", "synthetic", "--threads", "1"]);
        let (output, took) = Running::start(command).finish(Duration::from_secs(60));
        println!("{kind}: {took:?}");
        assert_one_line_error(&output, &["not finite"]);
    }
}
