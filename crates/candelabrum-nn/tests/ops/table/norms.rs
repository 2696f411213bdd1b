//! Normalisations: of rows, of groups of channels, of neighbouring channels, of batches, and of batches together
//! with the operation around them.

use std::sync::Arc;

use candelabrum_nn::ops::{
    self, BatchNorm, BatchNormConfig, Conv2dConfig, LocalResponseNormConfig, RunningStatistics,
};
use candelabrum_nn::{Activation, Init, Params, StatisticsExchange};
use candelabrum_testkit::assert_close;
use candle_core::{DType, Device, Result, Tensor};

use super::case::{Arguments, Cases, GoldenCase, like};
use super::convolutions::LARGE;
use super::elementwise::relu;
use crate::random;

const AFFINE: [&str; 3] = ["xs", "weight", "bias"];

#[test]
fn layer_norm_and_rms_norm() -> Result<()> {
    fn row(t: &Arguments, of_row: usize) -> &[usize] {
        &t[0].dims()[t[0].rank() - of_row..]
    }
    let centred = |of_row, eps| {
        move |t: &Arguments| ops::layer_norm(&t[0], row(t, of_row), t.get(1), t.get(2), eps)
    };
    let plain =
        |of_row, eps| move |t: &Arguments| ops::rms_norm(&t[0], row(t, of_row), t.get(1), eps);
    let mut layer = Cases::new("layer_norm", &AFFINE, &[]);
    layer.golden("layer_norm", |case| Ok(centred(case.config::<1>()?[0], case.number("eps")?)))?;
    let mut rms = Cases::new("rms_norm", &AFFINE[..2], &[]);
    rms.golden("rms_norm", |case| Ok(plain(case.config::<1>()?[0], case.number("eps")?)))?;
    for (dims, of_row) in [
        (&[3, 5][..], 1),
        (&[2, 3, 4], 1),
        (&[2, 3, 4], 2),
        (&[7], 1),
        (&[190, 3], 1),
        (&[2, 300, 2], 2),
        (&[0, 3], 1),
        (&[61, 24, 6, 8], 3),
        (&[61, 24, 6, 8], 1),
    ] {
        let row = &dims[dims.len() - of_row..];
        layer.add("", &[dims, row, row], centred(of_row, 1e-3)).optional(&[&[1], &[2]]);
        rms.add("", &[dims, row], plain(of_row, 1e-3)).optional(&[&[1]]);
    }
    layer.check()?;
    rms.check()
}

#[test]
fn group_norm() -> Result<()> {
    let of =
        |groups, eps| move |t: &Arguments| ops::group_norm(&t[0], groups, t.get(1), t.get(2), eps);
    let mut cases = Cases::new("group_norm", &AFFINE, &[]);
    cases.golden("group_norm", |case| Ok(of(case.config::<1>()?[0], case.number("eps")?)))?;
    for (dims, groups) in [
        (&[3, 4, 3, 5][..], 2),
        (&[1, 3, 2, 3], 3),
        (&[2, 6, 7, 6], 2),
        (&[4, 6], 3),
        (&[2, 5, 9], 1),
        (&[2, 2, 1, 1], 1),
        (&[2, 4, 3, 2, 2], 4),
        (&[0, 4, 3], 2),
        (&[2, 300, 2, 3], 2),
        (&[7, 6, 31, 20], 3),
    ] {
        let shapes = [dims, &dims[1..2], &dims[1..2]];
        cases.add(groups, &shapes, of(groups, 1e-3)).optional(&[&[1], &[2]]);
    }
    cases.check()
}

#[test]
fn local_response_norm() -> Result<()> {
    let with = |config| move |t: &Arguments| ops::local_response_norm(&t[0], config);
    let mut cases = Cases::new("local_response_norm", &["xs"], &[]);
    cases.golden("local_response_norm", |case| {
        let [size] = case.config()?;
        let constants = case.tensors["constants"].to_vec1()?;
        let (alpha, beta, k) = (constants[0], constants[1], constants[2]);
        Ok(with(LocalResponseNormConfig { size, alpha, beta, k }))
    })?;
    // Windows of an odd and an even number of channels, wider than the input, and other powers.
    let three = LocalResponseNormConfig::new(3);
    for config in [
        LocalResponseNormConfig { alpha: 1.5, ..three },
        LocalResponseNormConfig { size: 4, alpha: 2.0, k: 0.5, ..three },
        LocalResponseNormConfig { size: 11, alpha: 0.7, ..three },
        LocalResponseNormConfig { size: 1, alpha: 1.0, beta: 0.5, k: 2.0 },
        LocalResponseNormConfig { beta: -1.25, alpha: 1.0, ..three },
        LocalResponseNormConfig::of_the_paper(),
    ] {
        for dims in [&[2, 5, 3, 2][..], &[1, 2, 3], &[3, 4], &[0, 3, 2], &[7, 6, 31, 20]] {
            cases.add(config, &[dims], with(config));
        }
    }
    cases.check()
}

/// Running statistics for these images. Those of 16 bits are in f32.
fn running(xs: &Tensor, [mean, variance]: [&Tensor; 2]) -> Result<RunningStatistics> {
    let dtype = if xs.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let params = Params::on(0, dtype, xs.device());
    let buffer = |name: &str, value: &Tensor| {
        let buffer = params.root().buffer(name, value.dims(), Init::ZEROS)?;
        buffer.set(&value.to_dtype(dtype)?.to_device(xs.device())?)?;
        candelabrum_nn::Result::Ok(buffer)
    };
    Ok(RunningStatistics { mean: buffer("mean", mean)?, variance: buffer("variance", variance)? })
}

/// Values with few digits, which are exact in every type.
pub(crate) fn some_running(xs: &Tensor) -> Result<RunningStatistics> {
    let channels = xs.dim(1)?;
    let (mean, variance) = (random(channels, 91)?, random(channels, 92)?.affine(0.4, 1.0)?);
    let few_digits = |x: &Tensor| x.affine(16.0, 0.0)?.round()?.affine(1.0 / 16.0, 0.0);
    running(xs, [&few_digits(&mean)?, &few_digits(&variance)?])
}

/// In training and in evaluation, with the activations that are fused there.
fn configs() -> impl Iterator<Item = BatchNormConfig> {
    let with = |(training, activation)| BatchNormConfig {
        training,
        activation,
        eps: 1e-3,
        ..Default::default()
    };
    let fused = [Activation::Relu, Activation::Relu6].map(|activation| (true, Some(activation)));
    let in_evaluation = Activation::ALL.iter().map(|&activation| (false, Some(activation)));
    [(true, None), (false, None)].into_iter().chain(fused).chain(in_evaluation).map(with)
}

const SHAPES: [&[usize]; 7] = [
    &[3, 2, 3, 5],
    &[1, 3, 2, 3],
    &[4, 5],
    &[2, 1, 6, 7],
    &[2, 3, 1, 1],
    &[0, 3, 4, 4],
    &[61, 24, 6, 8],
];

#[test]
fn batch_norm2d() -> Result<()> {
    let mut cases = Cases::new("batch_norm2d", &AFFINE, &[]);
    cases.golden("batch_norm2d", |case| {
        let [training, flag] = case.config()?;
        let (eps, training, activation) = (case.number("eps")?, training == 1, relu(flag));
        let config = BatchNormConfig { training, activation, eps, ..Default::default() };
        let statistics = ["mean_before", "var_before", "mean_after", "var_after"];
        let [mean, variance, moved @ ..] = statistics.map(|name| case.tensors[name].clone());
        Ok(move |t: &Arguments| {
            let running = running(&t[0], [&mean, &variance])?;
            let ys = ops::batch_norm2d(&t[0], t.get(1), t.get(2), Some(&running), config)?;
            let tolerance = if t[0].dtype() == DType::F64 { 1e-12 } else { 3e-7 };
            for (running, moved) in [&running.mean, &running.variance].into_iter().zip(&moved) {
                let running = running.value().to_device(&Device::Cpu)?;
                assert_close(&running, &like(moved, &running)?, tolerance, tolerance);
            }
            Ok(ys)
        })
    })?;
    for config in configs() {
        for dims in SHAPES {
            let shapes = [dims, &dims[1..2], &dims[1..2]];
            let case = cases.add(config, &shapes, move |t| {
                let running = (!config.training).then(|| some_running(&t[0])).transpose()?;
                ops::batch_norm2d(&t[0], t.get(1), t.get(2), running.as_ref(), config)
            });
            case.optional(&[&[1], &[2]]);
            // With the running statistics, which have no gradient, as a part of the result.
            let case = cases.add((config, "running"), &shapes, move |t| {
                let running = some_running(&t[0])?;
                let ys = ops::batch_norm2d(&t[0], t.get(1), t.get(2), Some(&running), config)?;
                let moved = Tensor::cat(&[running.mean.value(), running.variance.value()], 0)?;
                Tensor::cat(&[ys.flatten_all()?, moved.to_dtype(ys.dtype())?], 0)
            });
            case.has_slopes = false;
        }
    }
    // A weight of up to 8, so that values lie on both sides of 6.
    let inputs = [random((3, 2, 4, 5), 1)?, (random(2, 2)?.abs()? + 7.0)?, random(2, 3)?];
    let config = BatchNormConfig { activation: Some(Activation::Relu6), ..Default::default() };
    let relu6 = move |t: &Arguments| ops::batch_norm2d(&t[0], t.get(1), t.get(2), None, config);
    cases.add_with("large weights", &inputs, relu6).not_in_16_bits();
    cases.check()
}

/// The normalisation of a golden file's case.
fn golden_norm(case: &GoldenCase, [training, flag]: [usize; 2]) -> (BatchNormConfig, [Tensor; 2]) {
    let (training, activation) = (training == 1, relu(flag));
    let statistics = ["mean", "var"].map(|name| case.tensors[name].clone());
    (BatchNormConfig { training, activation, ..Default::default() }, statistics)
}

/// A normalisation with the weight and the bias of these arguments.
fn norm<'a>(
    t: &'a Arguments,
    running: &'a RunningStatistics,
    config: BatchNormConfig,
) -> BatchNorm<'a> {
    BatchNorm { weight: t.get(1), bias: t.get(2), running: Some(running), config, exchange: None }
}

#[test]
fn batch_norm2d_add() -> Result<()> {
    let mut cases = Cases::new("batch_norm2d_add", &["xs", "weight", "bias", "residual"], &[]);
    cases.golden("batch_norm2d_add", |case| {
        let (config, statistics) = golden_norm(case, case.config()?);
        Ok(move |t: &Arguments| {
            let running = running(&t[0], statistics.each_ref())?;
            ops::batch_norm2d_add(&t[0], norm(t, &running, config), &t[3])
        })
    })?;
    for config in configs() {
        for dims in SHAPES {
            let shapes = [dims, &dims[1..2], &dims[1..2], dims];
            // The residual may be the input itself.
            for count in [3, 4] {
                let case = cases.add(config, &shapes[..count], move |t| {
                    let running = some_running(&t[0])?;
                    let residual = t.get(3).unwrap_or(&t[0]);
                    ops::batch_norm2d_add(&t[0], norm(t, &running, config), residual)
                });
                // On a GPU these are two operations. In 16 bits the first one's rounding goes through the second.
                case.optional(&[&[1, 2]]).not_in_16_bits();
            }
        }
    }
    cases.check()
}

#[test]
fn batch_norm2d_conv2d() -> Result<()> {
    let inputs = ["xs", "norm_weight", "norm_bias", "weight", "bias"];
    let mut cases = Cases::new("batch_norm2d_conv2d", &inputs, &[]);
    cases.golden("batch_norm2d_conv2d", |case| {
        let [training, flag, stride, padding, groups] = case.config()?;
        let (config, statistics) = golden_norm(case, [training, flag]);
        let (stride, padding, dilation) = ((stride, stride), (padding, padding), (1, 1));
        let conv = Conv2dConfig { stride, padding, groups, dilation };
        Ok(move |t: &Arguments| {
            let running = running(&t[0], statistics.each_ref())?;
            let norm = norm(t, &running, config);
            ops::batch_norm2d_conv2d(&t[0], norm, &t[3], t.get(4), conv, None)
        })
    })?;
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    let small = [
        ([2, 3, 5, 4], [2, 3, 3, 2], padded),
        ([2, 3, 9, 8], [4, 3, 1, 1], Conv2dConfig::default()),
        ([2, 4, 5, 5], [4, 1, 3, 3], Conv2dConfig { groups: 4, stride: (2, 1), ..padded }),
        ([9, 2, 3, 3], [3, 2, 3, 3], padded),
        ([3, 2, 1, 1], [3, 2, 3, 3], padded), // Cropped to 1 × 1.
        ([0, 2, 3, 3], [3, 2, 3, 3], padded),
    ];
    for config in configs() {
        let large = if config.activation == Some(Activation::Relu) { &LARGE[..] } else { &[] };
        for &(xs, weight, conv) in small.iter().chain(large) {
            let shapes: [&[usize]; 5] = [&xs, &xs[1..2], &xs[1..2], &weight, &weight[..1]];
            for after in [None, Some(Activation::Gelu)] {
                let case = cases.add((config, conv, after), &shapes, move |t| {
                    let running = some_running(&t[0])?;
                    let norm = norm(t, &running, config);
                    ops::batch_norm2d_conv2d(&t[0], norm, &t[3], t.get(4), conv, after)
                });
                case.optional(&[&[1, 2], &[4]]).not_in_16_bits();
            }
        }
    }
    cases.check()
}

/// Another replica with some statistics.
#[derive(Debug)]
struct Other;

impl StatisticsExchange for Other {
    fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>> {
        let other = (0..values.len()).map(|i| if i == 0 { 4.0 } else { 0.5 });
        Ok(values.iter().copied().chain(other).collect())
    }
}

#[test]
fn sync_batch_norm2d() -> Result<()> {
    let mut cases = Cases::new("sync_batch_norm2d", &AFFINE, &[]);
    for dims in [[0, 3, 5, 4], [2, 3, 5, 4], [61, 24, 6, 8]] {
        let case = cases.add("", &[&dims, &dims[1..2], &dims[1..2]], |t| {
            let other: Arc<dyn StatisticsExchange> = Arc::new(Other);
            let config = BatchNormConfig::default();
            ops::sync_batch_norm2d(&t[0], t.get(1), t.get(2), None, config, &other)
        });
        // The other replica's gradients are a part of these. candle's conversion of nothing to 16 bits is an error
        // on a GPU.
        case.optional(&[&[1], &[2]]).rough();
    }
    cases.check()
}

/// The kernels on a GPU divide the values of a channel, of which the other cases have few.
#[test]
fn channels_with_many_values_are_as_precise_on_a_gpu() -> Result<()> {
    let mut cases = Cases::new("many values", &AFFINE, &[]);
    // cuDNN adds thousands of numbers in f32.
    let mut convolutions = Cases::new("many values", &AFFINE, &[]);
    for dims in [[3, 2, 70, 60], [9000, 3, 1, 1], [5, 1, 400, 300]] {
        let xs = random(&dims[..], 1)?.affine(1.0, 100.0)?;
        let inputs = [xs, random(dims[1], 2)?, random(dims[1], 3)?];
        for activation in [None, Some(Activation::Relu)] {
            let config = BatchNormConfig { activation, ..Default::default() };
            cases.add_with(activation, &inputs, move |t| {
                ops::batch_norm2d(&t[0], t.get(1), t.get(2), None, config)
            });
        }
        convolutions.add("", &[&dims, &[2, dims[1], 1, 1], &[2]], |t| {
            ops::conv2d(&t[0], &t[1], t.get(2), Conv2dConfig::default(), None)
        });
    }
    cases.add("", &[&[3, 5, 90, 80]], |t| ops::global_avg_pool2d(&t[0]));
    cases.check_precision_on_a_gpu(1e-5)?;
    convolutions.check_precision_on_a_gpu(1e-4)
}
