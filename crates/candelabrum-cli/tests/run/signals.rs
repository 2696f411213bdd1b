//! Signals reach the ranks, and the job ends in time.

use std::path::Path;
use std::time::{Duration, Instant};

use candelabrum_dist::launch::AGAIN;
use rustix::process::{Pid, Signal};

use crate::program::{Running, WAIT, lives, process_in, run};

/// A rank that saves its work on a signal.
fn saving(dir: &Path, signal: &str) -> String {
    let dir = dir.display();
    format!(
        r#"trap 'sleep 0.3; echo "rank $CANDELABRUM_RANK saved on {signal}"; exit 0' {signal}
        echo $$ > {dir}/$CANDELABRUM_RANK; {WAIT}"#
    )
}

/// A rank that takes no notice of SIGTERM and SIGINT.
fn deaf(dir: &Path) -> String {
    format!("trap '' TERM INT; echo $$ > {}/$CANDELABRUM_RANK; {WAIT}", dir.display())
}

/// The processes of two ranks, once both have set their traps.
fn both(dir: &Path) -> [Pid; 2] {
    ["0", "1"].map(|rank| process_in(&dir.join(rank)))
}

#[test]
fn ranks_save_their_work_on_each_signal_that_asks_for_the_end() {
    for (signal, name, number) in
        [(Signal::TERM, "TERM", 15), (Signal::INT, "INT", 2), (Signal::HUP, "HUP", 1)]
    {
        let dir = tempfile::tempdir().unwrap();
        let running = run(["-n", "2"]).script(&saving(dir.path(), name)).start();
        both(dir.path());
        running.signal(signal);
        let ended = running.finish().expect(128 + number);
        let saved = |rank| format!("[{rank}] rank {rank} saved on {name}");
        assert_eq!(ended.lines(), [saved(0), saved(1)]);
        ended.says([format!("error: interrupted by SIG{name}\n").as_str()]);
    }
}

#[test]
fn another_signal_can_stand_for_sigterm_and_others_do_not_end_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let script = saving(dir.path(), "USR1");
    let running = run(["-n", "2", "--stop-signal", "usr1"]).script(&script).start();
    both(dir.path());
    running.signal(Signal::TERM);
    assert_eq!(running.finish().expect(143).lines().len(), 2);

    let dir = tempfile::tempdir().unwrap();
    let running = run(["-n", "2"]).script(&saving(dir.path(), "USR2")).start();
    both(dir.path());
    running.signal(Signal::USR2);
    assert_eq!(running.finish().expect(0).lines().len(), 2);
}

#[test]
fn ranks_that_do_not_end_within_the_grace_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    // One rank ends in time, the other one does not.
    let script = format!(
        r#"if [ "$CANDELABRUM_RANK" = 1 ]; then trap '' TERM; else trap 'exit 0' TERM; fi
        echo $$ > {}/$CANDELABRUM_RANK; {WAIT}"#,
        dir.path().display()
    );
    for by_variable in [false, true] {
        let running = match by_variable {
            true => run(["-n", "2"]).env("CANDELABRUM_GRACE", "0.5"),
            false => run(["-n", "2", "--grace", "0.5"]).env("CANDELABRUM_GRACE", "600"),
        };
        let running = running.script(&script).start();
        let ranks = both(dir.path());
        running.signal(Signal::TERM);
        let ended = running.finish().expect(143).says([
            "error: interrupted by SIGTERM; rank 1 did not end in time and had to be killed: what was not saved is lost\n",
        ]);
        assert!(ended.took > Duration::from_millis(500), "{ended:#?}");
        assert!(!ranks.into_iter().any(lives), "{ended:#?}");
        for rank in ["0", "1"] {
            std::fs::remove_file(dir.path().join(rank)).unwrap();
        }
    }
}

#[test]
fn an_interrupt_some_seconds_after_the_first_one_does_not_wait_for_the_grace() {
    let dir = tempfile::tempdir().unwrap();
    let mut running: Running = run(["-n", "2"]).script(&deaf(dir.path())).start();
    let ranks = both(dir.path());
    let begin = Instant::now();
    running.signal(Signal::INT);
    // All that comes within a moment is the same request.
    running.signal(Signal::TERM);
    while !running.has_ended() {
        std::thread::sleep(Duration::from_millis(50));
        running.signal(Signal::INT);
    }
    let took = begin.elapsed();
    let ended = running.finish().expect(130);
    assert!(took >= AGAIN && took < Duration::from_secs(20), "{took:?} {ended:#?}");
    assert!(!ranks.into_iter().any(lives), "{ended:#?}");
}

#[test]
fn a_signal_reaches_the_program_behind_a_wrapper() {
    let dir = tempfile::tempdir().unwrap();
    let inner = saving(dir.path(), "TERM").replace('\'', r"'\''");
    // The wrapper waits for the program, as a script of the user does.
    let running = run(["-n", "2"]).script(&format!("trap : TERM; sh -c '{inner}'; exit 0")).start();
    both(dir.path());
    running.signal(Signal::TERM);
    assert_eq!(running.finish().expect(143).lines().len(), 2);
}

#[test]
fn ranks_end_when_the_command_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let running = run(["-n", "2"]).script(&deaf(dir.path())).start();
    let ranks = both(dir.path());
    running.signal(Signal::KILL);
    let ended = running.finish();
    assert_eq!(ended.signal, Some(9));
    crate::program::until("the end of the ranks", || (!ranks.into_iter().any(lives)).then_some(()));
}
