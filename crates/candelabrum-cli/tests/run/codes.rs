//! Exit codes: that of the rank that failed.

use std::time::Duration;

use crate::program::{WAIT, lives, process_in, run, until};

#[test]
fn the_code_of_the_failing_rank_is_kept_and_the_others_are_ended() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other").display().to_string();
    let script = format!(
        r#"if [ "$CANDELABRUM_RANK" = 1 ]; then until [ -s {other} ]; do sleep 0.05; done; exit 7; fi; echo $$ > {other}; {WAIT}"#
    );
    let ended = run(["-n", "2"]).script(&script).finish().expect(7);
    let ended = ended.says(["error: rank 1 ended with exit status: 7"]);
    assert!(ended.took < Duration::from_secs(20), "{ended:#?}");
    let process = process_in(other.as_ref());
    until("the end of the other rank", || (!lives(process)).then_some(()));
}

#[test]
fn a_server_that_fails_is_named_by_its_rank() {
    let script = format!(r#"[ $DMLC_ROLE = server ] && exit 3; {WAIT}"#);
    let ended = run(["-n", "2", "--servers", "1"]).script(&script).finish().expect(3);
    ended.says(["error: rank 2 ended with exit status: 3"]);
}

#[test]
fn others_may_say_why_they_fail_too() {
    let script = "[ $CANDELABRUM_RANK = 1 ] && exit 3; sleep 0.1; echo has noticed; exit 4";
    let ended = run(["-n", "2", "--prefix", "none"]).script(script).finish().expect(3);
    assert_eq!(ended.says(["error: rank 1 ended with exit status: 3"]).out, "has noticed\n");
}

#[test]
fn a_signal_is_128_and_its_number() {
    for (name, number) in [("KILL", 9), ("SEGV", 11), ("ABRT", 6)] {
        let script = format!(
            r#"if [ "$CANDELABRUM_RANK" = 0 ]; then ulimit -c 0; kill -{name} $$; fi; {WAIT}"#
        );
        let ended = run(["-n", "2"]).script(&script).finish().expect(128 + number);
        ended.says([format!("error: rank 0 was killed by SIG{name}").as_str()]);
    }
}

#[test]
fn the_message_names_the_file_of_the_failing_rank() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().display().to_string();
    let script = r#"[ "$CANDELABRUM_RANK" = 0 ] || { echo "no data" >&2; exit 3; }; sleep 0.1"#;
    let ended = run(["-n", "2", "--log-dir", &log_dir]).script(script).finish().expect(3);
    ended.says([format!("(see {log_dir}/attempt-0/rank-1.err)").as_str()]);
}

#[test]
fn what_a_rank_leaves_behind_is_ended_with_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("left").display().to_string();
    let script =
        format!("sh -c 'echo $$ > {file}; {WAIT}' & until [ -s {file} ]; do sleep 0.05; done");
    run(["-n", "1", "--prefix", "rank"]).script(&script).finish().expect(0);
    assert!(!lives(process_in(file.as_ref())));
}
