//! Every layer and operation of `candle_nn`: it trains with its true gradient, or a step refuses it with a
//! message that names what to take instead, and that trains.
//!
//! The true gradient is that of central differences in f64.

#![expect(clippy::disallowed_methods, reason = "the missing backward passes are what is tested")]

use std::collections::HashMap;

use candelabrum::candle::{D, Result, Var};
use candelabrum::nn::check_gradients;
use candelabrum::nn::ops::{self as ours, AttentionConfig, Pool2dConfig};
use candelabrum::prelude::*;
use candelabrum_testkit::{assert_close, uniform};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_nn::VarBuilder;
use candle_nn::attention::{AttnMask, flash_attn};

/// The result for an input and the parameters of the layer.
type Layer = fn(&[Tensor]) -> Result<Tensor>;

enum Outcome {
    Trains,
    /// The step is refused. The message contains the first text, and the layer has the same result.
    Instead(&'static str, Layer),
    /// The step is refused with this text. No layer computes the same.
    Refused(&'static str),
}
use Outcome::{Instead, Refused, Trains};

struct Case {
    name: &'static str,
    layer: Layer,
    /// The shapes of the input and of the parameters.
    shapes: Vec<Vec<usize>>,
    outcome: Outcome,
}

fn case(name: &'static str, shapes: &[&[usize]], layer: Layer, outcome: Outcome) -> Case {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Case { name, layer, shapes, outcome }
}

/// A builder of a layer whose tensors are these.
fn builder(tensors: &[(&str, &Tensor)]) -> VarBuilder<'static> {
    let (dtype, device) = (tensors[0].1.dtype(), tensors[0].1.device().clone());
    let tensors = tensors.iter().map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone()));
    VarBuilder::from_tensors(tensors.collect::<HashMap<_, _>>(), dtype, &device)
}

fn constant(like: &Tensor, shape: &[usize], seed: u64) -> Result<Tensor> {
    uniform(shape, seed, -1.0, 1.0, DType::F64)?.to_dtype(like.dtype())
}

/// The cosines and sines for 3 positions and heads of 4 elements.
fn angles(like: &Tensor) -> Result<(Tensor, Tensor)> {
    let angles = constant(like, &[3, 2], 9)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn recurrent(t: &[Tensor]) -> VarBuilder<'static> {
    let names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    builder(&names.into_iter().zip(&t[1..]).collect::<Vec<_>>())
}

/// Attention of queries, keys and values (N, T, H, D).
fn attention_instead(t: &[Tensor]) -> Result<Tensor> {
    let rows = |t: &Tensor| t.flatten_from(2);
    let (q, k, v) = (rows(&t[0])?, rows(&t[1])?, rows(&t[2])?);
    ours::cross_attention(&q, &k, &v, None, AttentionConfig::new(2))?.reshape((1, 3, 2, 4))
}

fn activation(t: &[Tensor], activation: candle_nn::Activation) -> Result<Tensor> {
    activation.forward(&t[0])
}

fn labels(t: &Tensor) -> Result<Tensor> {
    Tensor::from_iter((0..t.dim(0)?).map(|row| (row % 3) as u32), t.device())
}

fn layers() -> Vec<Case> {
    use candle_nn::*;
    const ROWS: &[usize] = &[3, 4];
    const IMAGES: &[usize] = &[2, 4, 6, 6];
    const HEADS: &[usize] = &[1, 2, 3, 4];
    vec![
        case(
            "linear",
            &[ROWS, &[5, 4], &[5]],
            |t| Linear::new(t[1].clone(), Some(t[2].clone())).forward(&t[0]),
            Trains,
        ),
        case(
            "embedding",
            &[ROWS],
            |t| {
                Embedding::new(t[0].clone(), 4).forward(&Tensor::new(&[2u32, 0, 2], t[0].device())?)
            },
            Trains,
        ),
        case(
            "conv1d",
            &[&[2, 4, 7], &[3, 4, 2], &[3]],
            |t| {
                let config = Conv1dConfig { stride: 1, ..Default::default() };
                Conv1d::new(t[1].clone(), Some(t[2].clone()), config).forward(&t[0])
            },
            Instead("nn::ops::conv1d", |t| {
                ours::conv1d(&t[0], &t[1], Some(&t[2]), ours::Conv1dConfig::default(), None)
            }),
        ),
        case(
            "conv1d with padding",
            &[&[2, 4, 7], &[3, 4, 2], &[3]],
            |t| {
                let config = Conv1dConfig { padding: 1, stride: 2, ..Default::default() };
                Conv1d::new(t[1].clone(), Some(t[2].clone()), config).forward(&t[0])
            },
            Instead("nn::ops::conv1d", |t| {
                let config = ours::Conv1dConfig { padding: 1, stride: 2, ..Default::default() };
                ours::conv1d(&t[0], &t[1], Some(&t[2]), config, None)
            }),
        ),
        case(
            "conv2d",
            &[IMAGES, &[3, 4, 3, 3], &[3]],
            |t| {
                let config = Conv2dConfig { padding: 1, ..Default::default() };
                Conv2d::new(t[1].clone(), Some(t[2].clone()), config).forward(&t[0])
            },
            Trains,
        ),
        case(
            "conv_transpose1d",
            &[&[1, 4, 7], &[4, 3, 2]],
            |t| {
                ConvTranspose1d::new(t[1].clone(), None, ConvTranspose1dConfig::default())
                    .forward(&t[0])
            },
            Instead("conv_transpose2d", |t| {
                t[0].unsqueeze(2)?.conv_transpose2d(&t[1].unsqueeze(2)?, 0, 0, 1, 1)?.squeeze(2)
            }),
        ),
        case(
            "conv_transpose2d",
            &[&[1, 2, 3, 3], &[2, 3, 2, 2]],
            |t| {
                ConvTranspose2d::new(t[1].clone(), None, ConvTranspose2dConfig::default())
                    .forward(&t[0])
            },
            Trains,
        ),
        case(
            "group_norm",
            &[IMAGES, &[4], &[4]],
            |t| GroupNorm::new(t[1].clone(), t[2].clone(), 4, 2, 1e-5)?.forward(&t[0]),
            Trains,
        ),
        case(
            "batch_norm in training",
            &[IMAGES, &[4], &[4]],
            |t| {
                let (mean, var) = (constant(&t[0], &[4], 1)?, constant(&t[0], &[4], 2)?.sqr()?);
                BatchNorm::new(4, mean, var, t[1].clone(), t[2].clone(), 1e-5)?
                    .forward_t(&t[0], true)
            },
            Trains,
        ),
        case(
            "batch_norm in evaluation",
            &[IMAGES, &[4], &[4]],
            |t| {
                let (mean, var) =
                    (constant(&t[0], &[4], 1)?, (constant(&t[0], &[4], 2)?.sqr()? + 1.0)?);
                BatchNorm::new(4, mean, var, t[1].clone(), t[2].clone(), 1e-5)?
                    .forward_t(&t[0], false)
            },
            Trains,
        ),
        case(
            "layer_norm",
            &[ROWS, &[4], &[4]],
            |t| LayerNorm::new(t[1].clone(), t[2].clone(), 1e-5).forward(&t[0]),
            Instead("nn::ops::layer_norm", |t| {
                ours::layer_norm(&t[0], &[4], Some(&t[1]), Some(&t[2]), 1e-5)
            }),
        ),
        case(
            "ops::layer_norm",
            &[ROWS, &[4], &[4]],
            |t| ops::layer_norm(&t[0], &t[1], &t[2], 1e-5),
            Instead("nn::ops::layer_norm", |t| {
                ours::layer_norm(&t[0], &[4], Some(&t[1]), Some(&t[2]), 1e-5)
            }),
        ),
        case(
            "layer_norm_no_bias",
            &[ROWS, &[4]],
            |t| LayerNorm::new_no_bias(t[1].clone(), 1e-5).forward(&t[0]),
            Trains,
        ),
        case(
            "rms_norm",
            &[ROWS, &[4]],
            |t| RmsNorm::new(t[1].clone(), 1e-5).forward(&t[0]),
            Instead("nn::ops::rms_norm", |t| ours::rms_norm(&t[0], &[4], Some(&t[1]), 1e-5)),
        ),
        case(
            "ops::rms_norm",
            &[ROWS, &[4]],
            |t| ops::rms_norm(&t[0], &t[1], 1e-5),
            Instead("nn::ops::rms_norm", |t| ours::rms_norm(&t[0], &[4], Some(&t[1]), 1e-5)),
        ),
        case(
            "RmsNorm::forward_diff",
            &[ROWS, &[4]],
            |t| RmsNorm::new(t[1].clone(), 1e-5).forward_diff(&t[0]),
            Trains,
        ),
        case(
            "lstm",
            &[&[2, 3, 4], &[8, 4], &[8, 2], &[8], &[8]],
            |t| {
                let lstm = lstm(4, 2, LSTMConfig::default(), recurrent(t))?;
                lstm.states_to_tensor(&lstm.seq(&t[0])?)
            },
            Trains,
        ),
        case(
            "gru",
            &[&[2, 3, 4], &[6, 4], &[6, 2], &[6], &[6]],
            |t| {
                let gru = gru(4, 2, GRUConfig::default(), recurrent(t))?;
                gru.states_to_tensor(&gru.seq(&t[0])?)
            },
            Trains,
        ),
        case("prelu", &[ROWS, &[4]], |t| PReLU::new(t[1].clone(), false).forward(&t[0]), Trains),
        case("gelu", &[ROWS], |t| activation(t, Activation::Gelu), Trains),
        case("new_gelu", &[ROWS], |t| activation(t, Activation::NewGelu), Trains),
        case("relu", &[ROWS], |t| activation(t, Activation::Relu), Trains),
        case("relu2", &[ROWS], |t| activation(t, Activation::Relu2), Trains),
        case("relu6", &[ROWS], |t| activation(t, Activation::Relu6), Trains),
        case("silu", &[ROWS], |t| activation(t, Activation::Silu), Trains),
        case("sigmoid", &[ROWS], |t| activation(t, Activation::Sigmoid), Trains),
        case("hard_sigmoid", &[ROWS], |t| activation(t, Activation::HardSigmoid), Trains),
        case("swiglu", &[ROWS], |t| activation(t, Activation::Swiglu), Trains),
        case("swish", &[ROWS], |t| activation(t, Activation::Swish), Trains),
        case("mish", &[ROWS], |t| activation(t, Activation::Mish), Trains),
        case("hard_swish", &[ROWS], |t| activation(t, Activation::HardSwish), Trains),
        case("elu", &[ROWS], |t| activation(t, Activation::Elu(1.5)), Trains),
        case("leaky_relu", &[ROWS], |t| activation(t, Activation::LeakyRelu(0.1)), Trains),
        case("gelu_pytorch_tanh", &[ROWS], |t| activation(t, Activation::GeluPytorchTanh), Trains),
        case("softmax", &[ROWS], |t| ops::softmax(&t[0], D::Minus1), Trains),
        case("log_softmax", &[ROWS], |t| ops::log_softmax(&t[0], D::Minus1), Trains),
        case(
            "softmax_last_dim",
            &[ROWS],
            |t| ops::softmax_last_dim(&t[0]),
            Instead("nn::ops::softmax`", |t| ours::softmax(&t[0])),
        ),
        case(
            "selu",
            &[ROWS],
            |t| match t[0].dtype() {
                DType::F32 => ops::selu(&t[0], 1.6, 1.1),
                _ => t[0].elu(1.6)? * 1.1,
            },
            Trains,
        ),
        case("dropout", &[ROWS], |t| Dropout::new(0.0).forward_t(&t[0], true), Trains),
        case("pixel_shuffle", &[&[1, 4, 2, 2]], |t| ops::pixel_shuffle(&t[0], 2), Trains),
        case("pixel_unshuffle", &[&[1, 1, 4, 4]], |t| ops::pixel_unshuffle(&t[0], 2), Trains),
        case("replication_pad2d", &[&[1, 2, 3, 3]], |t| ops::replication_pad2d(&t[0], 1), Trains),
        case(
            "rope",
            &[HEADS],
            |t| angles(&t[0]).and_then(|(cos, sin)| rotary_emb::rope(&t[0], &cos, &sin)),
            Instead("rotary_emb::rope_slow", |t| {
                angles(&t[0]).and_then(|(cos, sin)| rotary_emb::rope_slow(&t[0], &cos, &sin))
            }),
        ),
        case(
            "rope_i",
            &[HEADS],
            |t| angles(&t[0]).and_then(|(cos, sin)| rotary_emb::rope_i(&t[0], &cos, &sin)),
            Instead("rope_i_slow", |t| {
                angles(&t[0]).and_then(|(cos, sin)| rotary_emb::rope_i_slow(&t[0], &cos, &sin))
            }),
        ),
        case(
            "rope_thd",
            &[&[1, 3, 2, 4]],
            |t| angles(&t[0]).and_then(|(cos, sin)| rotary_emb::rope_thd(&t[0], &cos, &sin)),
            Instead("`rope_thd` (`rotary_emb::rope_slow`", |t| {
                let (cos, sin) = angles(&t[0])?;
                rotary_emb::rope_slow(&t[0].transpose(1, 2)?, &cos, &sin)?.transpose(1, 2)
            }),
        ),
        case(
            "flash_attn",
            &[&[1, 3, 2, 4], &[1, 3, 2, 4], &[1, 3, 2, 4]],
            |t| flash_attn::<f32>(&t[0], &t[1], &t[2], 0.5, AttnMask::None, None, None),
            Instead("nn::ops::cross_attention", |t| attention_instead(t)?.transpose(1, 2)),
        ),
        case(
            "flash_attn_varlen_unfused",
            &[&[1, 3, 2, 4], &[1, 3, 2, 4], &[1, 3, 2, 4]],
            |t| {
                let (q, k, v) = (t[0].squeeze(0)?, t[1].squeeze(0)?, t[2].squeeze(0)?);
                let lengths = Tensor::new(&[3u32], q.device())?;
                varlen_attention::flash_attn_varlen_unfused(
                    &q, &k, &v, None, &lengths, &lengths, 3, 3, 0.5, false, None, None,
                )?
                .unsqueeze(0)
            },
            Instead("nn::ops::cross_attention", attention_instead),
        ),
        case(
            "KvCache",
            &[HEADS],
            |t| kv_cache::KvCache::new(2, 8).append(&t[0], &t[0]).map(|(k, _)| k),
            Instead("`KvCache` (`Tensor::cat`)", |t| Tensor::cat(&[&t[0]], 2)),
        ),
        case(
            "ConcatKvCache",
            &[HEADS],
            |t| kv_cache::ConcatKvCache::new(2).append(&t[0], &t[0]).map(|(k, _)| k),
            Refused("`KvCache`"),
        ),
        case("loss::nll", &[&[4, 3]], |t| loss::nll(&t[0], &labels(&t[0])?), Trains),
        case(
            "loss::cross_entropy",
            &[&[4, 3]],
            |t| loss::cross_entropy(&t[0], &labels(&t[0])?),
            Trains,
        ),
        case("loss::mse", &[ROWS], |t| loss::mse(&t[0], &constant(&t[0], ROWS, 3)?), Trains),
        case(
            "loss::huber",
            &[ROWS],
            |t| loss::huber(&t[0], &constant(&t[0], ROWS, 3)?, 0.3),
            Trains,
        ),
        case(
            "loss::binary_cross_entropy",
            &[ROWS],
            |t| loss::binary_cross_entropy_with_logit(&t[0], &(constant(&t[0], ROWS, 3)?.sqr()?)),
            Trains,
        ),
    ]
}

/// candle's own operations whose gradient is missing, wrong or refused.
fn operations() -> Vec<Case> {
    const IMAGES: &[usize] = &[2, 2, 6, 6];
    vec![
        case(
            "max_pool2d",
            &[IMAGES],
            |t| t[0].max_pool2d(2),
            Instead("nn::ops::max_pool2d", |t| ours::max_pool2d(&t[0], Pool2dConfig::square(2))),
        ),
        case(
            "max_pool2d of windows that overlap",
            &[IMAGES],
            |t| t[0].max_pool2d_with_stride(3, 2),
            Instead("nn::ops::max_pool2d", |t| {
                let config = Pool2dConfig { stride: (2, 2), ..Pool2dConfig::square(3) };
                ours::max_pool2d(&t[0], config)
            }),
        ),
        case("avg_pool2d", &[IMAGES], |t| t[0].avg_pool2d(2), Trains),
        case(
            "avg_pool2d of windows that overlap",
            &[IMAGES],
            |t| t[0].avg_pool2d_with_stride(3, 2),
            Instead("nn::ops::avg_pool2d", |t| {
                let config = Pool2dConfig { stride: (2, 2), ..Pool2dConfig::square(3) };
                ours::avg_pool2d(&t[0], config, true)
            }),
        ),
        case("upsample_nearest2d", &[IMAGES], |t| t[0].upsample_nearest2d(12, 12), Trains),
        case(
            "upsample_nearest2d beside another use, from a copy",
            &[IMAGES],
            |t| {
                let up = (&t[0] * 1.0)?.upsample_nearest2d(12, 12)?;
                up.flatten_from(2)?.mean(2)? + t[0].sqr()?.flatten_from(2)?.sum(2)?
            },
            Trains,
        ),
        case(
            "upsample_bilinear2d",
            &[IMAGES],
            |t| t[0].upsample_bilinear2d(12, 12, false),
            Refused("`upsample_nearest2d` has one"),
        ),
        case("round", &[&[4]], |t| t[0].round(), Refused("`round` and `sign`")),
        case("sign", &[&[4]], |t| t[0].sign(), Refused("`round` and `sign`")),
        case("detach", &[&[4]], |t| Ok(t[0].detach()), Refused("or a `detach`")),
        case("a product with 0", &[&[4]], |t| &t[0] * 0.0, Refused("product with 0.0")),
        case(
            "QMatMul",
            &[&[2, 32], &[3, 32]],
            |t| {
                let weight = QTensor::quantize(&t[1].detach(), GgmlDType::F32)?;
                QMatMul::from_qtensor(weight)?.forward(&t[0])
            },
            Refused("`QMatMul` (`Linear`)"),
        ),
    ]
}

/// The inputs and parameters of a case, and the weights of its results in the loss.
fn tensors(case: &Case) -> Vec<Tensor> {
    let seeds = 20..;
    let of = |(seed, shape): (u64, &Vec<usize>)| uniform(&shape[..], seed, -1.0, 1.0, DType::F64);
    seeds.zip(&case.shapes).map(|shape| of(shape).unwrap()).collect()
}

/// The loss of `layer` on `tensors`. A second term depends on the first parameter behind the layer, so that
/// the loss depends on something whatever the layer does.
fn loss(layer: Layer, tensors: &[Tensor], after: &Tensor) -> Result<Tensor> {
    let ys = layer(tensors)?;
    let weights = uniform(ys.shape(), 7, 0.5, 1.5, DType::F64)?.to_dtype(ys.dtype())?;
    let sum = (ys * weights)?.sum_all()?;
    sum + after.sqr()?.sum_all()?
}

/// The gradient of each tensor by central differences.
fn differences(layer: Layer, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    const STEP: f64 = 1e-5;
    let after = Tensor::zeros(1, DType::F64, &Device::Cpu)?;
    let mut gradients = Vec::new();
    for (number, tensor) in tensors.iter().enumerate() {
        let values = tensor.flatten_all()?.to_vec1::<f64>()?;
        let at = |element: usize, change: f64| {
            let (mut moved, mut all) = (values.clone(), tensors.to_vec());
            moved[element] += change;
            all[number] = Tensor::from_vec(moved, tensor.shape(), &Device::Cpu)?;
            loss(layer, &all, &after)?.to_scalar::<f64>()
        };
        let slope = |element| Ok((at(element, STEP)? - at(element, -STEP)?) / (2.0 * STEP));
        let slopes = (0..values.len()).map(slope).collect::<Result<Vec<f64>>>()?;
        gradients.push(Tensor::from_vec(slopes, tensor.shape(), &Device::Cpu)?);
    }
    Ok(gradients)
}

/// Takes one step of length 1 down the gradient. Returns the gradients.
fn step(layer: Layer, tensors: &[Tensor]) -> candelabrum::dist::Result<Vec<Tensor>> {
    let var = |tensor: &Tensor| Var::from_tensor(&tensor.to_dtype(DType::F32).unwrap()).unwrap();
    let vars: Vec<Var> = tensors.iter().map(var).collect();
    let after = Var::ones(1, DType::F32, &Device::Cpu).unwrap();
    let named = vars.iter().cloned().enumerate().map(|(i, var)| (format!("tensor{i}"), var));
    let params = Params::from_vars(named.chain([("after".to_owned(), after.clone())])).unwrap();
    let mut opt = DistOpt::new(Sgd::new(1.0), &params, &World::single()).unwrap();
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let before: Vec<Tensor> = tensors.iter().map(|tensor| tensor.copy().unwrap()).collect();
    let loss = loss(layer, &tensors, after.as_tensor())?;
    opt.backward_and_update(&loss)?;
    let changes = before.iter().zip(&vars).map(|(old, new)| (old - new.as_tensor()).unwrap());
    Ok(changes.map(|change| change.detach()).collect())
}

/// The largest difference between the gradients of a step and the true ones, if it is no rounding error.
fn wrong_gradient(layer: Layer, tensors: &[Tensor]) -> Option<String> {
    let gradients = match step(layer, tensors) {
        Ok(gradients) => gradients,
        Err(error) => return Some(error.to_string()),
    };
    let distance = |gradient: &Tensor, truth: &Tensor| -> Result<f64> {
        let distance = (gradient.to_dtype(DType::F64)? - truth)?.abs()?;
        (distance - (truth.abs()? * 2e-3)?)?.max_all()?.to_scalar::<f64>()
    };
    let truth = match differences(layer, tensors) {
        Ok(truth) => truth,
        Err(error) => return Some(error.to_string()),
    };
    let distances = gradients.iter().zip(&truth).map(|(g, t)| distance(g, t).unwrap()).enumerate();
    let wrong = distances.filter(|(_, distance)| distance.is_nan() || *distance > 2e-4);
    let wrong: Vec<String> = wrong.map(|(i, d)| format!("tensor {i} by {d}")).collect();
    (!wrong.is_empty()).then(|| wrong.join(", "))
}

/// What [`check_gradients`] says of a layer.
fn checked(layer: Layer, tensors: &[Tensor]) -> candelabrum::nn::Result<()> {
    let vars: Vec<Var> = tensors.iter().map(|tensor| Var::from_tensor(tensor).unwrap()).collect();
    let named = vars.iter().cloned().enumerate().map(|(i, var)| (format!("tensor{i}"), var));
    let params = Params::from_vars(named)?;
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let after = Tensor::zeros(1, DType::F64, &Device::Cpu)?;
    check_gradients(&params, || loss(layer, &tensors, &after))
}

/// The difference between the results of a layer and of its replacement, if it is no rounding error.
fn other_result(theirs: Layer, ours: Layer, tensors: &[Tensor]) -> Option<String> {
    let distance = || -> Result<f32> {
        let single = tensors.iter().map(|t| t.to_dtype(DType::F32));
        let single = single.collect::<Result<Vec<_>>>()?;
        (theirs(&single)? - ours(&single)?)?.abs()?.max_all()?.to_scalar()
    };
    match distance() {
        Ok(distance) if distance < 1e-4 => None,
        other => Some(format!("another result: {other:?}")),
    }
}

#[test]
fn each_trains_or_is_refused_with_its_remedy() {
    let mut faults = Vec::new();
    for case in layers().into_iter().chain(operations()) {
        let tensors = tensors(&case);
        let mut check = |part: Option<&str>, trained: Option<Layer>| {
            if let Some(part) = part {
                let result = step(case.layer, &tensors).map_err(|error| error.to_string());
                if !result.as_ref().is_err_and(|error| error.contains(part)) {
                    faults.push(format!("{}: {result:?}", case.name));
                }
            }
            let Some(layer) = trained else { return };
            if let Some(fault) = wrong_gradient(layer, &tensors) {
                faults.push(format!("{}: {fault}", case.name));
            }
            if let Err(error) = checked(layer, &tensors) {
                faults.push(format!("{}: {error}", case.name));
            }
        };
        match case.outcome {
            Trains => check(None, Some(case.layer)),
            Refused(part) => check(Some(part), None),
            Instead(part, instead) => {
                check(Some(part), Some(instead));
                if let Some(fault) = other_result(case.layer, instead, &tensors) {
                    faults.push(format!("{}: {fault}", case.name));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Faults of candle that no step finds, which docs/porting.md names. If this fails, candle has mended one.
#[test]
fn candle_still_has_the_faults_that_the_documentation_names() {
    let refuse = |layer: Layer, shape: &[usize]| {
        let tensors = [uniform(shape, 1, 0.5, 1.0, DType::F64).unwrap()];
        assert!(wrong_gradient(layer, &tensors).is_some());
        // The explicit check finds what no step can.
        let error = checked(layer, &tensors).unwrap_err().to_string();
        assert!(error.contains("`tensor0`") && error.contains("docs/porting.md"), "{error}");
    };
    // The gradient of the input's other use is overwritten.
    refuse(
        |t| {
            let up = t[0].upsample_nearest2d(4, 4)?;
            up.flatten_from(2)?.mean(2)? + t[0].sqr()?.flatten_from(2)?.sum(2)?
        },
        &[1, 1, 2, 2],
    );
    // The data of a first convolution are not in the graph.
    refuse(|t| constant(&t[0], &[2, 4, 7], 5)?.conv1d(&t[0], 1, 1, 1, 1), &[3, 4, 2]);
    // The values pass a gradient to the common projection, and queries and keys none.
    refuse(
        |t| {
            let [q, k, v] = [0, 1, 2].map(|i| t[0].narrow(1, 4 * i, 4)?.contiguous());
            candle_nn::ops::softmax_last_dim(&q?.matmul(&k?.t()?)?)?.matmul(&v?)
        },
        &[3, 12],
    );

    // The result of a linear layer for a transposed view of several samples is wrong, and that of
    // its copy is right.
    let xs = uniform((2, 4, 3), 2, -1.0, 1.0, DType::F64).unwrap().transpose(1, 2).unwrap();
    let weight = uniform((5, 4), 3, -1.0, 1.0, DType::F64).unwrap();
    let truth = xs.flatten_to(1).unwrap().matmul(&weight.t().unwrap()).unwrap();
    let truth = truth.reshape((2, 3, 5)).unwrap();
    let linear = candle_nn::Linear::new(weight, None);
    assert_close(&linear.forward(&xs.contiguous().unwrap()).unwrap(), &truth, 1e-9, 1e-9);
    let distance = (linear.forward(&xs).unwrap() - truth).unwrap().abs().unwrap();
    assert!(distance.max_all().unwrap().to_scalar::<f64>().unwrap() > 0.1);
}
