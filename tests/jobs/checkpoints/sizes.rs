//! Another number of ranks, every strategy, and servers.

use std::collections::BTreeMap;
use std::path::Path;

use candelabrum::prelude::*;

use super::job::Place;

/// Batches of 24 samples over all ranks, 10 steps in each of 10 epochs.
const OPTIONS: [&str; 8] =
    ["--plain", "--epochs", "10", "--threads", "1", "--checkpoint-every", "8", "--momentum=0.9"];

#[test]
fn at_another_number_of_ranks_the_global_batches_go_on_where_they_were() {
    let whole = Place::new(&OPTIONS);
    whole.succeed(&["--workers", "2", "--batch-size", "12"]);
    let place = Place::new(&OPTIONS);
    // The steps in which the runs die are counted from the checkpoint that they continue.
    let parts = [
        ("2", "12", Some("34")),
        ("3", "8", Some("24")),
        ("1", "24", Some("21")),
        ("2", "12", None),
    ];
    for (workers, batch, dies) in parts {
        let mut more = vec!["--workers", workers, "--batch-size", batch];
        more.extend(dies.map(|count| ["--die", "0", "backward", count]).into_iter().flatten());
        let ended = place.run(&more);
        assert_eq!(ended.succeeded(), dies.is_none(), "{}", ended.err);
        println!("{workers} rank(s): {}", ended.err.trim());
    }
    let (expected, found) = (whole.global_batches(2), place.global_batches(3));
    assert_eq!(found.len(), 100);
    for (step, samples) in &expected {
        assert_eq!(samples.len(), 24);
        assert_eq!(found.get(step), Some(samples), "step {step}");
    }
    let difference = largest_difference(&whole, &place);
    println!("after 100 steps, 2, 3, 1 and 2 ranks: parameters differ by {difference:.2e}");
    assert!(difference <= 1e-5, "{difference}");
}

#[test]
fn the_same_command_goes_on_at_any_number_of_ranks_any_number_of_times() {
    let options =
        ["--plain", "--epochs", "3", "--threads", "1", "--batch-size", "6", "--accumulate", "2"];
    let whole = Place::new(&options);
    whole.succeed(&["--workers", "2"]);
    let place = Place::new(&options);
    let starts = [("2", "4"), ("1", "7"), ("1", "9"), ("4", "11"), ("4", "14"), ("2", "16")];
    for (workers, last) in starts {
        place.succeed(&["--workers", workers, "--max-steps", last]);
    }
    // The same global batch by other numbers, then one that nobody has asked for.
    place.succeed(&["--workers", "3", "--batch-size=8", "--accumulate=1", "--max-steps", "18"]);
    let refused = place.run(&["--workers", "4", "--batch-size=5"]).err;
    let parts =
        ["of 24, this run has one of 40", "must be 6 on each of 4", "or 12 as at the first"];
    parts.iter().for_each(|part| assert!(refused.contains(part), "{refused}"));
    place.succeed(&["--workers", "1"]);
    assert_eq!(place.global_batches(4), whole.global_batches(2));
    assert!(largest_difference(&whole, &place) <= 1e-5);
}

#[test]
fn a_number_of_ranks_that_cannot_divide_the_batch_is_refused() {
    let place = Place::new(&OPTIONS);
    place.succeed(&["--workers", "2", "--batch-size", "12", "--epochs", "1"]);
    let ended = place.run(&["--workers", "5", "--batch-size", "4"]);
    let text = &ended.err;
    assert!(!ended.succeeded());
    assert!(text.contains("global batch of 24, which 5 ranks cannot divide equally"), "{text}");
    let ended = place.run(&["--workers", "2", "--batch-size", "6"]);
    let text = &ended.err;
    assert!(text.contains("global batch of 24, this run has one of 12"), "{text}");
}

#[test]
fn every_strategy_continues_with_the_same_bits() {
    let strategies = [
        "--dist-option fp16",
        "--dist-option partialUpdate",
        "--dist-option sparseTopK --spars 0.2",
        "--dist-option sparseThreshold --spars 0.01",
        "--precision bf16",
        "--optimizer adam --schedule cosine:60 --warmup 5 --clip 0.5",
        "--optimizer lamb --accumulate 2",
        "--uneven --batch-size 14",
        "--overlap false --threshold 50",
    ];
    for strategy in strategies {
        check_same_bits(strategy);
    }
}

#[test]
fn a_run_with_servers_continues_with_the_same_bits() {
    check_same_bits("--kvstore dist_sync --servers 2");
    check_same_bits("--kvstore dist_sync --gradient-compression 2bit:0.01");
    check_same_bits("--kvstore dist_sync --dist-option sparseTopK --spars 0.2");
}

/// A run of two ranks that is killed in its 17th step continues with the bits of one that is not.
fn check_same_bits(options: &str) {
    let common = ["--epochs", "3", "--threads", "1", "--workers", "2", "--checkpoint-every", "4"];
    let mut all: Vec<&str> = common.into_iter().chain(options.split(' ')).collect();
    if !options.contains("--batch-size") {
        all.extend(["--batch-size", "12"]);
    }
    let expected = Place::new(&all).succeed(&[]);
    let place = Place::new(&all);
    let ended = place.run(&["--die", "1", "forward", "17"]);
    assert!(!ended.succeeded(), "{options}: {}", ended.err);
    assert!(!place.steps().is_empty(), "{options}: {}", ended.err);
    assert_eq!(place.succeed(&[]), expected, "{options}");
}

/// The largest difference of the parameters in the last checkpoints of two runs.
fn largest_difference(one: &Place, other: &Place) -> f32 {
    let read = |place: &Place| {
        let path = place.checkpoints().join(&place.steps()[0]).join("parameters.safetensors");
        load(&path)
    };
    let (one, other) = (read(one), read(other));
    assert_eq!(one.len(), other.len());
    let mut largest = 0_f32;
    for (name, values) in &one {
        let difference = (values - &other[name]).unwrap().abs().unwrap();
        let all = difference.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        largest = all.into_iter().fold(largest, f32::max);
    }
    largest
}

fn load(path: &Path) -> BTreeMap<String, Tensor> {
    candelabrum::candle::safetensors::load(path, &Device::Cpu).unwrap().into_iter().collect()
}
