//! Ranks on the GPU exchange gradients through NCCL, with every strategy of SINGA.

use std::time::Duration;

use candelabrum::dist::{BufferSync, DistOptConfig, parameters_sha256};
use candelabrum::nn::Recompute;
use candelabrum::nn::layers::{BatchNorm2d, Blocks, Conv2d, Linear};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;
use candle_nn::{VarBuilder, VarMap};

use crate::device::gpu;

const STEPS: u64 = 8;

pub(crate) const OPTIONS: [DistOption; 5] = [
    DistOption::Fp32,
    DistOption::Fp16,
    DistOption::PartialUpdate,
    DistOption::SparseTopK,
    DistOption::SparseThreshold,
];

/// A model with its inputs and its loss.
trait Network {
    fn new(device: &Device) -> (Params, Self)
    where
        Self: Sized;
    fn input(rank: usize, step: u64) -> Tensor;
    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor>;
}

fn noise(shape: &[usize], seed: u64) -> Tensor {
    uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap()
}

/// A convolution with a batch norm around a shortcut, and a layer that is used twice.
struct Residual {
    conv: Conv2d,
    norm: BatchNorm2d,
    again: Linear,
    out: Linear,
}

impl Network for Residual {
    fn new(device: &Device) -> (Params, Self) {
        let params = Params::on(3, DType::F32, device);
        let scope = params.root();
        let network = Self {
            conv: Conv2d::new(&scope.pp("conv"), 4, 3).padding(1),
            norm: BatchNorm2d::new(&scope.pp("norm")),
            again: Linear::new(&scope.pp("again"), 64).activation(Activation::Tanh),
            out: Linear::new(&scope.pp("out"), 2),
        };
        (params, network)
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[3, 4, 4, 4], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = (self.norm.forward(&self.conv.forward(xs)?)?.relu()? + xs)?;
        let ys = self.again.forward(&self.again.forward(&ys.flatten_from(1)?)?)?;
        self.out.forward(&ys)?.sqr()?.mean_all()
    }
}

/// So many layers that their gradients are lent memory where ranks share them. They are computed again in the backward
/// pass, so that ranks can share the parameters, too.
struct Deep(Blocks<Linear>);

impl Deep {
    fn of_type(dtype: DType, device: &Device) -> (Params, Self) {
        let params = Params::on(5, dtype, device);
        params.set_recompute(Recompute::All);
        let layer = |number: usize| {
            let scope = params.root().pp(format!("l{number}"));
            Linear::new(&scope, 12).activation(Activation::Tanh)
        };
        let layers = Blocks::new(&params.root(), (0..24).map(layer));
        (params, Self(layers))
    }
}

impl Network for Deep {
    fn new(device: &Device) -> (Params, Self) {
        Self::of_type(DType::F32, device)
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[5, 12], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.forward(xs)?.to_dtype(DType::F32)?.sqr()?.mean_all()
    }
}

/// [`Deep`] in bf16, whose masters ranks share.
struct DeepBf16(Deep);

impl Network for DeepBf16 {
    fn new(device: &Device) -> (Params, Self) {
        let (params, network) = Deep::of_type(DType::BF16, device);
        (params, Self(network))
    }

    fn input(rank: usize, step: u64) -> Tensor {
        Deep::input(rank, step).to_dtype(DType::BF16).unwrap()
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.loss(xs)
    }
}

/// Plain candle-nn.
struct Stock(candle_nn::Sequential);

impl Network for Stock {
    fn new(device: &Device) -> (Params, Self) {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
        let net = candle_nn::seq()
            .add(candle_nn::linear(6, 16, vb.pp("hidden")).unwrap())
            .add(candle_nn::Activation::Gelu)
            .add(candle_nn::linear(16, 3, vb.pp("out")).unwrap());
        let params = Params::from_varmap(&varmap).unwrap();
        // candle-nn's initial values cannot be seeded.
        for (number, param) in params.list().iter().enumerate() {
            let values = noise(param.var().dims(), number as u64).to_device(device).unwrap();
            param.set(&(values * 0.3).unwrap()).unwrap();
        }
        (params, Self(net))
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[5, 6], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.forward(xs)?.sqr()?.mean_all()
    }
}

/// The losses and the digest of the parameters after some steps on a device.
fn train<N: Network>(
    world: &World,
    device: &Device,
    option: DistOption,
    (overlap, shard): (bool, Shard),
) -> (Vec<f32>, String) {
    let (params, network) = N::new(device);
    let input = |step| N::input(world.rank(), step).to_device(device).unwrap();
    network.loss(&input(0)).unwrap(); // creates the parameters
    let config = DistOptConfig {
        overlap,
        shard,
        first_bucket_bytes: 600,
        bucket_bytes: 600,
        buffers: BufferSync::Local,
        ..DistOptConfig::default()
    };
    let sgd = Sgd::new(0.05).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, world, config).unwrap();
    let spars = if option == DistOption::SparseTopK { 0.3 } else { 0.02 };
    let step = |step| {
        let loss = network.loss(&input(step)).unwrap();
        opt.backward_and_update_with(&loss, option, spars).unwrap();
        loss.to_scalar::<f32>().unwrap()
    };
    let losses: Vec<f32> = (0..STEPS).map(step).collect();
    opt.average_parameters().unwrap();
    (losses, parameters_sha256(&params).unwrap())
}

fn compare<N: Network>(world: &World) {
    for option in OPTIONS {
        let (losses, digest) = train::<N>(world, world.device(), option, (true, Shard::None));
        let digests = world.comm().all_gather_text(&digest).unwrap();
        assert!(digests.iter().all(|other| *other == digest), "{option}: {digests:?}");
        let without_overlap = train::<N>(world, world.device(), option, (false, Shard::None));
        assert_eq!((&losses, digest), (&without_overlap.0, without_overlap.1), "{option}");
        for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
            let has_blocks = N::new(&Device::Cpu).0.has_blocks();
            if option == DistOption::PartialUpdate || shard == Shard::Parameters && !has_blocks {
                continue;
            }
            let (shared, digest) = train::<N>(world, world.device(), option, (true, shard));
            let digests = world.comm().all_gather_text(&digest).unwrap();
            assert!(digests.iter().all(|other| *other == digest), "{option}, {shard}: {digests:?}");
            let mut pairs = losses.iter().zip(&shared);
            // The buckets of sparse strategies are others. NCCL and norms add in orders of their own.
            let limit = if option.name().starts_with("sparse") { 0.05 } else { 1e-4 };
            let are_close = pairs.all(|(one, other)| (one - other).abs() <= limit);
            assert!(are_close, "{option}, {shard}: {losses:?}, {shared:?}");
        }
        // The CPU's numbers through the same communicator.
        let (on_cpu, _) = train::<N>(world, &Device::Cpu, option, (true, Shard::None));
        let mut pairs = losses.iter().zip(&on_cpu);
        let limit = if N::new(&Device::Cpu).0.dtype() == DType::F32 { 1e-4 } else { 0.02 };
        let are_close = pairs.all(|(gpu, cpu)| (gpu - cpu).abs() <= limit);
        assert!(are_close, "{option}: {losses:?}, {on_cpu:?}");
    }
}

pub(crate) fn world() -> World {
    candelabrum::train::set_threads(1).unwrap();
    let world = World::from_env().unwrap();
    assert!(world.device().is_cuda() && (world.world_size() == 1 || world.backend() == "nccl"));
    world
}

/// For a test whose ranks run the test function itself: the world of this process if it is a rank. In the test, for each
/// of the `counts`, so many ranks run, which share the first GPU. NCCL accepts them because each has another host's name.
pub(crate) fn on_ranks<F: Fn()>(test: F, counts: &[usize]) -> Option<World> {
    if is_rank() {
        return Some(world());
    }
    gpu()?;
    let ranks = RanksOf::new(test)
        .env("CANDELABRUM_DEVICE", "cuda:0")
        .env("CANDELABRUM_TIMEOUT", 60)
        .limit(Duration::from_secs(240));
    let most = counts.iter().copied().max().unwrap_or(0);
    let named = (0..most)
        .fold(ranks, |ranks, rank| ranks.env_of(rank, "NCCL_HOSTID", format!("host-{rank}")));
    named.run_in_test(counts);
    None
}

#[test]
fn every_strategy_trains_as_on_the_cpu() {
    let Some(world) = on_ranks(every_strategy_trains_as_on_the_cpu, &[2]) else { return };
    compare::<Residual>(&world);
    compare::<Deep>(&world);
    compare::<DeepBf16>(&world);
    compare::<Stock>(&world);
}

/// A loss or a gradient that is not finite on one rank.
#[test]
fn what_is_not_finite_is_named_on_every_rank_and_changes_nothing() {
    let Some(world) = on_ranks(what_is_not_finite_is_named_on_every_rank_and_changes_nothing, &[2])
    else {
        return;
    };
    for option in OPTIONS {
        for what in ["the loss", "the gradient of"] {
            let (params, network) = Stock::new(world.device());
            let sgd = Sgd::new(0.05).momentum(0.9);
            let mut opt = DistOpt::new(sgd, &params, &world).unwrap();
            for step in 0..5 {
                let xs = Stock::input(world.rank(), step).to_device(world.device()).unwrap();
                let loss = network.loss(&xs).unwrap();
                let bad = step == 3 && world.rank() == 1;
                let loss = match what {
                    _ if !bad => loss,
                    "the loss" => (loss * f64::INFINITY).unwrap(),
                    // Its value is finite, and its derivative is not.
                    _ => {
                        let weight = params.get("out.bias").unwrap();
                        let zeros = (weight.tensor() - weight.tensor()).unwrap();
                        (loss + zeros.sqrt().unwrap().sum_all().unwrap()).unwrap()
                    }
                };
                let state = |opt: &DistOpt| {
                    (parameters_sha256(&params).unwrap(), opt.strategy_state().unwrap())
                };
                let before = state(&opt);
                let result = opt.backward_and_update_with(&loss, option, 0.3);
                if step != 3 {
                    result.unwrap();
                    continue;
                }
                let error = result.expect_err(&format!("{option}, {what}")).to_string();
                let found = error.contains(what) && error.contains("is not finite on rank 1");
                assert!(found, "{option}, {what}: {error}");
                assert_eq!(state(&opt), before);
            }
        }
    }
}
