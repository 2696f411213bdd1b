//! Blocks that are computed again in the backward pass: the bits of a training without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candelabrum_nn::layers::{
    BatchNorm2d, Blocks, Conv2d, Dropout, Gru, LayerNorm, Linear, TransformerBlock,
};
use candelabrum_nn::ops::profile;
use candelabrum_nn::{
    FlatGradients, LoraConfig, LoraLayers, Params, Recompute, Scope, ops, recompute,
};
use candelabrum_testkit::uniform;
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::composites::gpu;
use crate::hooks::each_its_own_unit;

struct Block(Box<dyn Module + Send + Sync>);

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// The kinds of blocks, of inputs `(2, 4, 8)`, or `(2, 4, 6, 6)` for images.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Transformer,
    Images,
    Recurrent,
    /// Operations of candle between those of this crate.
    Mixed,
    /// Blocks within a block.
    Nested,
    Adapters,
}

const KINDS: [Kind; 6] =
    [Kind::Transformer, Kind::Images, Kind::Recurrent, Kind::Mixed, Kind::Nested, Kind::Adapters];

struct Of<F>(F);

impl<F: Fn(&Tensor) -> Result<Tensor>> Module for Of<F> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        (self.0)(xs)
    }
}

fn block(kind: Kind, scope: &Scope) -> Block {
    Block(match kind {
        Kind::Transformer | Kind::Adapters => {
            Box::new(TransformerBlock::new(scope, 2).causal().dropout(0.3))
        }
        Kind::Images => {
            let conv = Conv2d::new(&scope.pp("conv"), 4, 3).padding(1);
            let norm = BatchNorm2d::new(&scope.pp("norm"));
            Box::new(Of(move |xs: &Tensor| norm.forward_add(&conv.forward(xs)?, xs)))
        }
        Kind::Recurrent => {
            let (gru, norm) = (Gru::new(&scope.pp("gru"), 8), LayerNorm::new(&scope.pp("norm")));
            Box::new(Of(move |xs: &Tensor| norm.forward(&gru.forward(xs)?)))
        }
        Kind::Mixed => {
            let (linear, drop) = (Linear::new(&scope.pp("linear"), 8), Dropout::new(scope, 0.5));
            Box::new(Of(move |xs: &Tensor| {
                (drop.forward(&linear.forward(xs)?.tanh()?)? + xs)?.relu()
            }))
        }
        Kind::Nested => {
            let inner = |number: usize| TransformerBlock::new(&scope.pp(number), 2).dropout(0.2);
            let (inner, last) = (Blocks::new(scope, (0..2).map(inner)), Dropout::new(scope, 0.1));
            Box::new(Of(move |xs: &Tensor| last.forward(&inner.forward(xs)?)))
        }
    })
}

/// What a training leaves.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<u32>,
    gradients: Vec<Vec<u32>>,
    buffers: Vec<Vec<u32>>,
    /// The parameters in the order in which their gradients were complete.
    order: Vec<usize>,
    draws: u64,
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    let numbers = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(numbers.into_iter().map(f32::to_bits).collect())
}

/// Two passes through four blocks, whose gradients are added.
fn train(kind: Kind, chosen: Recompute, dtype: DType, device: &Device) -> Result<Trained> {
    let params = Params::on(3, dtype, device);
    let root = params.root();
    params.set_recompute(chosen);
    let stem = Linear::new(&root.pp("stem"), if kind == Kind::Images { 6 } else { 8 });
    let blocks = Blocks::new(&root, (0..4).map(|number| block(kind, &root.pp(number))));
    let shape: &[usize] = if kind == Kind::Images { &[2, 4, 6, 6] } else { &[2, 4, 8] };
    let input =
        |seed: u64| uniform(shape, seed, -1.0, 1.0, DType::F32)?.to_dtype(dtype)?.to_device(device);
    let forward = |xs: &Tensor| blocks.forward(&stem.forward(xs)?);
    forward(&input(9)?)?;
    if kind == Kind::Adapters {
        let config = LoraConfig { rank: 2, dropout: 0.2, ..LoraConfig::default() };
        LoraLayers::attach(&params, &config).map_err(candle_core::Error::wrap)?;
    }
    let mut gradients: FlatGradients = each_its_own_unit(&params)?;
    let mut losses = Vec::new();
    for pass in 0..2 {
        let ys = forward(&input(pass)?)?;
        let loss = ys.to_dtype(DType::F32)?.sqr()?.sum_all()?;
        losses.extend(bits(&loss)?);
        gradients.backward(&loss)?;
    }
    gradients.zero_rest()?;
    let order = gradients.ready_order().to_vec();
    let numbers = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect();
    let gradients = gradients.buckets().map(|(_, bucket)| Ok(numbers(bucket.to_host()?.to_vec()?)));
    let gradients = gradients.collect::<Result<_>>()?;
    let buffers =
        params.buffers().iter().map(|buffer| bits(&buffer.value())).collect::<Result<_>>()?;
    Ok(Trained { losses, gradients, buffers, order, draws: params.noise_draws() })
}

fn check_bits(dtypes: &[DType], device: &Device) -> Result<()> {
    for kind in KINDS {
        for &dtype in dtypes {
            let whole = train(kind, Recompute::None, dtype, device)?;
            for chosen in [Recompute::Half, Recompute::All] {
                let found = train(kind, chosen, dtype, device)?;
                assert_eq!(found, whole, "{kind:?}, {chosen:?}, {dtype:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_bits_are_those_without_recomputation() -> Result<()> {
    check_bits(&[DType::F32, DType::BF16, DType::F16], &Device::Cpu)
}

#[test]
fn the_bits_are_those_without_recomputation_on_a_gpu() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    check_bits(&[DType::F32, DType::BF16], &gpu)
}

#[test]
fn composites_have_the_bits_too() -> Result<()> {
    ops::with_composites(|| check_bits(&[DType::F32], &Device::Cpu))
}

#[test]
fn all_inputs_that_need_a_gradient_have_theirs() -> Result<()> {
    let params = Params::new(0);
    let root = params.root();
    let [a, b] = ["a", "b"].map(|name| Linear::new(&root.pp(name), 4));
    let xs = uniform((3, 4), 1, -1.0, 1.0, DType::F32)?;
    let mask =
        Tensor::new(&[1f32, 0.0, 2.0, 1.0], &Device::Cpu)?.broadcast_as((3, 4))?.contiguous()?;
    let gradients = |is_recomputed: bool| -> Result<Vec<Vec<u32>>> {
        let (first, second) = (a.forward(&xs)?, b.forward(&xs)?);
        // A view, a result of candle, a tensor outside of the graph, and one that the block does not use.
        let inputs = [&first.t()?, &second.exp()?, &mask, &second];
        let block = |inputs: &[Tensor]| -> Result<Tensor> {
            let product = ops::mul(&inputs[1], &inputs[2])?;
            ops::add(&inputs[0].t()?, &product, None)? + &product
        };
        let ys = if is_recomputed {
            recompute(&params, &inputs, block)?
        } else {
            block(&inputs.map(Tensor::clone))?
        };
        let gradients = ys.sqr()?.sum_all()?.backward()?;
        let of = |param: &candelabrum_nn::Param| bits(gradients.get(param.var()).unwrap());
        params.list().iter().map(of).collect()
    };
    let expected = gradients(false)?;
    assert_eq!(gradients(true)?, expected);
    Ok(())
}

#[test]
fn a_block_is_computed_twice_but_for_its_last_result() -> Result<()> {
    let params = Params::new(0);
    let root = params.root();
    let layers = Arc::new(["up", "down"].map(|name| Linear::new(&root.pp(name), 4)));
    let xs = uniform((3, 4), 1, -1.0, 1.0, DType::F32)?;
    for is_training in [true, false] {
        let (calls, layers) = (Arc::<AtomicUsize>::default(), Arc::clone(&layers));
        let counted = Arc::clone(&calls);
        let of_params = params.clone();
        let block = move |inputs: &[Tensor]| {
            counted.fetch_add(1, Ordering::Relaxed);
            assert_eq!(of_params.is_training(), is_training);
            layers[1].forward(&ops::relu(&layers[0].forward(&inputs[0])?)?)
        };
        profile::start();
        let ys = params.in_mode(is_training, || recompute(&params, &[&xs], block))?;
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        ys.sum_all()?.backward()?;
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        let operations = profile::stop().operations;
        let linear = operations.iter().find(|row| row.name == "linear").map(|row| row.calls);
        // Both layers in the forward pass, and the first one again.
        assert_eq!(linear, Some(3), "{operations:?}");
    }
    Ok(())
}

#[test]
fn a_block_that_reads_a_tensor_of_the_graph_besides_is_refused() -> Result<()> {
    let params = Params::new(0);
    let linear = Linear::new(&params.root().pp("linear"), 4);
    let xs = linear.forward(&uniform((3, 4), 1, -1.0, 1.0, DType::F32)?)?;
    let outside = xs.clone();
    let error = recompute(&params, &[], move |_| ops::relu(&outside)).unwrap_err().to_string();
    assert!(error.contains("the result of another operation (linear)"), "{error}");
    let outside = xs.clone();
    let error = recompute(&params, &[&xs], move |inputs| &inputs[0] + outside.exp()?);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("pass this tensor as an input of the block"), "{error}");
    Ok(())
}

#[test]
fn a_block_that_is_another_one_the_second_time_is_refused() -> Result<()> {
    let params = Params::new(0);
    let root = params.root();
    let xs = Linear::new(&root.pp("linear"), 4).forward(&Tensor::ones(
        (2, 4),
        DType::F32,
        &Device::Cpu,
    )?)?;
    let drop = Dropout::new(&root.pp("drop"), 0.5);
    let calls = AtomicUsize::new(0);
    let ys = recompute(&params, &[&xs], move |inputs| {
        let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { drop.forward(&inputs[0]) } else { ops::relu(&inputs[0]) }
    })?;
    let error = ys.sum_all()?.backward().unwrap_err().to_string();
    assert!(error.contains("it drew 1 seeds of noise in the forward pass, and 0"), "{error}");
    let calls = AtomicUsize::new(0);
    let ys = recompute(&params, &[&xs], move |inputs| {
        inputs[0].narrow(0, 0, 2 - calls.fetch_add(1, Ordering::Relaxed))?.exp()
    })?;
    let error = ys.sum_all()?.backward().unwrap_err().to_string();
    assert!(error.contains("its result had the shape [2, 4] in the forward pass"), "{error}");
    Ok(())
}

#[test]
fn parameters_must_not_change_between_the_two_times() -> Result<()> {
    let params = Params::new(0);
    let xs = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
    let linear = Linear::new(&params.root().pp("linear"), 4);
    linear.forward(&xs)?;
    params.list().iter().try_for_each(candelabrum_nn::Param::watch)?;
    let ys = recompute(&params, &[&xs], move |inputs| linear.forward(&inputs[0]))?.sum_all()?;
    let weight = params.get("linear.weight").map_err(candle_core::Error::wrap)?;
    weight.set(&weight.var().zeros_like()?).map_err(candle_core::Error::wrap)?;
    let error = ys.backward().unwrap_err().to_string();
    assert!(error.contains("`linear.weight` was changed after the forward pass"), "{error}");
    Ok(())
}
