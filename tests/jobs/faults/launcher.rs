//! The examples, started and interrupted as by a user.

use std::time::{Duration, Instant};

use candelabrum_testkit::leftovers::assert_no_shared_memory_of_ours;
use candelabrum_testkit::{Program, Running, kill, lives, until};
use rustix::process::{Pid, Signal};

use super::job;
use crate::programs::{example, wait_for_training};

/// The time in which a job ends.
const SOON: Duration = Duration::from_secs(10);

/// A training that does not end by itself.
fn training() -> Program {
    example("mnist_dist").args(["--dataset", "synthetic", "--epochs", "1000"])
}

/// Two ranks that train, and their processes.
fn two_ranks(program: Program) -> (Running, Vec<Pid>) {
    let running = program.args(["--workers", "2"]).start();
    let ranks = running.ranks(2);
    wait_for_training(&running);
    (running, ranks)
}

/// Waits for the end of a job, which fails with one line.
#[track_caller]
fn assert_fails_soon(running: Running, code: i32, part: &str) {
    let begin = Instant::now();
    running.finish().fails([part]).expect(code);
    println!("{part}: all ended after {:?}", begin.elapsed());
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

fn assert_all_gone(ranks: &[Pid]) {
    let begin = Instant::now();
    until("the end of the ranks", || (!ranks.iter().copied().any(lives)).then_some(()));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn the_death_of_any_rank_ends_the_job_and_is_named() {
    for victim in [1, 0] {
        let (running, ranks) = two_ranks(training());
        kill(ranks[victim], Signal::KILL);
        assert_fails_soon(running, 1, &format!("rank {victim} was killed by SIGKILL"));
        assert_all_gone(&ranks);
    }
    assert_no_shared_memory_of_ours();
}

#[test]
fn an_interrupt_ends_the_job_in_order() {
    let (running, ranks) = two_ranks(training());
    running.signal(Signal::INT);
    assert_fails_soon(running, 130, "interrupted by SIGINT");
    assert_all_gone(&ranks);
    assert_no_shared_memory_of_ours();
}

#[test]
fn an_interrupt_of_a_single_process_is_said_too() {
    let running = training().start();
    wait_for_training(&running);
    running.signal(Signal::INT);
    assert_fails_soon(running, 130, "interrupted by SIGINT");
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let (running, ranks) = two_ranks(training());
    running.signal(Signal::KILL);
    running.finish();
    assert_all_gone(&ranks);
}

/// A process inherits an ignored SIGCHLD, for instance from some services and containers.
#[test]
fn a_launcher_ends_where_the_ends_of_children_are_ignored() {
    let ignoring =
        |program: Program| program.behind(Program::new("env").arg("--ignore-signal=CHLD"));
    let short = example("mnist_dist").args(["--dataset", "synthetic", "--epochs", "1"]);
    ignoring(short.args(["--workers", "2"])).run().success();

    let (running, ranks) = two_ranks(ignoring(training()));
    kill(ranks[1], Signal::KILL);
    assert_fails_soon(running, 1, "rank 1 was killed by SIGKILL");
}

#[test]
fn a_program_that_has_been_a_launcher_can_be_interrupted() {
    // What a script starts in the background ignores SIGINT.
    let job = job::start("interrupted later", 9, 2)
        .after("exec env --default-signal=INT \"$0\" \"$@\";")
        .launch();
    let ended = job.finish();
    assert_eq!(ended.program.signal, Some(Signal::INT.as_raw()), "{:?}", ended.program);
    ended.assert_nothing_is_left();
}
