//! The examples, started and interrupted as by a user.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use candelabrum_testkit::leftovers::assert_no_shared_memory_of_ours;

use crate::common::{
    Running, assert_one_line_error, example, mnist_dist, wait_for_ranks, wait_for_training,
};
use crate::job;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const LIMIT: Duration = Duration::from_secs(10);

/// Two ranks that train, and their process numbers.
fn two_ranks() -> (Running, Vec<(usize, i32)>) {
    let options = ["--dataset", "synthetic", "--workers", "2", "--epochs", "1000"];
    let running = Running::start(mnist_dist(&options));
    let ranks = wait_for_ranks(&running, 2);
    wait_for_training(&running);
    (running, ranks)
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process number"), signal).expect("it can be killed");
}

fn assert_all_gone(ranks: &[(usize, i32)]) {
    let end = Instant::now() + Duration::from_secs(2);
    for &(rank, pid) in ranks {
        let pid = Pid::from_raw(pid).expect("a process number");
        while test_kill_process(pid).is_ok() {
            assert!(Instant::now() < end, "rank {rank} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_death_of_any_rank_ends_the_job_and_is_named() {
    for victim in [1, 0] {
        let (running, ranks) = two_ranks();
        let killed = Instant::now();
        signal(ranks[victim].1, Signal::KILL);
        let (output, _) = running.finish(LIMIT);
        println!("rank {victim} killed, all ended after {:?}", killed.elapsed());
        assert_one_line_error(&output, &[&format!("rank {victim} was killed by SIGKILL")]);
        assert_eq!(output.status.code(), Some(1));
        assert_all_gone(&ranks);
    }
    assert_no_shared_memory_of_ours();
}

#[test]
fn an_interrupt_ends_the_job_in_order() {
    let (running, ranks) = two_ranks();
    signal(running.child.id() as i32, Signal::INT);
    let (output, _) = running.finish(LIMIT);
    assert_one_line_error(&output, &["interrupted by SIGINT"]);
    assert_eq!(output.status.code(), Some(130));
    assert_all_gone(&ranks);
    assert_no_shared_memory_of_ours();
}

#[test]
fn an_interrupt_of_a_single_process_is_said_too() {
    let options = ["--dataset", "synthetic", "--epochs", "1000"];
    let running = Running::start(mnist_dist(&options));
    wait_for_training(&running);
    signal(running.child.id() as i32, Signal::INT);
    let (output, _) = running.finish(LIMIT);
    assert_one_line_error(&output, &["interrupted by SIGINT"]);
    assert_eq!(output.status.code(), Some(130));
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let (mut running, ranks) = two_ranks();
    running.child.kill().expect("it can be killed");
    running.child.wait().expect("it can be waited for");
    assert_all_gone(&ranks);
}

/// A process inherits an ignored SIGCHLD, for instance from some services and containers.
#[test]
fn a_launcher_ends_where_the_ends_of_children_are_ignored() {
    let start = |epochs: &str| {
        let mut command = Command::new("env");
        command.arg("--ignore-signal=CHLD").arg(example("mnist_dist")).stdin(Stdio::null());
        command.args(["--workers", "2", "--dataset", "synthetic", "--epochs", epochs]);
        Running::start(command)
    };
    let (output, _) = start("1").finish(Duration::from_secs(60));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");

    let running = start("1000");
    let ranks = wait_for_ranks(&running, 2);
    wait_for_training(&running);
    signal(ranks[1].1, Signal::KILL);
    let (output, _) = running.finish(LIMIT);
    assert_one_line_error(&output, &["rank 1 was killed by SIGKILL"]);
}

#[test]
fn a_program_that_has_been_a_launcher_can_be_interrupted() {
    // What a script starts in the background ignores SIGINT.
    let job = job::start("interrupted later", 9, 2)
        .after("exec env --default-signal=INT \"$0\" \"$@\";")
        .launch();
    let ended = job.finish();
    assert_eq!(ended.output.status.signal(), Some(Signal::INT.as_raw()), "{:?}", ended.output);
    ended.assert_nothing_is_left();
}
