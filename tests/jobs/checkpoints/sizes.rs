//! Another number of ranks, every strategy, and servers.

use std::collections::BTreeMap;
use std::path::Path;

use candelabrum::prelude::*;

use super::job::Place;

/// Batches of 24 samples over all ranks, 10 steps in each of 10 epochs.
const OPTIONS: &str = "--plain --epochs 10 --threads 1 --checkpoint-every 8 --momentum=0.9";

#[test]
fn the_same_command_goes_on_at_any_number_of_ranks_any_number_of_times() {
    let options = "--plain --epochs 3 --threads 1 --batch-size 6 --accumulate 2";
    let whole = Place::new(options);
    whole.succeed("--workers 2");
    let place = Place::new(options);
    let starts = [(2, 4), (1, 7), (1, 9), (4, 11), (4, 14), (2, 16)];
    for (workers, last) in starts {
        place.succeed(&format!("--workers {workers} --max-steps {last}"));
    }
    // The same global batch by other numbers, then one that nobody has asked for.
    place.succeed("--workers 3 --batch-size=8 --accumulate=1 --max-steps 18");
    let refused = place.run("--workers 4 --batch-size=5").err;
    let parts =
        ["of 24, this run has one of 40", "must be 6 on each of 4", "or 12 as at the first"];
    parts.iter().for_each(|part| assert!(refused.contains(part), "{refused}"));
    place.succeed("--workers 1");
    assert_eq!(place.global_batches(4), whole.global_batches(2));
    assert!(largest_difference(&whole, &place) <= 1e-5);
}

#[test]
fn a_number_of_ranks_that_cannot_divide_the_batch_is_refused() {
    let place = Place::new(OPTIONS);
    place.succeed("--workers 2 --batch-size 12 --epochs 1");
    let ended = place.run("--workers 5 --batch-size 4");
    let text = &ended.err;
    assert!(!ended.succeeded());
    assert!(text.contains("global batch of 24, which 5 ranks cannot divide equally"), "{text}");
    let ended = place.run("--workers 2 --batch-size 6");
    let text = &ended.err;
    assert!(text.contains("global batch of 24, this run has one of 12"), "{text}");
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
