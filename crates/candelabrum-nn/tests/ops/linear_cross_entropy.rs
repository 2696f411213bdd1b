//! The last layer of a language model with its loss, and gated units.

use candelabrum_nn::layers::Linear;
use candelabrum_nn::ops::{
    CrossEntropyConfig, linear, linear_cross_entropy, silu_mul, softmax_cross_entropy_with, swiglu,
};
use candelabrum_nn::{Activation, Param, Params};
use candelabrum_testkit::{assert_close, gradcheck, integers, uniform};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

#[test]
fn the_loss_is_pytorchs() -> Result<()> {
    for case in cases("linear_cross_entropy.safetensors") {
        let label_smoothing = case.tensors["smoothing"].to_scalar::<f64>()? as f32;
        let ignore = case.tensors.get("ignore").map(Tensor::to_scalar::<i64>);
        let config = CrossEntropyConfig { label_smoothing, ignore_index: ignore.transpose()? };
        let labels = &case.tensors["labels"];
        check(&case, &["xs", "weight", "bias"], |t| {
            linear_cross_entropy(&t["xs"], &t["weight"], t.get("bias"), labels, config)
        })?;
    }
    Ok(())
}

/// The loss and the gradients of all inputs that are variables.
fn step(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    shapes: &[&[usize]],
    trained: &[bool],
) -> Result<Vec<Tensor>> {
    let mut vars = Vec::new();
    for (seed, shape) in (1..).zip(shapes) {
        vars.push(Var::from_tensor(&uniform(*shape, seed, -0.5, 0.5, DType::F32)?)?);
    }
    let inputs = vars.iter().zip(trained);
    let inputs: Vec<Tensor> = inputs
        .map(|(var, trained)| if *trained { var.as_tensor().clone() } else { var.detach() })
        .collect();
    let loss = f(&inputs)?;
    let grads = loss.backward()?;
    for (var, trained) in vars.iter().zip(trained) {
        assert_eq!(grads.get(var).is_some(), *trained);
    }
    let gradients = vars.iter().filter_map(|var| grads.get(var).cloned());
    Ok([loss.detach()].into_iter().chain(gradients).collect())
}

#[test]
fn several_chunks_are_one_loss_with_any_number_of_threads() -> Result<()> {
    let (rows, classes) = (600_usize, 4100_usize);
    let labels = integers(rows, 9, 4100)?;
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: Some(17) };
    let shapes: [&[usize]; 3] = [&[rows, 5], &[classes, 5], &[classes]];
    let fused = |t: &[Tensor]| linear_cross_entropy(&t[0], &t[1], Some(&t[2]), &labels, config);
    let plain = |t: &[Tensor]| {
        softmax_cross_entropy_with(&linear(&t[0], &t[1], Some(&t[2]), None)?, &labels, config)
    };
    let with_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("a thread pool").install(|| step(fused, &shapes, &[true; 3]))
    };
    let expected = with_threads(1)?;
    for (fused, plain) in expected.iter().zip(&step(plain, &shapes, &[true; 3])?) {
        assert_close(fused, plain, 1e-5, 1e-7);
    }
    for threads in [2, 5] {
        for (other, one) in with_threads(threads)?.iter().zip(&expected) {
            let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
                let values = tensor.flatten_all()?.to_vec1::<f32>()?;
                Ok(values.into_iter().map(f32::to_bits).collect())
            };
            assert!(bits(other)? == bits(one)?, "{threads} threads differ from one");
        }
    }
    Ok(())
}

#[test]
fn only_the_gradients_of_inputs_in_the_graph_are_computed() -> Result<()> {
    let labels = integers(5, 9, 4)?;
    let config = CrossEntropyConfig::default();
    let f = |t: &[Tensor]| linear_cross_entropy(&t[0], &t[1], Some(&t[2]), &labels, config);
    let shapes: [&[usize]; 3] = [&[5, 3], &[4, 3], &[4]];
    let all = step(f, &shapes, &[true; 3])?;
    for kept in 0..3 {
        let trained = [0, 1, 2].map(|input| input == kept);
        let one = step(f, &shapes, &trained)?;
        assert_close(&one[0], &all[0], 0.0, 0.0);
        assert_close(&one[1], &all[1 + kept], 0.0, 0.0);
    }
    Ok(())
}

#[test]
fn the_loss_of_half_precision_is_in_f32() -> Result<()> {
    let labels = integers((2, 3), 9, 5)?;
    let config = CrossEntropyConfig::default();
    let [xs, weight, bias] = [random((2, 3, 4), 1)?, random((5, 4), 2)?, random(5, 3)?];
    for dtype in [DType::F16, DType::BF16] {
        let half = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(dtype)?);
        let (xs, weight, bias) = (half(&xs)?, half(&weight)?, half(&bias)?);
        let loss = linear_cross_entropy(&xs, &weight, Some(&bias), &labels, config)?;
        assert_eq!(loss.dtype(), DType::F32);
        let [wide_xs, wide_weight, wide_bias] =
            [&xs, &weight, &bias].map(|half| half.to_dtype(DType::F32));
        let wide =
            linear_cross_entropy(&wide_xs?, &wide_weight?, Some(&wide_bias?), &labels, config)?;
        assert_close(&loss, &wide, 0.0, 0.0);
        let grads = loss.backward()?;
        for var in [&xs, &weight, &bias] {
            assert_eq!(grads.get(var).expect("a gradient").dtype(), dtype);
        }
    }
    Ok(())
}

#[test]
fn a_layer_gives_its_weights_and_computes_its_loss() -> Result<()> {
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let layer = Linear::new(&params.root().pp("head"), 5);
    assert!(layer.weight().is_none() && layer.bias().is_none(), "no input was seen");
    let (xs, labels) = (random((2, 3, 4), 1)?, integers((2, 3), 2, 5)?);
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: None };
    let loss = layer.cross_entropy(&xs, &labels, config)?;
    let plain = softmax_cross_entropy_with(&layer.forward(&xs)?, &labels, config)?;
    assert_close(&loss, &plain, 1e-12, 0.0);
    let weights = [layer.weight(), layer.bias()].map(|param| param.expect("an input was seen"));
    assert_eq!(weights.map(Param::name), ["head.weight", "head.bias"]);
    let (grads, plain) = (loss.backward()?, plain.backward()?);
    for param in weights {
        let gradient = |grads: &GradStore| grads.get(param.var()).expect("a gradient").clone();
        assert_close(&gradient(&grads), &gradient(&plain), 1e-12, 1e-14);
    }

    let evaluated = params.in_mode(false, || layer.cross_entropy(&xs, &labels, config))?;
    assert_close(&evaluated, &loss, 1e-12, 0.0);
    assert!(!evaluated.track_op(), "an evaluation computes gradients");

    let bare = Linear::new(&params.root().pp("bare"), 5).no_bias();
    let loss = bare.cross_entropy(&xs, &labels, config)?;
    let plain = softmax_cross_entropy_with(&bare.forward(&xs)?, &labels, config)?;
    assert_close(&loss, &plain, 1e-12, 0.0);
    assert!(bare.weight().is_some() && bare.bias().is_none());
    let active = Linear::new(&params.root().pp("active"), 5).activation(Activation::Relu);
    let error = message(active.cross_entropy(&xs, &labels, config));
    assert_eq!(error, "layer `active`: the outputs of relu are no logits");
    Ok(())
}

#[test]
fn losses_that_do_not_fit_are_refused() -> Result<()> {
    let (xs, weight) = (random((3, 4), 1)?, random((5, 4), 2)?);
    let config = CrossEntropyConfig::default();
    let labels = |labels: &[i64]| Tensor::new(labels, &Device::Cpu);
    let run = |labels: &Tensor| message(linear_cross_entropy(&xs, &weight, None, labels, config));
    assert!(run(&labels(&[0, 5, 1])?).contains("class 5 in row 1, but there are 5 classes"));
    assert!(run(&labels(&[0, 1])?).contains("labels of shape [2] and dtype I64, expected [3]"));
    let probabilities = random((3, 5), 3)?;
    assert!(run(&probabilities).contains("labels of shape [3, 5] and dtype F64"));
    let bias = random(4, 3)?;
    let result = linear_cross_entropy(&xs, &weight, Some(&bias), &labels(&[0; 3])?, config);
    assert_eq!(message(result), "linear_cross_entropy: bias of shape [4] for 5 classes");
    let result = linear_cross_entropy(&xs.t()?, &weight, None, &labels(&[0; 4])?, config);
    assert!(message(result).contains("input of shape [4, 3] for a weight of [5, 4]"));
    Ok(())
}

#[test]
fn gradients_of_gated_units() -> Result<()> {
    for dims in [&[3, 10][..], &[2], &[2, 3, 6]] {
        gradcheck(|t| swiglu(&t[0]), &[random(dims, 1)?.affine(3.0, 0.0)?], EPS, TOL)?;
    }
    for dims in [&[3, 5][..], &[2], &[2, 3, 4]] {
        let inputs = [random(dims, 1)?.affine(3.0, 0.0)?, random(dims, 2)?];
        gradcheck(|t| silu_mul(&t[0], &t[1]), &inputs, EPS, TOL)?;
        // One of both alone.
        let [gate, xs] = inputs;
        gradcheck(|t| silu_mul(&t[0], &xs), std::slice::from_ref(&gate), EPS, TOL)?;
        gradcheck(|t| silu_mul(&gate, &t[0]), std::slice::from_ref(&xs), EPS, TOL)?;
    }
    gradcheck(|t| swiglu(&t[0].t()?), &[random((4, 3), 1)?], EPS, TOL)
}

#[test]
fn gated_units_are_pytorchs() -> Result<()> {
    for case in cases("swiglu.safetensors") {
        check(&case, &["xs"], |t| swiglu(&t["xs"]))?;
    }
    let different = message(silu_mul(&random((2, 3), 1)?, &random((3, 2), 1)?));
    assert_eq!(different, "silu_mul: gates of shape [2, 3] for [3, 2]");
    let odd = message(swiglu(&random((2, 3), 1)?));
    assert_eq!(odd, "swiglu: rows of 3 elements have no halves, input of shape [2, 3]");
    Ok(())
}
