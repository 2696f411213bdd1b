//! Steps that are recorded as CUDA graphs: the same numbers, bit for bit, as without.

use std::sync::Arc;

use candelabrum::dist::{
    BufferSync, Collective, Group, LossScale, parameters_sha256, synchronize_batch_norm,
};
use candelabrum::memory::{ElementType, FlatTensor, Location};
use candelabrum::models::{Gpt, GptConfig, GruClassifier, GruClassifierConfig};
use candelabrum::nn::ops::Rotary;
use candelabrum::nn::{Recompute, recompute};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::{integers, uniform};

use crate::device::gpu;
use crate::linear::is_software_gpu;
use crate::ranks::{OPTIONS, on_ranks};

/// Three of them are computed before the fourth is recorded.
const STEPS: u64 = 9;
const REPLAYED: u64 = STEPS - 3;
const CLASSES: usize = 5;

/// Every kind of layer that has kernels and a state: running statistics, masks, several buckets.
struct Network {
    conv: Conv2d,
    norm: BatchNorm2d,
    hidden: Linear,
    dropout: Dropout,
    again: Dropout,
    out: Linear,
}

impl Network {
    fn new(scope: &Scope) -> Self {
        Self {
            conv: Conv2d::new(&scope.pp("conv"), 4, 3).padding(1),
            norm: BatchNorm2d::new(&scope.pp("norm")),
            hidden: Linear::new(&scope.pp("hidden"), 32).activation(Activation::Relu),
            dropout: Dropout::new(&scope.pp("dropout"), 0.3),
            again: Dropout::new(&scope.pp("again"), 0.2),
            out: Linear::new(&scope.pp("out"), CLASSES),
        }
    }
}

impl Model for Network {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.norm.forward(&self.conv.forward(xs)?)?;
        let ys = self.again.forward(&self.dropout.forward(&ys.flatten_from(1)?)?)?;
        self.out.forward(&self.hidden.forward(&ys)?)
    }
}

/// The state of a training after some steps.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<Option<f32>>,
    /// The sum of each step's outputs.
    outputs: Vec<f32>,
    digest: String,
    statistics: Vec<Vec<f32>>,
}

/// The settings of a training.
#[derive(Clone, Copy)]
struct Setting {
    option: DistOption,
    overlap: bool,
    /// The step and rank of a batch that is not finite.
    bad: Option<(u64, usize)>,
    /// The number of samples alternates between two.
    alternates: bool,
    /// From which step on and until which one the layers before the last are frozen.
    frozen: (u64, u64),
    /// The type of the parameters and images.
    dtype: DType,
    loss_scale: LossScale,
    shard: Shard,
}

const PLAIN: Setting = Setting {
    option: DistOption::Fp32,
    overlap: true,
    bad: None,
    alternates: false,
    frozen: (0, 0),
    dtype: DType::F32,
    loss_scale: LossScale::Off,
    shard: Shard::None,
};

fn images(seed: u64, samples: usize) -> Tensor {
    uniform((samples, 3, 6, 6), seed, -1.0, 1.0, DType::F32).unwrap()
}

fn tokens(seed: u64, samples: usize) -> Tensor {
    integers((samples, 7), seed, 20).unwrap()
}

/// The ranks, and the GPU of this one.
type On<'a> = (&'a World, &'a Device);

/// The results, the number of steps that were replayed, and the notes.
fn train<M: Model>(
    (world, device): On<'_>,
    new: impl Fn(&Scope) -> M,
    batch: impl Fn(u64, usize) -> Tensor,
    setting: Setting,
    use_graph: bool,
) -> (Trained, u64, Vec<String>) {
    let Setting { option, overlap, bad, alternates, frozen, dtype, loss_scale, shard } = setting;
    let params = Params::on(3, dtype, device);
    let on_device = |batch: Tensor| {
        let dtype = if batch.dtype() == DType::F32 { dtype } else { batch.dtype() };
        batch.to_dtype(dtype).unwrap().to_device(device).unwrap()
    };
    let config = DistOptConfig {
        overlap,
        first_bucket_bytes: 600,
        bucket_bytes: 600,
        buffers: BufferSync::Local,
        loss_scale,
        shard,
        ..DistOptConfig::default()
    };
    let sgd = Sgd::new(0.05).momentum(0.9);
    let opt = DistOpt::with_config(sgd, &params, world, config).unwrap();
    let mut trainer = Trainer::new(new(&params.root()), opt).use_graph(use_graph);
    trainer.compile_with(&on_device(batch(0, 2))).unwrap();
    trainer.train();
    let spars = if option == DistOption::SparseTopK { 0.3 } else { 0.02 };
    let (mut losses, mut outputs) = (Vec::new(), Vec::new());
    for step in 0..if alternates { 2 * STEPS } else { STEPS } {
        if step == frozen.0 {
            params.freeze(|name| !name.starts_with("out"));
        }
        if step == frozen.1 {
            params.list().iter().for_each(candelabrum::nn::Param::unfreeze);
        }
        let samples = if alternates && step % 2 == 1 { 3 } else { 4 };
        let seed = 100 * step + world.rank() as u64;
        let mut xs = batch(seed, samples);
        if bad == Some((step, world.rank())) {
            xs = (xs * f64::NAN).unwrap();
        }
        let labels = integers(samples, seed, CLASSES as u32).unwrap().to_device(device).unwrap();
        let xs = on_device(xs);
        let before = parameters_sha256(&params).unwrap();
        let result = trainer.train_one_batch(&xs, &labels, option, spars);
        if bad.is_some_and(|(bad, _)| bad == step) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("the loss is not finite on rank 1"), "{error}");
            assert_eq!(parameters_sha256(&params).unwrap(), before);
            losses.push(None);
        } else {
            let (output, loss) = result.unwrap();
            losses.push(Some(loss.to_scalar().unwrap()));
            let output = output.to_dtype(DType::F32).unwrap();
            outputs.push(output.sum_all().unwrap().to_scalar().unwrap());
        }
    }
    let opt = trainer.opt_mut();
    opt.average_parameters().unwrap();
    let figures = opt.figures(option);
    let leaves_early = overlap && option != DistOption::PartialUpdate;
    assert_eq!(figures.early_buckets > 0, leaves_early, "{option}: {figures:?}");
    let values = |buffer: &candelabrum::nn::Buffer| buffer.value().to_vec1().unwrap();
    let statistics = params.buffers().iter().map(values).collect();
    let digest = parameters_sha256(&params).unwrap();
    let notes = opt.take_notes();
    (Trained { losses, outputs, digest, statistics }, figures.replayed, notes)
}

/// Returns the number of replayed steps and the note about CUDA graphs.
fn compare<M: Model>(
    on: On<'_>,
    new: impl Fn(&Scope) -> M,
    batch: impl Fn(u64, usize) -> Tensor,
    setting: Setting,
) -> (u64, Option<String>) {
    let (expected, none, _) = train(on, &new, &batch, setting, false);
    assert_eq!(none, 0);
    let (got, replayed, notes) = train(on, &new, &batch, setting, true);
    assert_eq!(got, expected, "{}", setting.option);
    (replayed, notes.into_iter().find(|note| note.contains("CUDA graphs")))
}

#[test]
fn replayed_steps_are_the_same_steps_with_every_strategy() {
    let Some(world) = on_ranks(replayed_steps_are_the_same_steps_with_every_strategy, &[2]) else {
        return;
    };
    let on = (&world, world.device());
    for option in OPTIONS {
        for overlap in [true, false] {
            let setting = Setting { option, overlap, ..PLAIN };
            assert_eq!(compare(on, Network::new, images, setting), (REPLAYED, None));
        }
    }
    // The masters of parameters in bf16 are shares.
    for dtype in [DType::F32, DType::BF16] {
        let setting = Setting { dtype, shard: Shard::Optimizer, ..PLAIN };
        assert_eq!(compare(on, Network::new, images, setting), (REPLAYED, None), "{dtype:?}");
    }
}

#[test]
fn a_batch_that_is_not_finite_is_named_and_leaves_no_trace() {
    let Some(world) = on_ranks(a_batch_that_is_not_finite_is_named_and_leaves_no_trace, &[2])
    else {
        return;
    };
    let on = (&world, world.device());
    for bad in [3, 6] {
        let setting = Setting { bad: Some((bad, 1)), ..PLAIN };
        let (replayed, note) = compare(on, Network::new, images, setting);
        assert_eq!(note, None);
        // A failed step is not counted, and the kind of step is recorded again if it was that one.
        assert_eq!(replayed, REPLAYED - 1);
    }
}

/// Ignores the rows of a class. The loss takes the labels in this type: if it is not their own, the step computes them.
struct Ignores(Network, DType);

impl Model for Ignores {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.forward(xs)
    }

    fn loss(&self, output: &Tensor, targets: &Tensor) -> candelabrum::candle::Result<Tensor> {
        SoftMaxCrossEntropy::new().ignore_index(1).forward(output, &targets.to_dtype(self.1)?)
    }
}

#[test]
fn a_recorded_step_weighs_the_rows_of_its_own_batch() {
    let Some(world) = on_ranks(a_recorded_step_weighs_the_rows_of_its_own_batch, &[2]) else {
        return;
    };
    let on = (&world, world.device());
    let new = |scope: &Scope| Ignores(Network::new(scope), DType::U32);
    assert_eq!(compare(on, new, images, PLAIN), (REPLAYED, None));
    let new = |scope: &Scope| Ignores(Network::new(scope), DType::I64);
    let (replayed, note) = compare(on, new, images, PLAIN);
    assert_eq!(replayed, 0);
    assert!(note.is_some_and(|note| note.contains("labels that the step computes")));
}

#[test]
fn steps_of_a_recurrent_network_are_recorded() {
    let Some(gpu) = gpu() else { return };
    let config = GruClassifierConfig { vocabulary: 20, embedding: 8, hidden: 16, classes: CLASSES };
    let new = |scope: &Scope| GruClassifier::new(scope, config);
    assert_eq!(compare((&World::single(), &gpu), new, tokens, PLAIN), (REPLAYED, None));
}

/// A language model that repeats its tokens. The labels are not used.
struct Repeats(Gpt);

impl Model for Repeats {
    fn forward(&self, tokens: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.forward(tokens)
    }

    fn output_and_loss(
        &self,
        tokens: &Tensor,
        _: &Tensor,
    ) -> candelabrum::candle::Result<(Tensor, Tensor)> {
        self.0.output_and_loss(tokens, tokens)
    }
}

#[test]
fn steps_of_a_transformer_are_recorded() {
    let Some(gpu) = gpu() else { return };
    let config = GptConfig {
        vocabulary: 20,
        context: 9,
        layers: 2,
        width: 24,
        heads: 3,
        ..GptConfig::default()
    };
    let rotates = GptConfig { rotary: Some(Rotary::default()), tied: false, ..config };
    for config in [config, rotates] {
        for dtype in [DType::F32, DType::BF16] {
            let new = |scope: &Scope| Repeats(Gpt::new(scope, config));
            let setting = Setting { dtype, ..PLAIN };
            let result = compare((&World::single(), &gpu), new, tokens, setting);
            assert_eq!(result, (REPLAYED, None), "{dtype:?} {config:?}");
        }
    }
}

/// A network as one block, which the backward pass computes again.
struct Again(Params, Arc<Network>);

impl Model for Again {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let network = Arc::clone(&self.1);
        recompute(&self.0, &[xs], move |inputs| network.forward(&inputs[0]))
    }
}

#[test]
fn steps_with_blocks_that_are_computed_again_are_recorded() {
    let Some(gpu) = gpu() else { return };
    let world = World::single();
    let on = (&world, &gpu);
    let again = |scope: &Scope| Again(scope.params().clone(), Arc::new(Network::new(scope)));
    assert_eq!(compare(on, again, images, PLAIN), (REPLAYED, None));
    // Masks, running statistics and parameters are those of a training that keeps everything.
    let (recomputed, replayed, _) = train(on, again, images, PLAIN, true);
    assert_eq!(replayed, REPLAYED);
    assert_eq!(recomputed, train(on, Network::new, images, PLAIN, false).0);

    let config = GptConfig {
        context: 9,
        layers: 3,
        width: 24,
        heads: 3,
        dropout: 0.2,
        ..GptConfig::default()
    };
    let of = |blocks: Recompute| {
        move |scope: &Scope| {
            scope.params().set_recompute(blocks);
            Repeats(Gpt::new(scope, config))
        }
    };
    let whole = train(on, of(Recompute::None), tokens, PLAIN, false).0;
    for blocks in [Recompute::Half, Recompute::All] {
        let (recomputed, replayed, _) = train(on, of(blocks), tokens, PLAIN, true);
        assert_eq!((&recomputed, replayed), (&whole, REPLAYED), "{blocks:?}");
        assert_eq!(train(on, of(blocks), tokens, PLAIN, false).0, whole, "{blocks:?}");
    }
}

#[test]
fn steps_of_several_kinds_are_recorded() {
    let Some(gpu) = gpu() else { return };
    // The scale is doubled after every second step.
    let dynamic = LossScale::Dynamic { initial: 64.0, interval: 2 };
    for (name, setting, replayed) in [
        ("two shapes", Setting { alternates: true, ..PLAIN }, 2 * REPLAYED),
        // The steps 3 to 5 are replayed before the layers are unfrozen, or 3, 4 and 8 if they are frozen in between.
        ("unfrozen", Setting { frozen: (2, 6), ..PLAIN }, 3),
        ("frozen", Setting { frozen: (5, 9), ..PLAIN }, 3),
        ("bf16", Setting { dtype: DType::BF16, ..PLAIN }, REPLAYED),
        ("f16", Setting { dtype: DType::F16, loss_scale: dynamic, ..PLAIN }, REPLAYED),
    ] {
        let on = (&World::single(), &gpu);
        assert_eq!(compare(on, Network::new, images, setting), (replayed, None), "{name}");
    }
}

/// Asks for a number on the host in the forward pass, which then depends on it. While a GPU records a step, the
/// answer is whatever was in the host's memory.
struct AsksTheHost(Network);

impl Model for AsksTheHost {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.0.forward(xs)?;
        let first = ys.flatten_all()?.to_vec1::<f32>()?[0];
        if first > 0.0 { ys.affine(2.0, 0.0) } else { Ok(ys) }
    }
}

/// Uses an operation of candle that copies shapes from the host.
struct CopiesFromTheHost(Network);

impl Model for CopiesFromTheHost {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.0.forward(xs)?;
        ys.broadcast_sub(&ys.mean_keepdim(0)?)
    }
}

#[test]
fn a_step_that_cannot_be_recorded_is_computed_and_the_reason_is_said() {
    let Some(gpu) = gpu() else { return };
    let world = World::single();
    let on = (&world, &gpu);
    let reason = |(replayed, note): (u64, Option<String>)| {
        assert_eq!(replayed, 0);
        note.expect("a note")
    };
    let asks = |scope: &Scope| AsksTheHost(Network::new(scope));
    let note = reason(compare(on, asks, images, PLAIN));
    assert!(note.contains("asks for a number on the host"), "{note}");
    let copies = |scope: &Scope| CopiesFromTheHost(Network::new(scope));
    let note = reason(compare(on, copies, images, PLAIN));
    assert!(note.contains("repeating a copy from the host"), "{note}");
}

#[test]
fn copies_that_are_described_by_addresses_alone_are_told_apart() {
    let all = "graphs::replayed_steps_are_the_same_steps_with_every_strategy";
    let cannot = "graphs::a_step_that_cannot_be_recorded_is_computed_and_the_reason_is_said";
    for test in [all, cannot] {
        if gpu().is_some() {
            RanksOf::test(test).env("SOFTGPU_UNIFIED_COPIES", 1).run_all_good(1);
        }
    }
}

/// The memory of graphs is not in the pool of computed steps, and cuBLAS would allocate in a capture.
#[test]
fn freed_memory_goes_back_before_a_recording_and_cublas_has_its_own() {
    let Some(gpu) = gpu().filter(|_| is_software_gpu()) else { return };
    if is_rank() {
        compare((&World::single(), &gpu), Network::new, images, PLAIN);
        return;
    }
    let test = freed_memory_goes_back_before_a_recording_and_cublas_has_its_own;
    let rank = RanksOf::new(test).env("SOFTGPU_TRACE", 1);
    let text = rank.run_all_good(1).remove(0).text;
    let count = |call: &str| text.matches(&format!("softgpu: {call}\n")).count();
    assert_eq!((count("cuMemPoolTrimTo"), count("cublasSetWorkspace 33554432")), (1, 1));
}

/// Adds numbers on the GPU over the ranks, and does not use the sum.
struct Exchanges(Network, Group);

impl Model for Exchanges {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let ys = self.0.forward(xs)?;
        let numbers =
            FlatTensor::zeros_on(&Location::from_device(xs.device()), ElementType::F32, 4)?;
        let sum = self.1.start(Collective::AllReduce(ReduceOp::Sum), numbers.into()).wait();
        sum.map_err(candelabrum::candle::Error::from)?;
        Ok(ys)
    }
}

#[test]
fn a_step_with_an_exchange_in_the_forward_pass_is_not_recorded() {
    let Some(world) = on_ranks(a_step_with_an_exchange_in_the_forward_pass_is_not_recorded, &[2])
    else {
        return;
    };
    let on = (&world, world.device());
    let synchronised = |scope: &Scope| {
        synchronize_batch_norm(scope.params(), &Group::from(&world));
        Network::new(scope)
    };
    let (replayed, note) = compare(on, synchronised, images, PLAIN);
    assert_eq!(replayed, 0);
    let note = note.expect("a note");
    assert!(note.contains("asks for a number on the host"), "{note}");
    let exchanges = |scope: &Scope| Exchanges(Network::new(scope), Group::from(&world));
    let (replayed, note) = compare(on, exchanges, images, PLAIN);
    assert_eq!(replayed, 0);
    let note = note.expect("a note");
    assert!(note.contains("a collective in a step that is recorded"), "{note}");
}
