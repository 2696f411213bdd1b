//! `candelabrum run --max-restarts`: only a job that makes progress gets its restarts back.

use std::process::{Command, Output, Stdio};

use crate::common::{self, Running};
use crate::job::{LIMIT, Place, stderr};

/// A job that may start again once, and whose length before a failure never counts against it. Rank 1 dies in its
/// fifth step of each attempt.
fn run(place: &Place, more: &[&str]) -> Output {
    let program = place.command(&[&["--die", "1", "forward", "5"], more].concat());
    let mut command = Command::new(common::command());
    command.args(["run", "--workers", "2", "--max-restarts", "1"]);
    command.args(["--backoff", "0.05", "--restart-reset", "0", "--"]);
    command.arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start(command).finish(LIMIT).0
}

#[test]
fn a_job_that_fails_at_the_same_step_again_and_again_ends() {
    let place = Place::new(&["--epochs", "2", "--batch-size", "12", "--threads", "1"]);
    let output = run(&place, &[]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(137), "{text}");
    assert!(text.contains("rank 1 was killed by SIGKILL, after 1 restart(s)"), "{text}");
    // It may have made progress before.
    let place = Place::new(&["--epochs", "2", "--batch-size", "12", "--threads", "1"]);
    place.succeed(&["--epochs", "1", "--workers", "2"]);
    let output = run(&place, &[]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(137), "{text}");
    assert!(text.contains("rank 1 was killed by SIGKILL, after 1 restart(s)"), "{text}");
}

#[test]
fn a_job_that_goes_on_between_two_failures_has_all_its_restarts_again() {
    let place = Place::new(&["--epochs", "1", "--batch-size", "12", "--threads", "1"]);
    let output = run(&place, &["--checkpoint-every", "2"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    // Of 10 steps, each attempt takes 4. Its second checkpoint may be too late.
    let count = text.matches("; restart 1 of 1 in ").count();
    assert!(count >= 2, "{count}: {text}");
}
