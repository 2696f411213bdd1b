//! Batch normalisation together with the operation around it: the sum of a residual branch, and the
//! convolution of its result. Gradients, PyTorch, the bits of separate operations, errors, layers.

use candelabrum_nn::layers::{BatchNorm2d, Conv2d};
use candelabrum_nn::ops::{
    BatchNorm, BatchNormConfig, Conv2dConfig, RunningStatistics, add, batch_norm2d,
    batch_norm2d_add, batch_norm2d_conv2d, conv2d, scale, with_composites,
};
use candelabrum_nn::{Activation, FromModule, Model, Params};
use candelabrum_testkit::gradcheck;
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use proptest::prelude::*;

use crate::behaviour::message;
use crate::golden::{Case, activation, cases, check_within};
use crate::norms::{running, some_running};
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 2e-7;
const RELU: Option<Activation> = Some(Activation::Relu);

fn affine(t: &[Tensor], config: BatchNormConfig) -> BatchNorm<'_> {
    BatchNorm { weight: Some(&t[0]), bias: Some(&t[1]), config, ..BatchNorm::default() }
}

#[test]
fn sums_with_a_residual_on_odd_shapes() -> Result<()> {
    for dims in [&[3, 2, 3, 5][..], &[1, 3, 2, 3], &[4, 5], &[2, 1, 6, 7]] {
        let channels = dims[1];
        let inputs =
            [random(channels, 2)?, random(channels, 3)?, random(dims, 1)?, random(dims, 4)?];
        for activation in [None, RELU, Some(Activation::Relu6), Some(Activation::Gelu)] {
            for training in [true, false] {
                let config =
                    BatchNormConfig { training, activation, eps: 1e-3, ..Default::default() };
                let running = some_running(channels, DType::F64, &Device::Cpu)?;
                let running = (!training).then_some(&running);
                let sum = |t: &[Tensor]| {
                    batch_norm2d_add(&t[2], BatchNorm { running, ..affine(t, config) }, &t[3])
                };
                gradcheck(sum, &inputs, EPS, TOL)?;
                let plain = BatchNorm { running, config, ..BatchNorm::default() };
                gradcheck(|t| batch_norm2d_add(&t[0], plain, &t[1]), &inputs[2..], EPS, TOL)?;
            }
        }
    }
    Ok(())
}

#[test]
fn both_gradients_of_a_residual_that_is_the_input_are_summed() -> Result<()> {
    let inputs = [random(2, 2)?, random(2, 3)?, random((3, 2, 3, 2), 1)?];
    let config = BatchNormConfig { activation: RELU, ..Default::default() };
    gradcheck(|t| batch_norm2d_add(&t[2], affine(t, config), &t[2]), &inputs, EPS, TOL)?;
    let through = |t: &[Tensor]| {
        let xs = scale(&t[2], 2.0)?;
        batch_norm2d_add(&xs, affine(t, config), &xs)
    };
    gradcheck(through, &inputs, EPS, TOL)
}

#[test]
fn convolutions_of_normalised_images_on_odd_shapes() -> Result<()> {
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    for (xs, weight, convolution) in [
        ([2, 3, 5, 4], [2, 3, 3, 2], padded),
        ([2, 3, 9, 8], [4, 3, 1, 1], Conv2dConfig::default()),
        ([2, 4, 5, 5], [4, 1, 3, 3], Conv2dConfig { groups: 4, stride: (2, 1), ..padded }),
        ([9, 2, 3, 3], [3, 2, 3, 3], padded),
        ([3, 2, 1, 1], [3, 2, 3, 3], padded), // Cropped to 1 × 1.
    ] {
        let channels = xs[1];
        let inputs = [
            random(channels, 2)?,
            random(channels, 3)?,
            random(&xs[..], 1)?,
            random(&weight[..], 4)?,
            random(weight[0], 5)?,
        ];
        for (activation, after) in [
            (RELU, None),
            (Some(Activation::Relu6), RELU),
            (None, Some(Activation::Gelu)),
            (Some(Activation::Tanh), None),
        ] {
            for training in [true, false] {
                let config =
                    BatchNormConfig { training, activation, eps: 1e-3, ..Default::default() };
                let running = some_running(channels, DType::F64, &Device::Cpu)?;
                let running = (!training).then_some(&running);
                let f = |t: &[Tensor]| {
                    let norm = BatchNorm { running, ..affine(t, config) };
                    batch_norm2d_conv2d(&t[2], norm, &t[3], Some(&t[4]), convolution, after)
                };
                gradcheck(f, &inputs, EPS, TOL)?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_sum_and_the_convolution_are_pytorchs() -> Result<()> {
    for case in cases("batch_norm2d_add.safetensors") {
        let [training, relu] = case.config()?[..] else { panic!("two numbers") };
        check_within(1e-12, &case, &["weight", "bias", "xs", "residual"], |t| {
            let affine = [&t["weight"], &t["bias"]];
            let f = |norm: BatchNorm<'_>| batch_norm2d_add(&t["xs"], norm, &t["residual"]);
            with_norm(&case, affine, [training, relu], f)
        })?;
    }
    let inputs = ["norm_weight", "norm_bias", "xs", "weight", "bias"];
    for case in cases("batch_norm2d_conv2d.safetensors") {
        let [training, relu, stride, padding, groups] = case.config()?[..] else {
            panic!("five numbers")
        };
        let (stride, padding) = ((stride, stride), (padding, padding));
        let convolution = Conv2dConfig { stride, padding, groups, dilation: (1, 1) };
        check_within(1e-12, &case, &inputs, |t| {
            with_norm(&case, [&t["norm_weight"], &t["norm_bias"]], [training, relu], |norm| {
                let (weight, bias) = (&t["weight"], t.get("bias"));
                batch_norm2d_conv2d(&t["xs"], norm, weight, bias, convolution, None)
            })
        })?;
    }
    Ok(())
}

/// Calls `f` with a normalisation that has the running statistics of a golden file's case.
fn with_norm(
    case: &Case,
    [weight, bias]: [&Tensor; 2],
    [training, relu]: [usize; 2],
    f: impl FnOnce(BatchNorm<'_>) -> Result<Tensor>,
) -> Result<Tensor> {
    let of = |name: &str| case.tensors[name].to_dtype(weight.dtype());
    let running = running(&of("mean")?, &of("var")?)?;
    let (training, activation) = (training == 1, activation(relu));
    let config = BatchNormConfig { training, activation, ..Default::default() };
    let (weight, bias) = (Some(weight), Some(bias));
    f(BatchNorm { weight, bias, running: Some(&running), config, exchange: None })
}

/// The bits of the result, of all gradients, and of the running statistics.
fn bits(
    inputs: &[Tensor],
    is_linked: bool,
    f: impl Fn(&[Tensor], &RunningStatistics) -> Result<Tensor>,
) -> Result<Vec<Vec<u32>>> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    // The result of another operation, or a variable.
    let linked = |var: &Var| if is_linked { scale(var, 0.5) } else { Ok(var.as_tensor().clone()) };
    let tensors = vars.iter().map(linked).collect::<Result<Vec<_>>>()?;
    let running = some_running(inputs[0].dim(0)?, DType::F32, &Device::Cpu)?;
    let ys = f(&tensors, &running)?;
    let weights = random(ys.dims(), 77)?.to_dtype(DType::F32)?;
    let grads = (&ys * weights)?.sum_all()?.backward()?;
    let mut tensors = vec![ys, running.mean.value(), running.variance.value()];
    tensors.extend(vars.iter().map(|var| grads.get(var).expect("a gradient").clone()));
    let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
        Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(bits).collect()
}

fn f32s(dims: &[usize], seed: u64) -> Tensor {
    random(dims, seed).and_then(|tensor| tensor.to_dtype(DType::F32)).expect("random numbers")
}

/// Activations with a derivative of 0 or 1, and others.
fn activations() -> impl Strategy<Value = Option<Activation>> {
    prop_oneof![
        Just(None),
        Just(RELU),
        Just(Some(Activation::Relu6)),
        Just(Some(Activation::Gelu)),
        Just(Some(Activation::Tanh)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_sum_has_the_bits_of_two_operations(
        (batch, channels, height, width) in (1usize..5, 1usize..6, 1usize..9, 1usize..9),
        activation in activations(),
        (training, is_linked) in any::<(bool, bool)>(),
        seed in 0u64..1000,
    ) {
        prop_assume!(!training || batch * height * width > 1);
        let dims = [batch, channels, height, width];
        let inputs = [
            f32s(&[channels], seed),
            f32s(&[channels], seed + 1),
            f32s(&dims, seed + 2),
            f32s(&dims, seed + 3),
        ];
        let config = BatchNormConfig { training, activation, ..Default::default() };
        let fused = bits(&inputs, is_linked, |t, running| {
            let norm = BatchNorm { running: Some(running), ..affine(t, config) };
            batch_norm2d_add(&t[2], norm, &t[3])
        });
        let config = BatchNormConfig { activation: None, ..config };
        let apart = bits(&inputs, is_linked, |t, running| {
            let ys = batch_norm2d(&t[2], Some(&t[0]), Some(&t[1]), Some(running), config)?;
            add(&ys, &t[3], activation)
        });
        prop_assert!(fused.unwrap() == apart.unwrap());
    }

    /// Every algorithm of a convolution reads normalised images.
    #[test]
    fn a_convolution_has_the_bits_of_two_operations(
        (xs, weight, groups) in prop_oneof![
            // Tiles.
            (1usize..4, 16usize..20, 4usize..12, 4usize..12, 16usize..20)
                .prop_map(|(n, c, h, w, o)| ([n, c, h, w], [o, c, 3, 3], 1)),
            // Depthwise.
            (1usize..4, 2usize..6, 3usize..12, 3usize..12, 1usize..3)
                .prop_map(|(n, c, h, w, times)| ([n, c, h, w], [c * times, 1, 3, 3], c)),
            // Without patches.
            (1usize..4, 9usize..12, 9usize..20, 24usize..30, 1usize..9)
                .prop_map(|(n, c, h, w, o)| ([n, c, h, w], [o, c, 3, 3], 1)),
            // 1 × 1, large and small.
            (1usize..12, 1usize..20, 3usize..14, 3usize..14, 1usize..20)
                .prop_map(|(n, c, h, w, o)| ([n, c, h, w], [o, c, 1, 1], 1)),
            // Interleaved images and small ones.
            (8usize..34, 4usize..9, 3usize..9, 3usize..9, 1usize..9)
                .prop_map(|(n, c, h, w, o)| ([n, c, h, w], [o, c, 5, 4], 1)),
        ],
        (stride, padding) in (1usize..3, 1usize..3),
        (before, after) in (activations(), activations()),
        (training, is_linked) in any::<(bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let inputs = [
            f32s(&[xs[1]], seed),
            f32s(&[xs[1]], seed + 1),
            f32s(&xs, seed + 2),
            f32s(&weight, seed + 3),
            f32s(&weight[..1], seed + 4),
        ];
        let (stride, padding) = ((stride, stride), (padding, padding));
        let convolution = Conv2dConfig { stride, padding, groups, dilation: (1, 1) };
        let config = BatchNormConfig { training, activation: before, ..Default::default() };
        let fused = bits(&inputs, is_linked, |t, running| {
            let norm = BatchNorm { running: Some(running), ..affine(t, config) };
            batch_norm2d_conv2d(&t[2], norm, &t[3], Some(&t[4]), convolution, after)
        });
        let apart = bits(&inputs, is_linked, |t, running| {
            let hs = batch_norm2d(&t[2], Some(&t[0]), Some(&t[1]), Some(running), config)?;
            conv2d(&hs, &t[3], Some(&t[4]), convolution, after)
        });
        prop_assert!(fused.unwrap() == apart.unwrap());
    }
}

/// A frozen part of a network still passes gradients on, or ends them.
#[test]
fn frozen_inputs_get_no_gradient_and_the_others_get_theirs() -> Result<()> {
    let t = [f32s(&[3], 1), f32s(&[3], 2), f32s(&[2, 3, 6, 5], 3), f32s(&[4, 3, 3, 3], 4)];
    let config = BatchNormConfig { activation: RELU, ..Default::default() };
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    for trained in [[false, false, true], [true, false, false], [false, true, false]] {
        let step = |is_fused: bool| -> Result<Tensor> {
            let var =
                Var::from_tensor(&t[[2, 3, 0][trained.iter().position(|t| *t).unwrap_or(0)]])?;
            let of = |number: usize, is_trained: bool| {
                if is_trained { var.as_tensor().clone() } else { t[number].clone() }
            };
            let (xs, weight, factor) = (of(2, trained[0]), of(3, trained[1]), of(0, trained[2]));
            let ys = if is_fused {
                let (weight_of_norm, bias) = (Some(&factor), Some(&t[1]));
                let norm = BatchNorm { weight: weight_of_norm, bias, config, ..Default::default() };
                batch_norm2d_conv2d(&xs, norm, &weight, None, padded, None)?
            } else {
                let hs = batch_norm2d(&xs, Some(&factor), Some(&t[1]), None, config)?;
                conv2d(&hs, &weight, None, padded, None)?
            };
            let grads = ys.sqr()?.sum_all()?.backward()?;
            Ok(grads.get(&var).expect("the variable has a gradient").clone())
        };
        let [fused, apart] = [step(true)?, step(false)?].map(|grad| grad.flatten_all());
        assert_eq!(fused?.to_vec1::<f32>()?, apart?.to_vec1::<f32>()?);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let (xs, weight) = (random((2, 3, 4, 4), 1)?, random((5, 3, 3, 3), 2)?);
    let norm = BatchNorm::default();
    let result = batch_norm2d_add(&xs, norm, &random((2, 3, 4, 5), 3)?);
    let expected =
        "batch_norm2d: residual of shape [2, 3, 4, 5] for an input of shape [2, 3, 4, 4]";
    assert_eq!(message(result), expected);
    let config = Conv2dConfig::default();
    let four = random(4, 3)?;
    let other = BatchNorm { weight: Some(&four), ..norm };
    let result = batch_norm2d_conv2d(&xs, other, &weight, None, config, None);
    assert_eq!(message(result), "batch_norm2d: weight of shape [4] for 3 channels");
    let result = batch_norm2d_conv2d(&xs, norm, &weight, Some(&four), config, None);
    assert_eq!(message(result), "conv2d: bias of shape [4] for 5 outputs");
    let untrained = BatchNormConfig { training: false, ..Default::default() };
    let result = batch_norm2d_conv2d(
        &xs,
        BatchNorm { config: untrained, ..norm },
        &weight,
        None,
        config,
        None,
    );
    assert_eq!(message(result), "batch_norm2d: evaluation needs running statistics");
    Ok(())
}

#[test]
fn numbers_of_16_bits_are_those_of_two_operations() -> Result<()> {
    let config = BatchNormConfig { activation: RELU, ..Default::default() };
    for dtype in [DType::BF16, DType::F16] {
        let of = |dims: &[usize], seed| random(dims, seed)?.to_dtype(dtype);
        let (xs, weight) = (of(&[2, 3, 5, 5], 1)?, of(&[4, 3, 3, 3], 2)?);
        let norm = BatchNorm { config, ..BatchNorm::default() };
        let hs = batch_norm2d(&xs, None, None, None, config)?;
        let apart = conv2d(&hs, &weight, None, Conv2dConfig::default(), None)?;
        let ys = batch_norm2d_conv2d(&xs, norm, &weight, None, Conv2dConfig::default(), None)?;
        let values = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        assert_eq!((ys.dtype(), values(&ys)?), (dtype, values(&apart)?));
        let sum = batch_norm2d_add(&xs, norm, &xs)?;
        let composite = with_composites(|| batch_norm2d_add(&xs, norm, &xs))?;
        assert_eq!((sum.dtype(), sum.dims()), (dtype, xs.dims()));
        for (kernel, composite) in values(&sum)?.iter().zip(values(&composite)?) {
            assert!((kernel - composite).abs() <= 0.02 * composite.abs().max(1.0));
        }
    }
    Ok(())
}

#[test]
fn the_layers_are_those_one_after_the_other() -> Result<()> {
    let xs = f32s(&[2, 3, 7, 6], 1);
    let step = |is_fused: bool| -> Result<(Vec<f32>, Vec<String>, Vec<String>)> {
        let params = Params::new(5);
        let root = params.root();
        let norm = BatchNorm2d::new(&root.pp("norm")).activation(Activation::Relu);
        let conv = Conv2d::new(&root.pp("conv"), 3, 3).padding(1);
        let last = BatchNorm2d::new(&root.pp("last"));
        let model = FromModule(move |xs: &Tensor| {
            if is_fused {
                last.forward_add(&norm.forward_conv(xs, &conv)?, xs)
            } else {
                add(&last.forward(&conv.forward(&norm.forward(xs)?)?)?, xs, None)
            }
        });
        let summary = model.compile(&params, (1, 3, 7, 6))?;
        let rows = summary.layers().iter().map(|row| format!("{row:?}")).collect();
        let names = params.list().iter().map(|param| param.name().to_owned()).collect();
        Ok((model.forward(&xs)?.flatten_all()?.to_vec1::<f32>()?, rows, names))
    };
    let (fused, apart) = (step(true)?, step(false)?);
    assert_eq!(fused, apart);
    assert_eq!(
        fused.2,
        ["norm.weight", "norm.bias", "conv.weight", "conv.bias", "last.weight", "last.bias"]
    );
    Ok(())
}
