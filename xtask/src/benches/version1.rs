//! Tests with reports of the first version: every number in them is in a report of today that is made
//! from the same samples, and their tables and pictures can be drawn.

use std::fs;
use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::{allreduce, ddp, overlap, scaling, step};
use crate::bench::run::{annotate, picture};
use crate::bench::{Bench, Report, Row};
use crate::bench::{saved, table};
use crate::checkout::repo_root;

/// Every number in a value.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Number(number) => number.as_f64().into_iter().collect(),
        Value::Bool(yes) => vec![f64::from(*yes)],
        Value::Array(list) => list.iter().flat_map(numbers).collect(),
        Value::Object(map) => map.values().flat_map(numbers).collect(),
        Value::String(_) | Value::Null => Vec::new(),
    }
}

/// Reads an old file, and checks that no number is lost, and that the words are in the tables, the
/// notes or the picture. `PICTURES` names a folder for the picture.
fn check<B: Bench + Args>(words: &[&str]) {
    let path = repo_root().join(format!("xtask/fixtures/{}_1.json", B::FILE));
    let old = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let matches = B::augment_args(clap::Command::new("x")).get_matches_from(["x"]);
    let bench = B::from_arg_matches(&matches).unwrap();
    let mut report = saved::read(&path, B::NAME).unwrap();
    legs(&mut report).for_each(|rows| bench.derive(rows));
    let now = numbers(&serde_json::to_value(&report).unwrap());
    let is_there = |old: &f64| now.iter().any(|new| (new - old).abs() <= 1e-9 * old.abs());
    let lost: Vec<f64> = numbers(&old).into_iter().filter(|old| !is_there(old)).collect();
    assert_eq!(lost, [0.0; 0]);

    annotate(&bench, &mut report);
    let picture = picture(&bench, &report).svg();
    if let Some(folder) = std::env::var_os("PICTURES") {
        fs::write(Path::new(&folder).join(format!("{}.svg", B::FILE)), &picture).unwrap();
    }
    let mut text = report.notes.join("\n");
    for rows in legs(&mut report) {
        for columns in bench.tables(rows) {
            text += &table::lines(&columns, rows, true);
        }
    }
    for word in words {
        assert!(picture.contains(word) || text.contains(word), "{word}: {text}\n{picture}");
    }
}

/// The rows that were compared with each other.
fn legs(report: &mut Report) -> impl Iterator<Item = &mut [Row]> {
    let place = |row: &Row| {
        ["network", "threads", "backend", "size"].map(|name| row.point.get(name).cloned())
    };
    report.rows.chunk_by_mut(move |a, b| place(a) == place(b))
}

#[test]
fn old_reports_are_read_without_a_loss_and_shown() {
    check::<step::Step>(&[
        "MNIST CNN",
        "2 threads, images per second",
        "PyTorch, channels last",
        "× PyTorch)",
        "peak memory, MB",
        "candle's loss differs",
    ]);
    check::<ddp::Ddp>(&[
        "Candelabrum to the best DDP: ",
        "bucket views",
        "2 workers",
        "× best DDP",
    ]);
    check::<scaling::Scaling>(&[
        "images per second",
        "workers (ranks)",
        "milliseconds per step",
        "sparseTopK",
        "exposed communication",
        "cnn, local backend, 2 workers",
        "KB received",
    ]);
    check::<allreduce::AllReduce>(&[
        "2 ranks",
        "C, MPI_Allreduce",
        "100 ms",
        "1 MB",
        "1.7 MB",
        "of memory",
    ]);
    check::<overlap::Overlap>(&[
        "overlap off",
        "overlap hides 8% (from 5% to 13%)",
        "1230 Mbit/s",
        "busy comm.",
    ]);
}
