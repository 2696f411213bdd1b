//! The commands `report` and `watch`, with logs of runs that never were.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dashboard;
mod made_up;
mod report;
mod terminal;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use candelabrum_runlog::JSON_LINES_FILE;

/// The program, in a directory.
fn program(dir: &Path) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_candelabrum"));
    program.current_dir(dir);
    program
}

/// What the program does with these arguments.
fn run(dir: &Path, args: &[&str]) -> Output {
    program(dir).args(args).output().unwrap()
}

/// Checks that the program fails with this exit code and this text.
fn check_fails(dir: &Path, args: &[&str], code: i32, message: &str) {
    let output = run(dir, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains(message), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

/// Changes the lines of a log.
fn change(dir: &Path, change: impl FnOnce(&mut Vec<String>)) {
    let path = dir.join(JSON_LINES_FILE);
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    fs::write(&path, lines.join("\n")).unwrap();
}
