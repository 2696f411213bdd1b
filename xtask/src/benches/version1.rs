//! A test: every number that a report of the first version has is in a report of today that is made
//! from the same samples.

use std::fs;

use clap::Args;
use serde_json::Value;

use super::{allreduce, ddp, overlap, scaling, step};
use crate::bench::run::Bench;
use crate::bench::sample::Row;
use crate::bench::saved::read;
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

/// The numbers of the old file that the new one lacks.
fn lost<B: Bench + Args>() -> Vec<f64> {
    let path = repo_root().join(format!("xtask/fixtures/{}_1.json", B::FILE));
    let old: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let matches = B::augment_args(clap::Command::new("x")).get_matches_from(["x"]);
    let bench = B::from_arg_matches(&matches).unwrap();
    let mut report = read(&path, B::NAME).unwrap();
    assert!(!report.rows.is_empty());
    // Rows are compared within a block or a leg.
    let place = |row: &Row| {
        ["network", "threads", "backend", "size"].map(|name| row.point.get(name).cloned())
    };
    report.rows.chunk_by_mut(|a, b| place(a) == place(b)).for_each(|rows| bench.derive(rows));
    let now = numbers(&serde_json::to_value(&report).unwrap());
    let is_there = |old: &f64| now.iter().any(|new| (new - old).abs() <= 1e-9 * old.abs());
    numbers(&old).into_iter().filter(|old| !is_there(old)).collect()
}

#[test]
fn every_number_of_the_first_version_is_in_todays() {
    assert_eq!(lost::<step::Step>(), [0.0; 0]);
    assert_eq!(lost::<ddp::Ddp>(), [0.0; 0]);
    assert_eq!(lost::<scaling::Scaling>(), [0.0; 0]);
    assert_eq!(lost::<allreduce::AllReduce>(), [0.0; 0]);
    assert_eq!(lost::<overlap::Overlap>(), [0.0; 0]);
}
