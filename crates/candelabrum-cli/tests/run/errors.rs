//! What cannot be started, and how the command says so.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::program::run;

#[test]
fn a_program_that_is_missing_or_cannot_be_executed_is_named_before_a_rank_starts() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "x").unwrap();
    let interpreted = dir.path().join("interpreted");
    fs::write(&interpreted, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&interpreted, fs::Permissions::from_mode(0o755)).unwrap();
    let missing = run(["-n", "2", "--max-restarts", "3"]).program("no-such-program");
    let missing = missing.finish().expect(127);
    let missing = missing.says(["error: no program `no-such-program` in PATH", "is it installed?"]);
    assert_eq!(missing.err.lines().count(), 1, "{missing:#?}");
    run([]).program("/no/such/file").finish().expect(127).says(["`/no/such/file`"]);
    run([]).program(&plain).finish().expect(126).says(["`chmod +x`"]);
    run([]).program(dir.path()).finish().expect(126).says(["is a folder"]);
    run([]).program(&interpreted).finish().expect(127).says(["interpreter in its first line"]);
}

#[test]
fn wrong_options_are_refused_with_advice() {
    for (options, part) in [
        (&["--workers", "0"][..], "it must be a number above 0, or auto"),
        (&["--workers", "1000"], "one host takes at most 256"),
        (&["-n", "2", "--servers", "255"], "257 ranks are asked for"),
        (&["--servers=-1"], "--servers"),
        (&["--min-workers", "3"], "the job begins with 1 workers"),
        (&["-n", "2", "--show", "5"], "--show names rank 5"),
        (&["--grace=-1"], "--grace"),
        (&["--oversubscribe"], "give --hostfile or --launcher"),
        (&["--interface", "no-such-interface"], "no-such-interface"),
    ] {
        run(options.iter().copied()).script("true").finish().expect(2).says([part]);
    }
    run(["-n", "2"]).finish().expect(2).says(["PROGRAM"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let log_dir = dir.path().join("file").join("logs").display().to_string();
    let ended = run(["--log-dir", &log_dir]).script("true").finish().expect(2);
    ended.says(["--log-dir", &log_dir]);
}

#[test]
fn a_rank_does_not_start_a_job() {
    let ended = run(["-n", "2"]).script("true");
    let ended = ended.env("RANK", "0").env("WORLD_SIZE", "2").finish().expect(2);
    ended.says(["is itself one of 2 ranks"]);
}
