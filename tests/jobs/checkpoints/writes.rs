//! A run is killed before each of its system calls that change a file among its checkpoints. Nothing that was saved is
//! lost, the checkpoints that count as the best ones are the best ones, and the same command goes on to the end of a run
//! that nobody killed.
//!
//! A usual test tries every so-many-th call, and `CANDELABRUM_TESTS=all` all of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use candelabrum::train::checkpoint::{BestCheckpoint, export_best};
use candelabrum_testkit::{Program, runs_all};

use super::job::Place;
use super::program::ARGS;
use super::tracer;

/// Steps between two calls that a usual test tries.
const STRIDE: usize = 41;

/// The call before which the program is killed, and the folder whose changes are counted.
const KILL_AT: &str = "CHECKPOINT_TEST_KILL_AT";
const FOLDER: &str = "CHECKPOINT_TEST_FOLDER";

/// The last evaluations are worse than earlier ones, so the best checkpoint is not the newest one.
const OPTIONS: &str = "--plain --epochs 2 --batch-size 24 --optimizer adamw --lr 0.6 --threads 1 \
                       --checkpoint-every 3 --evaluate-every 2 --checkpoint-keep 1";

#[test]
fn a_kill_between_two_writes_loses_nothing_that_was_saved() {
    let sets = [
        ("best", 1, "--keep-best"),
        ("best 3 and average", 3, "--keep-best 3 --ema 0.5"),
        ("shards", 1, "--keep-best --shard gradients --workers 2 --batch-size=12"),
        (
            "shards of masters, best 3 and average",
            3,
            "--keep-best=3 --ema=0.5 --shard=optimizer --precision=f16 --workers=2 --batch-size=12",
        ),
    ];
    for (name, most, options) in sets {
        let options = format!("{OPTIONS} {options}");
        let whole = Place::new(&options);
        let Some(calls) = traced(&whole, None) else { return };
        let (expected, losses) = (whole.outcome(), losses(&whole));
        let best = best_of(&whole.checkpoints()).unwrap();
        let expected_names = names(&whole.checkpoints());
        assert_eq!(steps(&best), ranking(&losses, u64::MAX, most), "{name}");
        let tried: Vec<usize> = (1..=calls).step_by(if runs_all() { 1 } else { STRIDE }).collect();
        for &call in &tried {
            let place = Place::new(&options);
            assert_eq!(traced(&place, Some(call)), None, "{name}: call {call}");
            let at = format!("{name}: killed before call {call} of {calls}");
            check_best(&place.checkpoints(), &losses, most, &at);
            let ended = place.run("");
            assert!(ended.succeeded() && !ended.err.contains("skipped"), "{at}: {}", ended.err);
            assert_eq!(place.outcome(), expected, "{at}");
            assert_eq!(best_of(&place.checkpoints()).unwrap(), best, "{at}");
            // A kill in the last removal leaves a checkpoint that the next one would remove.
            let mut names = names(&place.checkpoints());
            names.retain(|name| !name.starts_with("step-") || expected_names.contains(name));
            assert_eq!(names, expected_names, "{at}");
        }
        println!("{name}: {} kills before {calls} calls", tried.len());
    }
}

/// What the directory says of its best checkpoints after a kill.
fn check_best(checkpoints: &Path, losses: &BTreeMap<u64, f64>, most: usize, at: &str) {
    let newest = step_names(checkpoints).into_iter().max();
    let expected = newest.map_or(Vec::new(), |newest| ranking(losses, newest, most));
    match best_of(checkpoints) {
        Ok(best) => assert_eq!(steps(&best), expected, "{at}"),
        Err(why) => assert!(expected.is_empty(), "{at}: {why}"),
    }
}

/// The best checkpoints, of which the best one can be read.
fn best_of(checkpoints: &Path) -> candelabrum::train::Result<BestCheckpoint> {
    let dir = tempfile::tempdir().unwrap();
    export_best(checkpoints, None, dir.path().join("best.safetensors"))
}

fn steps(best: &BestCheckpoint) -> Vec<u64> {
    best.ranked().map(|ranked| ranked.step).collect()
}

/// The steps of the best evaluations up to a step. Of equal losses the earlier one is the better one.
fn ranking(losses: &BTreeMap<u64, f64>, last: u64, most: usize) -> Vec<u64> {
    let mut all: Vec<(u64, f64)> =
        losses.range(..=last).map(|(step, loss)| (*step, *loss)).collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    all.into_iter().take(most).map(|(step, _)| step).collect()
}

/// The losses of all evaluations by their steps.
fn losses(place: &Place) -> BTreeMap<u64, f64> {
    let text = fs::read_to_string(place.notes().join("evaluations-0")).unwrap();
    let number = |text: &str| text.split([' ', ',']).next().unwrap().parse::<f64>().unwrap();
    let line = |line: &str| {
        let (step, rest) = line.split_once(" step: ").unwrap().1.split_once(" } ").unwrap();
        (step.parse().unwrap(), number(rest))
    };
    text.lines().map(line).collect()
}

/// Everything in the directory, with hidden names.
fn names(checkpoints: &Path) -> Vec<String> {
    let entries = fs::read_dir(checkpoints).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn step_names(checkpoints: &Path) -> Vec<u64> {
    if !checkpoints.exists() {
        return Vec::new();
    }
    let names = names(checkpoints);
    names.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect()
}

/// Runs the program of a place, and returns the number of calls that change a file among its checkpoints. `None` if it was
/// killed before one of them, or cannot be traced on this system.
fn traced(place: &Place, kill_at: Option<usize>) -> Option<usize> {
    let program = Program::from_test(tracer_main)
        .env(ARGS, place.args(""))
        .env(FOLDER, place.checkpoints())
        .env(KILL_AT, kill_at.unwrap_or_default().to_string());
    let ended = program.run();
    if ended.code == Some(tracer::KILLED) {
        return None;
    }
    if ended.code == Some(tracer::NOT_PERMITTED) {
        println!("left out: this system does not permit to trace a program");
        return None;
    }
    let ended = ended.success();
    let words: Vec<&str> = ended.out.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "calls").unwrap();
    Some(words[place - 1].parse().unwrap())
}

/// Not a test: the process that traces the program.
#[test]
fn tracer_main() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let kill_at = std::env::var(KILL_AT).unwrap().parse().unwrap();
    let program = Program::test("checkpoints::rank_main").after(tracer::STOP);
    let (program, _) = program.into_command();
    let mut command = Command::new(program.get_program());
    command.args(program.get_args());
    tracer::run(command, &PathBuf::from(folder), Some(kill_at).filter(|at| *at > 0));
}
