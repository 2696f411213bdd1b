//! Prefixes, files of each rank, and the choice of the ranks that are shown.

use std::fs;

use crate::program::run;

const BOTH: &str = r#"echo "out of $CANDELABRUM_RANK"; echo "err of $CANDELABRUM_RANK" >&2"#;

#[test]
fn each_line_begins_with_its_rank_on_its_own_stream() {
    let ended = run(["--workers", "2"]).script(BOTH).finish().expect(0);
    assert_eq!(ended.lines(), ["[0] out of 0", "[1] out of 1"]);
    ended.says(["[0] err of 0\n", "[1] err of 1\n"]);
}

#[test]
fn the_time_is_in_front_if_asked_for_and_nothing_if_not() {
    let ended = run(["-n", "2", "--prefix", "rank-time"]).script("echo x").finish().expect(0);
    for line in ended.lines() {
        let (prefix, rest) = line.split_once("] ").unwrap_or_else(|| panic!("{line}"));
        assert!(rest == "x" && prefix.matches(':').count() == 2, "{line}");
    }
    let ended = run(["-n", "2", "--prefix", "none"]).script("echo x").finish().expect(0);
    assert_eq!(ended.lines(), ["x", "x"]);
}

#[test]
fn a_single_rank_has_no_prefix() {
    let ended = run([]).script(r"printf 'a\nno end'").finish().expect(0);
    assert_eq!(ended.out, "a\nno end");
}

#[test]
fn files_have_the_bytes_of_each_rank_and_the_shown_ranks_are_a_choice() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("logs").display().to_string();
    let ended = run(["-n", "3", "--log-dir", &log_dir, "--show", "1"]);
    let ended = ended.script(BOTH).finish().expect(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("[1] out of 1\n", "[1] err of 1\n"));
    for rank in 0..3 {
        let file = |kind| dir.path().join(format!("logs/attempt-0/rank-{rank}.{kind}"));
        assert_eq!(fs::read_to_string(file("log")).unwrap(), format!("out of {rank}\n"));
        assert_eq!(fs::read_to_string(file("err")).unwrap(), format!("err of {rank}\n"));
    }
    let quiet = run(["-n", "3", "--quiet-ranks"]).script(BOTH).finish().expect(0);
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("[0] out of 0\n", "[0] err of 0\n"));
}

#[test]
fn lines_of_many_ranks_are_never_torn() {
    let script = r#"i=0; while [ $i -lt 300 ]; do printf "%s" a; echo bcdefgh; i=$((i+1)); done"#;
    let ended = run(["-n", "4"]).script(script).finish().expect(0);
    let lines = ended.lines();
    assert_eq!(lines.len(), 1200);
    for line in lines {
        assert_eq!(line.get(3..), Some(" abcdefgh"), "{line}");
    }
}

#[test]
fn ranks_know_their_place() {
    let ours =
        "$CANDELABRUM_RANK of $CANDELABRUM_WORLD_SIZE, $CANDELABRUM_SERVERS, $CANDELABRUM_RESTART";
    let of_mxnet = "$DMLC_ROLE $DMLC_NUM_WORKER $DMLC_NUM_SERVER";
    let ended = run(["-n", "2", "--servers", "1", "--prefix", "none"]);
    let ended = ended.script(&format!(r#"echo "{ours}: {of_mxnet}, $MINE""#)).env("MINE", "a b");
    let ended = ended.finish().expect(0);
    let expected = [
        "0 of 3, 1, 0: worker 2 1, a b",
        "1 of 3, 1, 0: worker 2 1, a b",
        "2 of 3, 1, 0: server 2 1, a b",
    ];
    assert_eq!(ended.lines(), expected);
    let alone = run(["-n", "1", "--prefix", "none"]).script(&format!("echo {of_mxnet}"));
    assert_eq!(alone.finish().expect(0).lines(), [""]);
}
