//! Inputs that receive gradients, calls that are errors, and the texts of the errors.

use candelabrum_nn::layers::{
    BatchNorm2d, Conv2d, Gru, Linear, Lstm, MultiHeadAttention, TransformerBlock,
};
use candelabrum_nn::ops::{
    Conv2dConfig, CrossEntropyConfig, Pool2dConfig, RecurrentWeights, avg_pool2d, conv2d, dropout,
    embedding, embedding_with_positions, global_avg_pool2d, gru, last_step, linear, linear_add,
    linear_cross_entropy, log_softmax, max_pool2d, relu, softmax, softmax_cross_entropy, swiglu,
};
use candelabrum_nn::{Activation, Params};
use candelabrum_testkit::{assert_close, integers, uniform};
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::random;

/// The outermost error, without a backtrace.
pub(crate) fn message<T>(result: Result<T>) -> String {
    let error = result.err().expect("this call must fail");
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[test]
fn untracked_inputs_get_no_gradient() -> Result<()> {
    let images = random((2, 1, 6, 6), 1)?;
    let (weight, bias) = (Var::from_tensor(&random((3, 1, 3, 3), 2)?)?, random(3, 3)?);
    let ys = conv2d(&images, &weight, Some(&bias), Conv2dConfig::default(), None)?;
    let head = Var::from_tensor(&random((2, 48), 4)?)?;
    let frozen = random((4, 2), 5)?;
    let ys = linear(&ys.flatten_from(1)?, &head, None, Some(Activation::Relu))?;
    let grads = linear(&ys, &frozen, None, None)?.sum_all()?.backward()?;
    for untracked in [&images, &bias, &frozen] {
        assert!(grads.get(untracked).is_none());
    }
    for var in [&weight, &head] {
        assert!(grads.get(var).is_some());
    }
    Ok(())
}

#[test]
fn gradients_pass_frozen_layers() -> Result<()> {
    // The input of the frozen layer is tracked but is no variable, and its weights are not tracked.
    let first = Var::from_tensor(&random((2, 1, 3, 3), 1)?)?;
    let frozen = random((2, 2, 2, 2), 2)?;
    let config = Conv2dConfig::default();
    let ys = conv2d(&random((1, 1, 7, 7), 3)?, &first, None, config, None)?;
    let ys = max_pool2d(&conv2d(&ys, &frozen, None, config, None)?, Pool2dConfig::square(2))?;
    let grads = dropout(&relu(&ys)?, 0.1, 1)?.sum_all()?.backward()?;
    assert!(grads.get(&first).is_some());
    Ok(())
}

#[test]
fn other_dtypes_are_refused_by_name() -> Result<()> {
    let ints = Tensor::zeros((1, 1, 4, 4), DType::U32, &Device::Cpu)?;
    let result = max_pool2d(&ints, Pool2dConfig::square(2));
    assert_eq!(message(result), "unsupported dtype U32 for op max_pool2d");
    assert_eq!(message(relu(&ints)), "unsupported dtype U32 for op relu");
    assert_eq!(message(dropout(&ints, 0.5, 0)), "unsupported dtype U32 for op dropout");
    let (xs, weight) = (random((1, 4), 1)?, random((2, 4), 2)?.to_dtype(DType::F32)?);
    assert!(message(linear(&xs, &weight, None, None)).contains("F64"));
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_named() -> Result<()> {
    let config = Conv2dConfig::default();
    let xs = random((1, 3, 4, 4), 1)?;
    let conv = |weight: [usize; 4], config| -> Result<String> {
        Ok(message(conv2d(&xs, &random(&weight[..], 2)?, None, config, None)))
    };
    assert!(conv([2, 2, 3, 3], config)?.contains("does not fit input of shape [1, 3, 4, 4]"));
    assert!(conv([2, 3, 5, 3], config)?.contains("larger than the padded input"));
    let no_stride = Conv2dConfig { stride: (0, 1), ..config };
    assert!(conv([2, 3, 3, 3], no_stride)?.contains("must be positive"));
    let wrong_bias = random(3, 3)?;
    let result = conv2d(&xs, &random((2, 3, 3, 3), 2)?, Some(&wrong_bias), config, None);
    assert_eq!(message(result), "conv2d: bias of shape [3] for 2 outputs");
    let result = linear(&random((2, 4), 1)?, &random((3, 5), 2)?, None, None);
    assert_eq!(message(result), "linear: input of shape [2, 4] for a weight of [3, 5]");
    let wide = Pool2dConfig { kernel: (2, 2), stride: (2, 2), padding: (2, 0) };
    assert!(message(max_pool2d(&xs, wide)).contains("at most half of the kernel"));
    Ok(())
}

#[test]
fn a_tensor_of_the_wrong_rank_is_named_with_what_was_expected() -> Result<()> {
    let (row, square, images) = (random(3, 1)?, random((3, 3), 2)?, random((1, 3, 4, 4), 3)?);
    let tokens = integers(3, 4, 3)?;
    let weights = |weight_hh| RecurrentWeights {
        weight_ih: &square,
        weight_hh,
        bias_ih: None,
        bias_hh: None,
    };
    let conv = |xs, weight| conv2d(xs, weight, None, Conv2dConfig::default(), None);
    let config = CrossEntropyConfig::default();
    for (result, expected) in [
        (conv(&square, &images), "conv2d: input of shape [3, 3], expected (N, C, H, W)"),
        (
            conv(&images, &square),
            "conv2d: weight of shape [3, 3], expected (out, C / groups, KH, KW)",
        ),
        (
            max_pool2d(&square, Pool2dConfig::square(2)),
            "max_pool2d: input of shape [3, 3], expected (N, C, H, W)",
        ),
        (
            avg_pool2d(&square, Pool2dConfig::square(2), true),
            "avg_pool2d: input of shape [3, 3], expected (N, C, H, W)",
        ),
        (
            global_avg_pool2d(&square),
            "global_avg_pool2d: input of shape [3, 3], expected (N, C, H, W)",
        ),
        (linear(&square, &row, None, None), "linear: weight of shape [3], expected (out, in)"),
        (
            linear_add(&square, &row, None, &square),
            "linear_add: weight of shape [3], expected (out, in)",
        ),
        (
            linear_cross_entropy(&square, &row, None, &tokens, config),
            "linear_cross_entropy: weight of shape [3], expected (classes, in)",
        ),
        (
            softmax_cross_entropy(&random((), 5)?, &tokens),
            "softmax_cross_entropy: logits of shape [], expected (.., C)",
        ),
        (
            softmax_cross_entropy(&images, &tokens),
            "softmax_cross_entropy: targets of shape [3] and dtype U32, expected [1, 3, 4] in u8, \
             u32 or i64, or [1, 3, 4, 4] in F64",
        ),
        (embedding(&row, &tokens, None), "embedding: weight of shape [3], expected (V, D)"),
        (
            embedding_with_positions(&square, &row, &tokens),
            "embedding_with_positions: positions of shape [3], expected (P, D)",
        ),
        (
            embedding_with_positions(&square, &square, &tokens),
            "embedding_with_positions: indices of shape [3], expected (N, T)",
        ),
        (gru(&square, weights(&square), None), "gru: input of shape [3, 3], expected (N, T, in)"),
        (
            gru(&images.squeeze(0)?, weights(&row), None),
            "gru: weight_hh of shape [3], expected (gates · hidden, hidden)",
        ),
        (last_step(&square), "last_step: input of shape [3, 3], expected (N, T, H)"),
        (softmax(&random((), 5)?), "softmax: input of shape [], expected (.., C)"),
        (log_softmax(&random((), 5)?), "log_softmax: input of shape [], expected (.., C)"),
        (swiglu(&random((), 5)?), "swiglu: input of shape [], expected (.., 2 C)"),
    ] {
        assert_eq!(message(result), expected);
    }
    Ok(())
}

#[test]
fn a_layer_is_named_whose_input_has_the_wrong_rank() -> Result<()> {
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let scope = |name: &str| params.root().pp(name);
    let (row, square) = (random(3, 1)?, random((3, 3), 2)?);
    let layers: [(Box<dyn Module>, &Tensor, &str); 7] = [
        (
            Box::new(Linear::new(&scope("a"), 2)),
            &random((), 3)?,
            "`a`: input of shape [], expected (.., in)",
        ),
        (
            Box::new(Conv2d::new(&scope("b"), 2, 3)),
            &square,
            "`b`: input of shape [3, 3], expected (N, C, H, W)",
        ),
        (
            Box::new(BatchNorm2d::new(&scope("c"))),
            &row,
            "`c`: input of shape [3], expected (N, C, H, W) or (N, C)",
        ),
        (
            Box::new(Gru::new(&scope("d"), 2)),
            &square,
            "`d`: input of shape [3, 3], expected (N, T, in)",
        ),
        (Box::new(Lstm::new(&scope("e"), 2)), &row, "`e`: input of shape [3], expected (N, T, in)"),
        (
            Box::new(MultiHeadAttention::new(&scope("f"), 3)),
            &square,
            "`f`: input of shape [3, 3], expected (N, T, C)",
        ),
        (
            Box::new(TransformerBlock::new(&scope("g"), 3)),
            &square,
            "`g`: input of shape [3, 3], expected (N, T, C)",
        ),
    ];
    for (layer, xs, expected) in layers {
        assert_eq!(message(layer.forward(xs)), format!("layer {expected}"));
    }
    assert!(params.is_empty(), "a refused input has made parameters");
    Ok(())
}

#[test]
fn a_class_out_of_range_is_named() -> Result<()> {
    let logits = random((3, 4), 1)?;
    let targets = Tensor::new(&[0u32, 4, 1], &Device::Cpu)?;
    let expected = "softmax_cross_entropy: class 4 in row 1, but there are 4 classes";
    assert_eq!(message(softmax_cross_entropy(&logits, &targets)), expected);
    let targets = Tensor::new(&[0i64, 1, -2], &Device::Cpu)?;
    let expected = "softmax_cross_entropy: class -2 in row 2, but there are 4 classes";
    assert_eq!(message(softmax_cross_entropy(&logits, &targets)), expected);
    Ok(())
}

#[test]
fn targets_of_every_integer_type_mean_the_same() -> Result<()> {
    let logits = random((3, 4), 1)?;
    let targets = Tensor::new(&[3u32, 0, 1], &Device::Cpu)?;
    let expected = softmax_cross_entropy(&logits, &targets)?.to_scalar::<f64>()?;
    for dtype in [DType::U8, DType::I64] {
        let loss = softmax_cross_entropy(&logits, &targets.to_dtype(dtype)?)?;
        assert_eq!(loss.to_scalar::<f64>()?, expected);
    }
    Ok(())
}

#[test]
fn targets_that_want_a_gradient_or_have_the_wrong_shape_are_refused() -> Result<()> {
    let logits = random((3, 4), 1)?;
    let targets = Var::from_tensor(&random((3, 4), 2)?)?;
    let result = softmax_cross_entropy(&logits, &targets);
    assert_eq!(message(result), "softmax_cross_entropy: no gradient for the targets, detach them");
    let result = softmax_cross_entropy(&logits, &random((4, 3), 2)?);
    assert!(message(result).contains("expected [3] in u8, u32 or i64, or [3, 4] in F64"));
    Ok(())
}

#[test]
fn dropout_keeps_the_expectation_and_refuses_nonsense() -> Result<()> {
    let xs = Tensor::ones(100_000, DType::F32, &Device::Cpu)?;
    for p in [0.0, 0.25, 0.9] {
        let ys = dropout(&xs, p, 42)?.to_vec1::<f32>()?;
        let kept = ys.iter().filter(|y| **y != 0.0).count() as f32 / 1e5;
        // Five standard deviations of a fair mask. The seed is fixed.
        assert!(
            (kept - (1.0 - p)).abs() < 5.0 * (0.25_f32 / 1e5).sqrt(),
            "{kept} kept for p = {p}"
        );
        assert!(ys.iter().all(|y| *y == 0.0 || (*y - 1.0 / (1.0 - p)).abs() < 1e-5));
    }
    for p in [-0.1, 1.0, f32::NAN] {
        assert!(message(dropout(&xs, p, 0)).contains("outside of [0, 1)"));
    }
    Ok(())
}

#[test]
fn dropout_masks_depend_on_the_seed_alone() -> Result<()> {
    let xs = random(1000, 1)?;
    let run = |seed| dropout(&xs, 0.5, seed)?.to_vec1::<f64>();
    assert_eq!(run(1)?, run(1)?);
    let (a, b) = (run(1)?, run(2)?);
    let differ = a.iter().zip(&b).filter(|(a, b)| (**a == 0.0) != (**b == 0.0)).count();
    assert!((400..600).contains(&differ), "{differ} of 1000 masks differ between two seeds");
    Ok(())
}

#[test]
fn a_layer_without_outputs_is_refused() -> Result<()> {
    let xs = random((2, 4), 1)?;
    let error = message(linear(&xs, &random((0, 4), 2)?, None, None));
    assert_eq!(error, "linear: no outputs, weight of shape [0, 4]");
    let params = Params::on(0, DType::F64, &Device::Cpu);
    let layer = Linear::new(&params.root().pp("fc"), 0);
    assert_eq!(message(layer.forward(&xs)), "layer `fc` has no outputs");
    let layer = Conv2d::new(&params.root().pp("conv"), 0, 3);
    assert_eq!(message(layer.forward(&random((1, 1, 4, 4), 3)?)), "layer `conv` has no outputs");
    assert!(params.is_empty());
    Ok(())
}

#[test]
fn bias_gradients_over_many_rows_keep_their_digits() -> Result<()> {
    let rows = 100_000;
    let weights = uniform((rows, 3), 1, 0.0, 1.0, DType::F64)?;
    let expected = weights.sum(0)?;
    let bias = Var::zeros(3, DType::F32, &Device::Cpu)?;
    let (xs, weight) = (random((rows, 1), 2)?, random((3, 1), 3)?);
    let ys = linear(&xs.to_dtype(DType::F32)?, &weight.to_dtype(DType::F32)?, Some(&bias), None)?;
    let grads = (ys * weights.to_dtype(DType::F32)?)?.sum_all()?.backward()?;
    assert_close(grads.get(&bias).expect("a gradient"), &expected, 1e-6, 0.0);

    // A recurrent layer with as many steps, over all sequences together.
    let step = |dtype: DType| -> Result<Vec<Tensor>> {
        let variable = |shape: &[usize], seed| -> Result<Var> {
            Var::from_tensor(&uniform(shape, seed, 0.0, 0.5, DType::F64)?.to_dtype(dtype)?)
        };
        let (xs, bias_ih, bias_hh) =
            (variable(&[5000, 20, 1], 4)?, variable(&[6], 5)?, variable(&[6], 6)?);
        let (weight_ih, weight_hh) = (variable(&[6, 1], 7)?, variable(&[6, 2], 8)?);
        let weights = RecurrentWeights {
            weight_ih: &weight_ih,
            weight_hh: &weight_hh,
            bias_ih: Some(&bias_ih),
            bias_hh: Some(&bias_hh),
        };
        let grads = gru(&xs, weights, None)?.backward()?;
        Ok([bias_ih, bias_hh].map(|bias| grads.get(&bias).expect("a gradient").clone()).into())
    };
    for (gradient, expected) in step(DType::F32)?.iter().zip(&step(DType::F64)?) {
        assert_close(gradient, expected, 1e-6, 0.0);
    }
    Ok(())
}
