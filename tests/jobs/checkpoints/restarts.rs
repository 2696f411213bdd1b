//! `candelabrum run --max-restarts`: only a job that makes progress gets its restarts back.

use candelabrum_testkit::EndedProgram;

use super::job::Place;
use crate::programs::command;

/// A job that may start again once, and whose length before a failure never counts against it. Rank 1 dies in its
/// fifth step of each attempt.
fn run(place: &Place, more: &str) -> EndedProgram {
    let run = command().args(["run", "--workers", "2", "--max-restarts", "1"]);
    let run = run.args(["--backoff", "0.05", "--restart-reset", "0", "--"]);
    place.program(&format!("--die 1 forward 5 {more}")).behind(run).run()
}

#[test]
fn a_job_that_fails_at_the_same_step_again_and_again_ends() {
    let place = Place::new("--epochs 2 --batch-size 12 --threads 1");
    run(&place, "").expect(137).says(["rank 1 was killed by SIGKILL, after 1 restart(s)"]);
    // It may have made progress before.
    let place = Place::new("--epochs 2 --batch-size 12 --threads 1");
    place.succeed("--epochs 1 --workers 2");
    run(&place, "").expect(137).says(["rank 1 was killed by SIGKILL, after 1 restart(s)"]);
}

#[test]
fn a_job_that_goes_on_between_two_failures_has_all_its_restarts_again() {
    let place = Place::new("--epochs 1 --batch-size 12 --threads 1");
    let text = run(&place, "--checkpoint-every 2").success().err;
    // Of 10 steps, each attempt takes 4. Its second checkpoint may be too late.
    let count = text.matches("; restart 1 of 1 in ").count();
    assert!(count >= 2, "{count}: {text}");
}
