//! Training through a key-value store: dist_sync gives the bits of an all-reduce, whatever the numbers
//! of workers and servers.
//!
//! The workers are processes of this test binary. Each trains one model through the store and a second
//! one by `DistOpt`, on the same batches, and compares the two.

use std::time::Duration;

use candelabrum::dist::{parameters_sha256, synchronize_batch_norm};
use candelabrum::models::Cnn;
use candelabrum::optim::Recipe;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;

use crate::ranks::world_of_rank;

const STEPS: usize = 100;
const BATCH: usize = 16;
const CASE: &str = "KVSTORE_CASE";

/// A network with batch normalisation and dropout, whose buffers and noise must be right, too.
struct Normed {
    conv: Conv2d,
    norm: BatchNorm2d,
    dropout: Dropout,
    out: Linear,
}

impl Normed {
    fn new(scope: &Scope) -> Self {
        Self {
            conv: Conv2d::new(&scope.pp("conv"), 4, 3).stride(2),
            norm: BatchNorm2d::new(&scope.pp("norm")),
            dropout: Dropout::new(&scope.pp("dropout"), 0.1),
            out: Linear::new(&scope.pp("out"), 10),
        }
    }
}

impl Model for Normed {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.norm.forward(&self.conv.forward(xs)?)?.relu()?;
        self.out.forward(&self.dropout.forward(&ys.flatten_from(1)?)?)
    }
}

fn digits() -> ImageDataset {
    Mnist::synthetic(0, 4 * BATCH * STEPS, 10).unwrap().train
}

/// The batches of a worker.
fn batches(world: &World) -> impl Iterator<Item = (Tensor, Tensor)> + use<> {
    let data = digits();
    let config = SamplerConfig {
        len: data.len(),
        global_rank: world.rank(),
        world_size: world.world_size(),
        batch_size: BATCH,
        seed: 1,
        shuffle: true,
        remainder: Remainder::Drop,
    };
    let sampler = DistributedSampler::new(config).unwrap();
    let batches = data.epoch_batches(&sampler, 0, &BatchOptions::default()).unwrap();
    let batches: Vec<_> = batches.take(STEPS).map(Result::unwrap).collect();
    batches.into_iter().map(|batch| (batch.xs, batch.ys))
}

/// Trains a model. Returns the digest of its parameters and the buffers after the last step, and the
/// number of gradients that left before the end of a backward pass.
fn trained<M: Model>(
    world: &World,
    (params, model): (&Params, M),
    opt: impl FnOnce() -> DistOpt,
    option: DistOption,
) -> ((String, Vec<f32>), u64) {
    let mut trainer = Trainer::new(model, opt());
    trainer.compile((1, 1, 28, 28)).unwrap();
    for (step, (xs, ys)) in batches(world).enumerate() {
        trainer.train_one_batch(&xs, &ys, option, 0.1).unwrap();
        if step % 40 == 0 {
            // An evaluation between two steps, as in a training.
            trainer.opt_mut().average_parameters().unwrap();
        }
    }
    trainer.opt_mut().average_parameters().unwrap();
    let buffers = params.buffers();
    let buffers = buffers.iter().flat_map(|buffer| {
        buffer.value().flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
    });
    let early = trainer.opt().figures(option).early_buckets;
    ((parameters_sha256(params).unwrap(), buffers.collect()), early)
}

/// An optimizer whose updates servers make.
fn served(world: &World, params: &Params, optimizer: impl Into<Recipe>) -> DistOpt {
    let store = KvStore::create("dist_sync", world).unwrap();
    let config = DistOptConfig {
        overlap_forward: true,
        first_bucket_bytes: 1 << 10,
        bucket_bytes: 1 << 16,
        ..DistOptConfig::default()
    };
    DistOpt::with_servers(optimizer, params, store.servers(), config).unwrap()
}

fn sgd() -> Sgd {
    let groups = ParamGroup::below_dims(2).weight_decay(0.0);
    Sgd::new(Schedule::Cosine { lr: 0.05, steps: 90, min: 1e-4 })
        .momentum(0.9)
        .weight_decay(1e-4)
        .group(groups)
}

fn adamw() -> AdamW {
    AdamW::new(1e-3).group(ParamGroup::matching("*.bias").lr_scale(2.0))
}

/// Compares training through the store with training by an all-reduce.
fn compare<M: Model, T: Optimizer + Into<Recipe> + 'static>(
    world: &World,
    make: impl Fn(&Params) -> M,
    optimizer: impl Fn() -> T,
    option: DistOption,
) {
    // Each rank has another seed, to test that all ranks take the first worker's values.
    let own = || {
        let params = Params::new(world.rank() as u64);
        let model = make(&params);
        (params, model)
    };
    let (params, model) = own();
    let through_store = || served(world, &params, optimizer());
    let (by_store, early) = trained(world, (&params, model), through_store, option);
    // The first step only shows which gradients candle computes itself, and the last bucket leaves at its end.
    assert!(early >= STEPS as u64 - 1, "{early} buckets");
    let (params, model) = own();
    let all_reduce = || DistOpt::new(optimizer(), &params, world).unwrap();
    let (by_all_reduce, _) = trained(world, (&params, model), all_reduce, option);
    assert_eq!(by_store, by_all_reduce, "{option}");
}

/// The program of each process.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    candelabrum::train::set_threads(1).unwrap();
    if world.is_server() {
        // A store ends when its last worker has dropped it.
        for _ in 0..std::env::var("KVSTORE_STORES").unwrap().parse().unwrap() {
            Server::new().run(&world).unwrap();
        }
        return;
    }
    match std::env::var(CASE).unwrap().as_str() {
        "sgd" => compare(&world, |p| Cnn::new(&p.root(), 10), sgd, DistOption::Fp32),
        "adamw" => compare(&world, |p| Normed::new(&p.root()), adamw, DistOption::Fp32),
        // The statistics are exchanged in the forward pass, after a step has begun.
        "synchronized" => {
            let normed = |params: &Params| {
                synchronize_batch_norm(params, &world.group());
                Normed::new(&params.root())
            };
            compare(&world, normed, adamw, DistOption::Fp32);
        }
        "candle_nn" => plain_candle(&world),
        "compressed" => learns_compressed(&world),
        other => panic!("{other}"),
    }
}

fn run(case: &str, workers: usize, servers: usize, stores: usize) {
    RanksOf::new(rank_main)
        .env(CASE, case)
        .env("KVSTORE_STORES", stores)
        .env("CANDELABRUM_SERVERS", servers)
        .env("RAYON_NUM_THREADS", 1)
        .limit(Duration::from_secs(300))
        .run_all_good(workers + servers);
}

#[test]
fn dist_sync_gives_the_bits_of_an_all_reduce() {
    for (workers, servers) in [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)] {
        run("sgd", workers, servers, 1);
    }
}

#[test]
fn adamw_groups_and_running_statistics_are_those_of_an_all_reduce() {
    run("adamw", 2, 1, 1);
    run("adamw", 3, 2, 1);
    run("synchronized", 2, 1, 1);
}

/// A model of candle_nn keeps its tensors, so no forward pass can wait for a parameter.
fn plain_candle(world: &World) {
    use candle_nn::VarMap;
    let build = || {
        let varmap = VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let first = candle_nn::linear(28 * 28, 32, vb.pp("first")).unwrap();
        let second = candle_nn::linear(32, 10, vb.pp("second")).unwrap();
        let params = Params::from_varmap(&varmap).unwrap();
        // candle draws other values in every process and for every model.
        for (number, param) in params.list().iter().enumerate() {
            let count = param.var().elem_count();
            let value = |i: usize| ((i * 37 + number * 11) % 101) as f32 / 1010.0 - 0.05;
            let values: Vec<f32> = (0..count).map(value).collect();
            param
                .set(&Tensor::from_vec(values, param.var().shape(), &Device::Cpu).unwrap())
                .unwrap();
        }
        let model = candle_nn::func(move |xs: &Tensor| {
            second.forward(&first.forward(&xs.flatten_from(1)?)?.relu()?)
        });
        (params, FromModule(model))
    };
    let (params, model) = build();
    let through_store = || served(world, &params, sgd());
    let (by_store, _) = trained(world, (&params, model), through_store, DistOption::Fp32);
    let (params, model) = build();
    let all_reduce = || DistOpt::new(sgd(), &params, world).unwrap();
    let (by_all_reduce, _) = trained(world, (&params, model), all_reduce, DistOption::Fp32);
    assert_eq!(by_store, by_all_reduce);
}

#[test]
fn a_model_of_candle_nn_trains_through_a_store() {
    run("candle_nn", 2, 1, 1);
}

/// With each compression the loss falls, and the workers have the same parameters.
fn learns_compressed(world: &World) {
    for (option, spars) in [
        (DistOption::Fp16, 0.0),
        (DistOption::Bf16, 0.0),
        (DistOption::SparseTopK, 0.1),
        (DistOption::TwoBit, 0.002),
    ] {
        let params = Params::new(0);
        let opt = served(world, &params, Sgd::new(0.02).momentum(0.9));
        let mut trainer = Trainer::new(Normed::new(&params.root()), opt);
        trainer.compile((1, 1, 28, 28)).unwrap();
        let mut losses = Vec::new();
        for (xs, ys) in batches(world) {
            let (_, loss) = trainer.train_one_batch(&xs, &ys, option, spars).unwrap();
            losses.push(loss.to_scalar::<f32>().unwrap());
        }
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let (first, last) = (mean(&losses[..10]), mean(&losses[STEPS - 10..]));
        assert!(last < 0.6 * first, "{option}: {first} {last}");
        trainer.opt_mut().average_parameters().unwrap();
        let digests = trainer.parameters_sha256().unwrap();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{option}: {digests:?}");
    }
}

#[test]
fn compressed_gradients_train() {
    run("compressed", 2, 2, 4);
}
