//! N ranks give the bits of one process that computes their N batches one after the other by candle's own backward pass
//! and averages in rank order: the exchange adds nothing and loses nothing.
//!
//! The ranks are processes of this test binary over the local backend. Rank 0 writes its final parameters to a file.
//! That N ranks with batch B train like one rank with batch N·B, up to rounding, is a law (`tests/law/steps.rs`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candelabrum::models::Cnn;
use candelabrum::optim::ParamInfo;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::runs_all;

use crate::ranks::world_of_rank;

const GLOBAL_BATCH: usize = 64;
const FILE: &str = "EQUIVALENCE_FILE";

/// The steps of a run: 100 with `CANDELABRUM_TESTS=all`.
fn steps() -> usize {
    if runs_all() { 100 } else { 30 }
}

/// The program of each rank: some steps on its part of the same global batches.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    candelabrum::train::set_threads(1).unwrap();
    let data = digits();
    let sampler = sampler(&data, world.rank(), world.world_size());
    // Each rank has another seed, to test that all ranks take rank 0's values.
    let params = Params::new(world.rank() as u64);
    let model = Cnn::new(&params.root(), 10);
    let mut trainer = Trainer::new(model, DistOpt::new(sgd(), &params, &world).unwrap());
    trainer.compile((1, 1, 28, 28)).unwrap();
    let batches = data.epoch_batches(&sampler, 0, &BatchOptions::default()).unwrap();
    for batch in batches.take(steps()) {
        let batch = batch.unwrap();
        trainer.train_one_batch(&batch.xs, &batch.ys, DistOption::Fp32, 0.05).unwrap();
    }
    let digests = trainer.parameters_sha256().unwrap();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    if world.is_root() {
        let file = std::env::var(FILE).unwrap();
        candelabrum::candle::safetensors::save(&values(&params), file).unwrap();
    }
}

#[test]
fn the_exchange_gives_the_bits_of_one_process_that_averages_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    for world_size in if runs_all() { vec![1, 2, 3, 4] } else { vec![1, 2, 3] } {
        let together = load(&run(dir.path(), world_size));
        let alone = one_after_the_other(world_size);
        assert_eq!(alone.len(), together.len());
        let same = |(name, value): (&String, &Tensor)| {
            let bits = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            bits(value) == bits(&together[name])
        };
        assert!(alone.iter().all(same), "{world_size} ranks");
    }
}

/// The parameters after the ranks' steps, computed by this process alone: it adds the gradients of
/// the ranks' batches in rank order and divides by the number of ranks.
fn one_after_the_other(world_size: usize) -> HashMap<String, Tensor> {
    let data = digits();
    let mut batches: Vec<_> = (0..world_size)
        .map(|rank| {
            let sampler = sampler(&data, rank, world_size);
            data.epoch_batches(&sampler, 0, &BatchOptions::default()).unwrap()
        })
        .collect();
    let params = Params::new(0);
    let model = Cnn::new(&params.root(), 10);
    model.compile(&params, (1, 1, 28, 28)).unwrap();
    let list = params.list();
    let mut sgd = sgd();
    let infos: Vec<_> = list.iter().map(|p| ParamInfo::on_host(p.name(), p.var().dims())).collect();
    sgd.bind(&infos).unwrap();
    for _ in 0..steps() {
        let mut sums: Vec<Vec<f32>> = Vec::new();
        for batches in &mut batches {
            let batch = batches.next().unwrap().unwrap();
            let loss = model.loss(&model.forward(&batch.xs).unwrap(), &batch.ys).unwrap();
            let grads = loss.backward().unwrap();
            let own = list.iter().map(|param| {
                let grad = grads.get(param.tensor()).unwrap();
                grad.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            });
            if sums.is_empty() {
                sums = own.collect();
                continue;
            }
            for (sum, own) in sums.iter_mut().zip(own) {
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
        }
        for (index, (param, sum)) in list.iter().zip(&mut sums).enumerate() {
            sum.iter_mut().for_each(|x| *x /= world_size as f32);
            param.update_in_place(|v| sgd.update(index, v, (&*sum).into()).unwrap()).unwrap();
        }
        sgd.step();
    }
    values(&params)
}

fn sgd() -> Sgd {
    Sgd::new(0.005).momentum(0.9).weight_decay(1e-5)
}

fn sampler(data: &ImageDataset, global_rank: usize, world_size: usize) -> DistributedSampler {
    let config = SamplerConfig {
        len: data.len(),
        global_rank,
        world_size,
        batch_size: GLOBAL_BATCH / world_size,
        seed: 0,
        shuffle: true,
        remainder: Remainder::Drop,
    };
    DistributedSampler::new(config).unwrap()
}

fn run(dir: &Path, world_size: usize) -> PathBuf {
    let file = dir.join(format!("{world_size}.safetensors"));
    RanksOf::new(rank_main).env(FILE, file.display()).run_all_good(world_size);
    file
}

fn values(params: &Params) -> HashMap<String, Tensor> {
    params.list().into_iter().map(|p| (p.name().to_owned(), p.tensor().detach())).collect()
}

fn load(path: &Path) -> HashMap<String, Tensor> {
    candelabrum::candle::safetensors::load(path, &Device::Cpu).unwrap()
}

/// Real MNIST if it is found, synthetic digits otherwise.
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
