//! N ranks with batch B are one rank with batch N·B, and two runs are one run, bit for bit.
//!
//! The ranks are real processes of this test binary over the local backend; rank 0 leaves the
//! parameters it ends with in a file.

use std::path::{Path, PathBuf};

use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};

const STEPS: usize = 100;
const GLOBAL_BATCH: usize = 64;
const FILE: &str = "EQUIVALENCE_FILE";

/// What each rank does: 100 steps on its part of the same global batches.
#[test]
fn rank_main() {
    if !is_rank() {
        return;
    }
    candelabrum::train::set_threads(1).unwrap();
    let world = World::from_env().unwrap();
    let data = digits();
    let sampler = DistributedSampler::new(SamplerConfig {
        len: data.len(),
        global_rank: world.rank(),
        world_size: world.world_size(),
        batch_size: GLOBAL_BATCH / world.world_size(),
        seed: 5,
        shuffle: true,
        remainder: Remainder::Drop,
    })
    .unwrap();
    // Another seed on every rank: that rank 0's values are taken everywhere is part of the test.
    let params = Params::new(world.rank() as u64);
    let model = Cnn::new(&params.root(), 10);
    let sgd = Sgd::new(0.005).momentum(0.9).weight_decay(1e-5);
    let mut trainer = Trainer::new(model, DistOpt::new(sgd, &params, &world).unwrap());
    trainer.compile((1, 1, 28, 28)).unwrap();
    let batches = data.epoch_batches(&sampler, 0, &BatchOptions::default()).unwrap();
    for batch in batches.take(STEPS) {
        let batch = batch.unwrap();
        trainer.train_one_batch(&batch.xs, &batch.ys, DistOption::Fp32, 0.05).unwrap();
    }
    let digests = trainer.parameters_sha256().unwrap();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    if world.is_root() {
        let tensors = params.list().into_iter().map(|p| (p.name().to_owned(), p.tensor().detach()));
        let file = std::env::var(FILE).unwrap();
        candelabrum::candle::safetensors::save(&tensors.collect(), file).unwrap();
    }
}

#[test]
fn ranks_that_share_a_batch_train_as_one_that_has_it_all() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two, four] = [1, 2, 4].map(|world_size| run(dir.path(), world_size, "a"));
    for (world_size, other) in [(2, two), (4, four)] {
        let difference = largest_relative_difference(&one, &other);
        println!("{world_size} ranks x batch {}: {difference:.2e}", GLOBAL_BATCH / world_size);
        assert!(difference <= 1e-4, "{world_size} ranks differ by {difference:e}");
        assert!(
            difference > 0.0 || world_size == 1,
            "sums in another order differ in the last bits"
        );
    }
}

#[test]
fn two_runs_give_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    for world_size in [1, 2] {
        let [first, second] = ["a", "b"].map(|name| run(dir.path(), world_size, name));
        assert_eq!(std::fs::read(first).unwrap(), std::fs::read(second).unwrap());
    }
}

fn run(dir: &Path, world_size: usize, name: &str) -> PathBuf {
    let file = dir.join(format!("{world_size}-{name}.safetensors"));
    RanksOf::test("rank_main").env(FILE, file.display()).run_all_good(world_size);
    file
}

/// Largest difference of an element, relative to the largest element of its parameter.
fn largest_relative_difference(a: &Path, b: &Path) -> f32 {
    let load = |path| candelabrum::candle::safetensors::load(path, &Device::Cpu).unwrap();
    let (a, b) = (load(a), load(b));
    let largest = |t: &Tensor| {
        t.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap()
    };
    let difference = |(name, a): (&String, &Tensor)| largest(&(a - &b[name]).unwrap()) / largest(a);
    a.iter().map(difference).fold(0.0, f32::max)
}

/// Real MNIST where it is found, else synthetic digits.
fn digits() -> ImageDataset {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/mnist");
    let named = std::env::var_os("MNIST_DIR").map(PathBuf::from);
    match [Some(shared), named].into_iter().flatten().find_map(|dir| Mnist::open(dir).ok()) {
        Some(mnist) => mnist.train,
        None => {
            println!("real MNIST was not found: synthetic digits instead");
            Mnist::synthetic(0, 12_000, 100).unwrap().train
        }
    }
}
