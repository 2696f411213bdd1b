//! The exchange of units during the backward pass changes only the time: the bits are the same with
//! and without overlap and with buckets of any size. Ranks are real processes.

use candelabrum::dist::{BufferSync, DistOptConfig, parameters_sha256};
use candelabrum::nn::Init;
use candelabrum::nn::layers::{BatchNorm2d, Conv2d, Linear};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candle_nn::{VarBuilder, VarMap};

use crate::ranks::on_processes;

const STEPS: u64 = 8;

/// A model with its inputs and its loss.
trait Network {
    fn new() -> (Params, Self)
    where
        Self: Sized;
    fn input(rank: usize, step: u64) -> Tensor;
    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor>;
}

fn noise(shape: &[usize], seed: u64) -> Tensor {
    candelabrum_testkit::uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap()
}

/// Convolutions with batch norms around a shortcut. The layers are made in another order than they
/// are used, so the buckets of the first step differ from those of the later steps.
struct Residual {
    out: Linear,
    norms: [BatchNorm2d; 2],
    convs: [Conv2d; 2],
}

impl Network for Residual {
    fn new() -> (Params, Self) {
        let params = Params::new(3);
        let scope = params.root();
        let conv = |name: &str| Conv2d::new(&scope.pp(name), 4, 3).padding(1);
        let norm = |name: &str| BatchNorm2d::new(&scope.pp(name));
        let network = Self {
            out: Linear::new(&scope.pp("out"), 2),
            norms: [norm("norm0"), norm("norm1")],
            convs: [conv("conv0"), conv("conv1")],
        };
        (params, network)
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[3, 4, 6, 6], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.norms[0].forward(&self.convs[0].forward(xs)?)?.relu()?;
        let ys = (self.norms[1].forward(&self.convs[1].forward(&ys)?)? + xs)?;
        self.out.forward(&ys.flatten_from(1)?)?.sqr()?.mean_all()
    }
}

/// Linear layers. One of them is used three times.
struct Tied {
    first: Linear,
    again: Linear,
    last: Linear,
}

impl Network for Tied {
    fn new() -> (Params, Self) {
        let params = Params::new(4);
        let layer = |name: &str| Linear::new(&params.root().pp(name), 16);
        let layer = |name: &str| layer(name).activation(Activation::Tanh);
        let network = Self { first: layer("first"), again: layer("again"), last: layer("last") };
        (params, network)
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[5, 16], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let mut ys = self.first.forward(xs)?;
        for _ in 0..3 {
            ys = self.again.forward(&ys)?;
        }
        self.last.forward(&ys)?.sqr()?.mean_all()
    }
}

/// A stock candle_nn model, built anew for every step.
struct Stock(Params);

impl Stock {
    fn layers(builder: &VarBuilder<'_>) -> Vec<candle_nn::Linear> {
        (0..3).map(|i| candle_nn::linear(8, 8, builder.pp(i)).unwrap()).collect()
    }
}

impl Network for Stock {
    fn new() -> (Params, Self) {
        let varmap = VarMap::new();
        Self::layers(&VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu));
        let params = Params::from_varmap(&varmap).unwrap();
        for (i, param) in params.list().iter().enumerate() {
            param.set(&noise(param.var().dims(), i as u64)).unwrap();
        }
        (params.clone(), Self(params))
    }

    fn input(rank: usize, step: u64) -> Tensor {
        noise(&[5, 8], 100 * step + rank as u64)
    }

    fn loss(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let layers = Self::layers(&self.0.var_builder());
        let mut ys = xs.clone();
        for layer in layers {
            ys = layer.forward(&ys)?.tanh()?;
        }
        ys.sqr()?.mean_all()
    }
}

/// Trains. Returns the digest of the parameters and the number of units that were sent during
/// backward.
fn train<N: Network>(
    world: &World,
    option: DistOption,
    config: DistOptConfig,
    accumulate: bool,
) -> (String, u64) {
    let (params, network) = N::new();
    network.loss(&N::input(0, 0)).unwrap();
    let sgd = Sgd::new(0.05).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, world, config).unwrap();
    for step in 0..STEPS {
        if accumulate {
            opt.accumulate(&network.loss(&N::input(world.rank(), 1000 + step)).unwrap()).unwrap();
        }
        let loss = network.loss(&N::input(world.rank(), step)).unwrap();
        opt.backward_and_update_with(&loss, option, 0.02).unwrap();
    }
    opt.average_parameters().unwrap();
    (parameters_sha256(&params).unwrap(), opt.figures(option).early_buckets)
}

fn sizes(bytes: usize, overlap: bool) -> DistOptConfig {
    let (first_bucket_bytes, bucket_bytes) = (bytes, bytes);
    DistOptConfig { first_bucket_bytes, bucket_bytes, overlap, ..DistOptConfig::default() }
}

fn compare<N: Network>(world: &World) {
    let options = [
        DistOption::Fp32,
        DistOption::Fp16,
        DistOption::PartialUpdate,
        DistOption::SparseTopK,
        DistOption::SparseThreshold,
    ];
    for option in options {
        for bytes in [1, 600] {
            let (on, early) = train::<N>(world, option, sizes(bytes, true), false);
            let (off, none) = train::<N>(world, option, sizes(bytes, false), false);
            assert_eq!(on, off, "{option} with buckets of {bytes} bytes");
            assert_eq!(none, 0, "{option}: nothing leaves early without overlap");
            let overlaps = option != DistOption::PartialUpdate;
            assert_eq!(early >= STEPS - 3, overlaps, "{option}: {early} units left early");
        }
    }
    let plain =
        |bytes, accumulate| train::<N>(world, DistOption::Fp32, sizes(bytes, true), accumulate);
    let (tiny, large) = (plain(1, false), plain(1 << 20, false));
    assert_eq!(tiny.0, large.0, "the sums do not depend on the buckets");
    let off = train::<N>(world, DistOption::Fp32, sizes(1, false), true);
    let accumulated = plain(1, true);
    assert_eq!(accumulated.0, off.0, "accumulated gradients");
    assert!(accumulated.1 > 0 && accumulated.0 != tiny.0);
    let digests = world.comm().all_gather_text(&tiny.0).unwrap();
    assert!(digests.iter().all(|digest| *digest == tiny.0), "{digests:?}");
}

#[test]
fn overlap_and_bucket_sizes_change_no_bit() {
    let Some(world) = on_processes(RanksOf::new(overlap_and_bucket_sizes_change_no_bit), &[2, 3])
    else {
        return;
    };
    candelabrum::train::set_threads(1).unwrap();
    compare::<Residual>(&world);
    compare::<Tied>(&world);
    compare::<Stock>(&world);
}

#[test]
fn a_world_of_one_overlaps_too() {
    compare::<Tied>(&World::single());
}

/// Two buckets. The first is complete only at the end of the pass, because its parameter is unused
/// or is also used by candle's own operations.
#[test]
fn a_complete_bucket_waits_for_one_before_it_that_is_not() {
    let params = Params::new(0);
    let layer = |name: &str| Linear::new(&params.root().pp(name), 3).no_bias();
    let (fused, other) = (layer("fused"), layer("other"));
    let xs = noise(&[4, 3], 1);
    fused.forward(&xs).unwrap();
    other.forward(&xs).unwrap();
    let config = DistOptConfig { threshold: Some(1), allow_unused: true, ..Default::default() };
    let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, &World::single(), config).unwrap();
    for step in 0..6 {
        let ys = fused.forward(&xs).unwrap();
        let weight = params.get("other.weight").unwrap();
        let ys = match step % 2 {
            1 => ys,
            _ => other.forward(&ys).unwrap().matmul(weight.tensor()).unwrap(),
        };
        let loss = ys.sqr().unwrap().mean_all().unwrap();
        // The first bucket is that of the last parameter, `other`.
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap();
    }
}

/// A collective inside the backward pass, and a loss that is not finite on one rank.
#[test]
fn a_bad_loss_changes_no_order_and_training_goes_on() {
    let Some(world) =
        on_processes(RanksOf::new(a_bad_loss_changes_no_order_and_training_goes_on), &[2])
    else {
        return;
    };
    let (params, network) = Residual::new();
    network.loss(&Residual::input(0, 0)).unwrap();
    candelabrum::dist::synchronize_batch_norm(&params, &world.group());
    let sgd = Sgd::new(0.05).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, &world, sizes(1, true)).unwrap();
    for step in 0..6 {
        let loss = network.loss(&Residual::input(world.rank(), step)).unwrap();
        let bad = step == 3 && world.rank() == 1;
        let loss = if bad { (loss * f64::INFINITY).unwrap() } else { loss };
        let before = parameters_sha256(&params).unwrap();
        let result = opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0);
        if step != 3 {
            result.unwrap();
            continue;
        }
        let error = result.unwrap_err().to_string();
        // Through the statistics the infinity may reach rank 0's gradients before rank 1's loss is
        // checked.
        assert!(error.contains("is not finite on rank"), "{error}");
        assert_eq!(parameters_sha256(&params).unwrap(), before);
    }
}

/// Each rank has its own running statistics until `average_parameters` combines the models.
#[test]
fn one_model_is_made_of_the_ranks_statistics() {
    let Some(world) = on_processes(RanksOf::new(one_model_is_made_of_the_ranks_statistics), &[2])
    else {
        return;
    };
    for buffers in [BufferSync::Broadcast, BufferSync::Average, BufferSync::Local] {
        let (params, network) = Residual::new();
        network.loss(&Residual::input(0, 0)).unwrap();
        let config = DistOptConfig { buffers, ..DistOptConfig::default() };
        let mut opt = DistOpt::with_config(Sgd::new(0.05), &params, &world, config).unwrap();
        for step in 0..3 {
            let loss = network.loss(&Residual::input(world.rank(), step)).unwrap();
            opt.backward_and_update(&loss).unwrap();
        }
        let all = || {
            let values = |state: &candelabrum::nn::Buffer| state.value().to_vec1::<f32>().unwrap();
            let own: Vec<f32> = params.buffers().iter().flat_map(values).collect();
            world.comm().all_gather(&own).unwrap().chunks(own.len()).map(<[f32]>::to_vec).collect()
        };
        let before: Vec<Vec<f32>> = all();
        assert_ne!(before[0], before[1]);
        opt.average_parameters().unwrap();
        let after: Vec<Vec<f32>> = all();
        let mean = |i: usize| before.iter().map(|own| f64::from(own[i])).sum::<f64>() / 2.0;
        let mean: Vec<f32> = (0..before[0].len()).map(|i| mean(i) as f32).collect();
        match buffers {
            BufferSync::Broadcast => assert!(after.iter().all(|own| *own == before[0])),
            BufferSync::Average => assert!(after.iter().all(|own| *own == mean)),
            _ => assert_eq!(after, before),
        }
    }
}

/// Ranks have different numbers of batches. The expected step is the mean over the ranks that have
/// a batch.
#[test]
fn a_rank_without_batches_joins_the_steps_of_the_others() {
    let Some(world) =
        on_processes(RanksOf::new(a_rank_without_batches_joins_the_steps_of_the_others), &[3])
    else {
        return;
    };
    let params = Params::new(0);
    let weight = params.root().param("weight", 6, Init::Const(1.0)).unwrap();
    let config = DistOptConfig { uneven: true, ..DistOptConfig::default() };
    let mut opt = DistOpt::with_config(Sgd::new(0.5), &params, &world, config).unwrap();
    let batches = |rank: usize| [2, 5, 0][rank];
    let slope = |rank: usize, step: usize| (rank + 1) as f32 * 0.25 + step as f32;
    for step in 0..batches(world.rank()) {
        let loss = (weight.tensor() * f64::from(slope(world.rank(), step))).unwrap();
        let loss = loss.sum_all().unwrap();
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap();
    }
    let joined = opt.join(DistOption::Fp32, 0.0).unwrap();
    assert_eq!(joined, 5 - batches(world.rank()) as u64);
    let mut expected = 1.0;
    for step in 0..5 {
        let active: Vec<usize> = (0..3).filter(|&rank| step < batches(rank)).collect();
        let sum: f32 = active.iter().map(|&rank| slope(rank, step)).sum();
        expected -= 0.5 * sum / active.len() as f32;
    }
    for value in weight.tensor().to_vec1::<f32>().unwrap() {
        assert!((value - expected).abs() < 1e-5, "{value} instead of {expected}");
    }
    let digest = parameters_sha256(&params).unwrap();
    let digests = world.comm().all_gather_text(&digest).unwrap();
    assert!(digests.iter().all(|other| *other == digest), "{digests:?}");
}

#[test]
fn joining_must_be_asked_for() {
    let params = Params::new(0);
    params.root().param("weight", 6, Init::Const(1.0)).unwrap();
    let mut opt = DistOpt::new(Sgd::new(0.5), &params, &World::single()).unwrap();
    let error = opt.join(DistOption::Fp32, 0.0).unwrap_err().to_string();
    assert!(error.contains("uneven"), "{error}");
}

#[test]
fn candle_nns_layer_norm_is_found_out_and_its_parameters_are_named() {
    let varmap = VarMap::new();
    let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let below = candle_nn::linear(4, 4, builder.pp("below")).unwrap();
    #[expect(clippy::disallowed_methods, reason = "its missing backward is what is tested")]
    let norm = candle_nn::layer_norm(4, 1e-5, builder.pp("norm")).unwrap();
    let above = candle_nn::linear(4, 2, builder.pp("above")).unwrap();
    let params = Params::from_varmap(&varmap).unwrap();
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    let before = parameters_sha256(&params).unwrap();
    let ys = norm.forward(&below.forward(&noise(&[3, 4], 1)).unwrap()).unwrap();
    let loss = above.forward(&ys).unwrap().sqr().unwrap().mean_all().unwrap();
    let error = opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap_err();
    let error = error.to_string();
    for name in ["norm.weight", "norm.bias", "below.weight", "below.bias", "layer_norm"] {
        assert!(error.contains(name), "no `{name}`: {error}");
    }
    assert!(error.contains("`above.weight` is the furthest from the loss"), "{error}");
    assert!(!error.contains("above.bias"), "{error}");
    assert_eq!(parameters_sha256(&params).unwrap(), before);
}
