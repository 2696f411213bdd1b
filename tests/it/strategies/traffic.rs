//! The bytes that each strategy sends per step, and the point from which a sparse strategy sends
//! whole buckets.

use candelabrum::nn::Init;
use candelabrum::prelude::*;

use super::problem::ranks;

/// The number of elements of the parameter. A single parameter is one bucket; several would be a
/// small first bucket and a second one.
const LEN: usize = 10_000;

/// The bytes that a strategy sends per step, and its notes.
fn train(world: &World, option: DistOption, spars: f32, steps: u64) -> (f64, Vec<String>) {
    let params = Params::new(0);
    let weight = params.root().param("weight", LEN, Init::ZEROS).unwrap();
    let slope: Vec<f32> = (1..=LEN).map(|i| i as f32 / LEN as f32).collect();
    let slope = Tensor::from_vec(slope, LEN, &Device::Cpu).unwrap();
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, world).unwrap();
    for _ in 0..steps {
        let loss = (weight.tensor() * &slope).unwrap().sum_all().unwrap();
        opt.backward_and_update_with(&loss, option, spars).unwrap();
    }
    let figures = opt.figures(option);
    assert_eq!(figures.steps, steps);
    assert_eq!(figures.bytes_sent % steps, 0);
    (figures.bytes_sent as f64 / steps as f64, opt.take_notes())
}

/// Prints a table of bytes, which the test compares with the expected numbers.
pub(crate) fn rank(world: &World) {
    let say = |what: &str, (bytes, notes): (f64, Vec<String>)| {
        println!("\n{what}: {bytes} bytes, {} notes {}", notes.len(), notes.join(" "));
    };
    for option in [DistOption::Fp32, DistOption::Fp16, DistOption::Bf16] {
        say(option.name(), train(world, option, 0.05, 2));
    }
    say("sparseTopK 0.01", train(world, DistOption::SparseTopK, 0.01, 2));
    let break_even = LEN / world.world_size();
    for count in [break_even - 1, break_even] {
        let share = count as f32 / LEN as f32;
        say(&format!("sparseTopK of {count}"), train(world, DistOption::SparseTopK, share, 2));
    }
    // The slope rises linearly, so `count` elements are at least this large.
    for count in [break_even - 1, break_even] {
        let spars = (LEN - count) as f32 / LEN as f32 + 0.5 / LEN as f32;
        // Only the first step is counted by hand: in the second the residual has grown.
        let first = train(world, DistOption::SparseThreshold, spars, 1);
        say(&format!("sparseThreshold of {count}"), first);
    }
}

/// The bytes and notes that a rank printed for `what`.
fn read(text: &str, what: &str) -> (f64, usize) {
    let start = format!("{what}: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
    let mut words = line.split_whitespace();
    let bytes = words.next().unwrap().parse().unwrap();
    (bytes, words.nth(1).unwrap().parse().unwrap())
}

#[test]
fn payload_is_what_the_strategy_promises_and_dense_begins_at_the_break_even() {
    for world_size in [2, 4] {
        let outputs = ranks("traffic").run_all_good(world_size);
        for output in &outputs {
            let read = |what: &str| read(&output.text, what);
            let dense = 4.0 * LEN as f64;
            // The ranks of a strategy with state vote first: 4 bytes.
            let vote = 4.0;
            assert_eq!(read("fp32"), (dense, 0));
            assert_eq!(read("fp16"), (dense / 2.0, 0));
            assert_eq!(read("bf16"), (dense / 2.0, 0));
            assert_eq!(read("sparseTopK 0.01"), (8.0 * 100.0 + vote, 0));
            assert!(read("sparseTopK 0.01").0 <= 0.021 * dense);
            let break_even = LEN / world_size;
            let (below, at) = (break_even - 1, break_even);
            let sparse = 8.0 * below as f64 + vote;
            assert_eq!(read(&format!("sparseTopK of {below}")), (sparse, 0));
            // Two steps sent the whole bucket. One note says so.
            assert_eq!(read(&format!("sparseTopK of {at}")), (dense + vote, 1));
            let count = 4.0;
            assert_eq!(read(&format!("sparseThreshold of {below}")), (sparse + count, 0));
            assert_eq!(read(&format!("sparseThreshold of {at}")), (dense + vote + count, 1));
            let note = output.text.lines().find(|line| line.contains("sent whole")).unwrap();
            assert!(note.contains(&format!("1/{world_size}")), "{note}");
        }
    }
}
