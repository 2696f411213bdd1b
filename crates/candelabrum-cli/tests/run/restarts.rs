//! Jobs that are started again after a failure.

use std::fs;

use rustix::process::Signal;

use crate::program::{WAIT, kill, process_in, run};

/// The options of a job that may start again without a long pause.
fn options(most: &'static str) -> Vec<&'static str> {
    vec!["-n", "2", "--max-restarts", most, "--backoff", "0.05"]
}

#[test]
fn a_job_starts_again_after_a_rank_was_killed_and_knows_its_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim").display().to_string();
    // The first attempt works until rank 1 is killed, the second one ends.
    let script = format!(
        r#"echo "rank $CANDELABRUM_RANK, attempt $CANDELABRUM_RESTART"
        [ "$CANDELABRUM_RESTART" = 0 ] || exit 0
        [ "$CANDELABRUM_RANK" = 0 ] || echo $$ > {victim}
        {WAIT}"#
    );
    let running = run(options("1")).script(&script).start();
    kill(process_in(victim.as_ref()), Signal::KILL);
    let ended = running.finish().expect(0);
    assert_eq!(
        ended.lines(),
        [
            "[0] rank 0, attempt 0",
            "[0] rank 0, attempt 1",
            "[1] rank 1, attempt 0",
            "[1] rank 1, attempt 1"
        ]
    );
    ended.says(["note: rank 1 was killed by SIGKILL; restart 1 of 1 in 0.05 s\n"]);
}

#[test]
fn the_last_failure_gives_the_code_once_the_restarts_are_used_up() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().display().to_string();
    let script = r#"echo "attempt $CANDELABRUM_RESTART"; exit $((40 + CANDELABRUM_RESTART))"#;
    let run = run(options("2").into_iter().chain(["--log-dir", &log_dir])).script(script);
    let ended = run.finish().expect(42);
    ended.says(["restart 1 of 2 in 0.05 s", "restart 2 of 2 in 0.1 s", "after 2 restart(s)"]);
    for attempt in 0..3 {
        let file = dir.path().join(format!("attempt-{attempt}/rank-0.log"));
        assert_eq!(fs::read_to_string(file).unwrap(), format!("attempt {attempt}\n"));
    }
}

#[test]
fn a_job_goes_on_with_fewer_workers_if_asked() {
    let script = r#"[ "$CANDELABRUM_RANK" = 0 ] && echo "$CANDELABRUM_WORLD_SIZE"
        [ "$CANDELABRUM_WORLD_SIZE" = 2 ] || exit 5"#;
    let common = ["-n", "4", "--max-restarts", "4", "--backoff", "0.05", "--prefix", "none"];
    let shrink = ["--on-failure", "shrink"];
    let ended = run(common.into_iter().chain(shrink)).script(&format!("{script}; exit 0"));
    let ended = ended.finish().expect(0);
    assert_eq!(ended.lines(), ["2", "3", "4"]);
    ended.says(["with 3 worker(s)", "with 2 worker(s)"]);

    let least = ["--min-workers", "3"];
    let ended = run(common.into_iter().chain(shrink).chain(least)).script(script).finish();
    assert_eq!(ended.expect(5).lines(), ["3", "3", "3", "3", "4"]);
}

#[test]
fn wrong_options_of_the_program_are_not_tried_again() {
    let ended = run(options("5")).script("echo x; sleep 0.2; exit 2").finish().expect(2);
    assert_eq!(ended.lines().len(), 2);
    ended.says(["there is no restart after exit code 2"]);
}

#[test]
fn a_signal_during_the_pause_ends_the_job() {
    let running = run(["--max-restarts", "1", "--backoff", "3600"]).script("exit 9").start();
    running.wait_for("restart 1 of 1 in 3600 s");
    running.signal(Signal::TERM);
    running.finish().expect(143).says(["interrupted by SIGTERM"]);
}

#[test]
fn a_signal_is_no_reason_for_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("started").display().to_string();
    let running = run(["--max-restarts", "5"]).script(&format!("echo $$ > {file}; {WAIT}")).start();
    process_in(file.as_ref());
    running.signal(Signal::TERM);
    let ended = running.finish().expect(143);
    assert!(!ended.err.contains("restart"), "{ended:#?}");
}
