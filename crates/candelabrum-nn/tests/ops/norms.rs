//! Batch, layer and RMS normalisation: gradients, PyTorch, threads, running statistics, errors.

use candelabrum_nn::layers::{BatchNorm2d, LayerNorm, RmsNorm};
use candelabrum_nn::ops::{
    BatchNormConfig, RunningStatistics, batch_norm2d, layer_norm, relu6, rms_norm,
};
use candelabrum_nn::{Activation, FromModule, Init, Model, Params};
use candelabrum_testkit::{assert_close, golden, gradcheck, uniform};
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{Case, activation, cases, check_within};
use crate::{golden_path, random};

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;
const RELU: Option<Activation> = Some(Activation::Relu);

pub(crate) fn running(mean: &Tensor, variance: &Tensor) -> Result<RunningStatistics> {
    let params = Params::on(0, mean.dtype(), mean.device());
    let buffer = |name: &str, value: &Tensor| {
        let buffer = params.root().buffer(name, value.dims(), Init::ZEROS)?;
        buffer.set(value)?;
        candelabrum_nn::Result::Ok(buffer)
    };
    Ok(RunningStatistics { mean: buffer("mean", mean)?, variance: buffer("variance", variance)? })
}

pub(crate) fn some_running(
    channels: usize,
    dtype: DType,
    device: &Device,
) -> Result<RunningStatistics> {
    // Values with few digits are exact in every type.
    let (mean, variance) = (random(channels, 91)?, random(channels, 92)?.affine(0.4, 1.0)?);
    let few_digits = |x: &Tensor| x.affine(16.0, 0.0)?.round()?.affine(1.0 / 16.0, 0.0);
    let (mean, variance) = (few_digits(&mean)?, few_digits(&variance)?);
    let dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
    let placed = |x: &Tensor| x.to_dtype(dtype)?.to_device(device);
    running(&placed(&mean)?, &placed(&variance)?)
}

/// With a mean of 1e4, PyTorch's own rounding in f64 needs a larger tolerance.
fn tolerance(case: &Case) -> f64 {
    if case.name == "large_mean" { 1e-11 } else { 1e-12 }
}

#[test]
fn batch_norm_on_odd_shapes() -> Result<()> {
    for dims in [&[3, 2, 3, 5][..], &[1, 3, 2, 3], &[4, 5], &[2, 1, 6, 7], &[2, 3, 1, 1]] {
        let channels = dims[1];
        let inputs = [random(dims, 1)?, random(channels, 2)?, random(channels, 3)?];
        for (training, activation) in [(true, None), (true, RELU), (false, None), (false, RELU)] {
            let config = BatchNormConfig { training, activation, eps: 1e-3, ..Default::default() };
            let statistics = (!training)
                .then(|| some_running(channels, DType::F64, &Device::Cpu))
                .transpose()?;
            let affine = |t: &[Tensor]| {
                batch_norm2d(&t[0], Some(&t[1]), Some(&t[2]), statistics.as_ref(), config)
            };
            gradcheck(affine, &inputs, EPS, TOL)?;
            let plain = |t: &[Tensor]| batch_norm2d(&t[0], None, None, statistics.as_ref(), config);
            gradcheck(plain, &inputs[..1], EPS, TOL)?;
        }
    }
    Ok(())
}

#[test]
fn a_relu6_after_a_batch_norm_is_fused() -> Result<()> {
    // A weight of up to 8, so that values lie on both sides of 6.
    let inputs = [random((3, 2, 4, 5), 1)?, (random(2, 2)?.abs()? + 7.0)?, random(2, 3)?];
    for training in [true, false] {
        let config = |activation| BatchNormConfig { training, activation, ..Default::default() };
        let running = (!training).then(|| some_running(2, DType::F64, &Device::Cpu)).transpose()?;
        let f = |t: &[Tensor], activation| {
            batch_norm2d(&t[0], Some(&t[1]), Some(&t[2]), running.as_ref(), config(activation))
        };
        let fused = f(&inputs, Some(Activation::Relu6))?;
        let apart = relu6(&f(&inputs, None)?)?;
        assert_close(&fused, &apart, 0.0, 0.0);
        let values = fused.flatten_all()?.to_vec1::<f64>()?;
        assert!(values.contains(&0.0) && values.contains(&6.0));
        gradcheck(|t| f(t, Some(Activation::Relu6)), &inputs, EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn batch_norm_is_pytorchs_and_so_are_the_running_statistics() -> Result<()> {
    for case in cases("batch_norm2d.safetensors") {
        let [training, relu] = case.config()?[..] else { panic!("two numbers") };
        let eps = case.tensors["eps"].to_scalar::<f64>()?;
        let config = BatchNormConfig {
            training: training == 1,
            activation: activation(relu),
            eps,
            ..Default::default()
        };
        check_within(tolerance(&case), &case, &["xs", "weight", "bias"], |t| {
            let dtype = t["xs"].dtype();
            let of = |name: &str| case.tensors[name].to_dtype(dtype);
            let running = running(&of("mean_before")?, &of("var_before")?)?;
            let (weight, bias) = (t.get("weight"), t.get("bias"));
            let ys = batch_norm2d(&t["xs"], weight, bias, Some(&running), config)?;
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 3e-7 };
            assert_close(&running.mean.value(), &of("mean_after")?, tolerance, tolerance);
            assert_close(&running.variance.value(), &of("var_after")?, tolerance, tolerance);
            Ok(ys)
        })?;
    }
    Ok(())
}

#[test]
fn five_steps_of_the_layer_are_pytorchs() -> Result<()> {
    let expected = golden(golden_path("batch_norm2d_layer.safetensors"));
    let params = Params::new(0);
    let norm = BatchNorm2d::new(&params.root().pp("norm"));
    let batch = |step: u32| {
        uniform((4, 3, 5, 5), 8200 + u64::from(step), -f64::from(step), 2.0, DType::F32)
    };
    for step in 1..=5 {
        norm.forward(&batch(step)?)?;
    }
    let buffers = params.buffers();
    let names: Vec<&str> = buffers.iter().map(|buffer| buffer.name()).collect();
    assert_eq!(names, ["norm.running_mean", "norm.running_var"]);
    let check = || {
        for (buffer, name) in buffers.iter().zip(["running_mean", "running_var"]) {
            assert_close(&buffer.value(), &expected[name], 1e-6, 1e-7);
        }
    };
    check();
    params.eval();
    assert_close(&norm.forward(&batch(1)?)?, &expected["ys"], 1e-6, 1e-6);
    // Evaluation does not change the running statistics.
    check();
    Ok(())
}

#[test]
fn the_dry_run_creates_a_batch_norm_and_does_not_move_its_statistics() -> Result<()> {
    let params = Params::new(0);
    let norm = BatchNorm2d::new(&params.root().pp("norm")).activation(Activation::Relu);
    let model = FromModule(norm);
    let summary = model.compile(&params, (1, 6, 4, 4))?;
    assert_eq!(summary.layers()[0].kind, "BatchNorm2d, relu");
    assert_eq!(summary.parameter_count(), 12);
    let [mean, variance] = &params.buffers()[..] else { panic!("two buffers") };
    assert_eq!(mean.value().to_vec1::<f32>()?, [0.0; 6]);
    assert_eq!(variance.value().to_vec1::<f32>()?, [1.0; 6]);
    let error = message(model.forward(&Tensor::zeros((2, 5, 4, 4), DType::F32, &Device::Cpu)?));
    assert_eq!(error, "layer `norm` takes 6 channels, the input has 5");
    Ok(())
}

#[test]
fn the_options_of_a_batch_norm_reach_it() -> Result<()> {
    let params = Params::new(0);
    let norm = BatchNorm2d::new(&params.root()).no_affine().momentum(1.0).eps(3.0);
    let xs = Tensor::new(&[[1f32], [3.0]], &Device::Cpu)?;
    // The variance is 1 and eps is 3, so each deviation is divided by √4.
    assert_eq!(norm.forward(&xs)?.flatten_all()?.to_vec1::<f32>()?, [-0.5, 0.5]);
    let [mean, variance] = &params.buffers()[..] else { panic!("two buffers") };
    assert_eq!(mean.value().to_vec1::<f32>()?, [2.0]);
    assert_eq!(variance.value().to_vec1::<f32>()?, [2.0]);
    assert!(params.is_empty());
    Ok(())
}

#[test]
fn a_batch_norm_refuses_what_it_cannot_normalise() -> Result<()> {
    let config = BatchNormConfig::default();
    let norm = |dims: &[usize], config| -> Result<String> {
        Ok(message(batch_norm2d(&random(dims, 1)?, None, None, None, config)))
    };
    assert!(norm(&[1, 3, 1, 1], config)?.contains("more than one value per channel"));
    assert!(norm(&[1, 3], config)?.contains("the input is [1, 3]"));
    assert!(norm(&[2, 3, 4], config)?.contains("expected (N, C, H, W) or (N, C)"));
    assert!(norm(&[2, 3], BatchNormConfig { eps: -1.0, ..config })?.contains("eps -1"));
    let evaluation = BatchNormConfig { training: false, ..config };
    assert!(norm(&[2, 3], evaluation)?.contains("needs running statistics"));
    let (xs, weight) = (random((2, 3), 1)?, random(4, 2)?);
    let expected = "batch_norm2d: weight of shape [4] for 3 channels";
    assert_eq!(message(batch_norm2d(&xs, Some(&weight), None, None, config)), expected);
    let expected = "batch_norm2d: running mean of shape [4] for 3 channels";
    let statistics = some_running(4, DType::F64, &Device::Cpu)?;
    assert_eq!(message(batch_norm2d(&xs, None, None, Some(&statistics), config)), expected);
    let xs = xs.to_dtype(DType::U32)?;
    let expected = "unsupported dtype U32 for op batch_norm2d";
    assert_eq!(message(batch_norm2d(&xs, None, None, None, config)), expected);
    Ok(())
}

#[test]
fn a_layer_norm_with_a_bias_alone_or_a_frozen_input() -> Result<()> {
    let (xs, weight, bias) = (random((5, 3), 1)?, random(3, 2)?, random(3, 3)?);
    let f = |t: &[Tensor]| layer_norm(&t[0], &[3], None, Some(&t[1]), 1e-5);
    gradcheck(f, &[xs.clone(), bias.clone()], EPS, TOL)?;
    let f = |t: &[Tensor]| layer_norm(&xs, &[3], Some(&t[0]), Some(&t[1]), 1e-5);
    gradcheck(f, &[weight.clone(), bias.clone()], EPS, TOL)?;
    let f = |t: &[Tensor]| layer_norm(&xs, &[3], Some(&weight), Some(&t[0]), 1e-5);
    gradcheck(f, &[bias], EPS, TOL)
}

#[test]
fn layer_norm_and_rms_norm_are_pytorchs() -> Result<()> {
    for (file, centred) in [("layer_norm.safetensors", true), ("rms_norm.safetensors", false)] {
        for case in cases(file) {
            let [dims] = case.config()?[..] else { panic!("one number") };
            let eps = case.tensors["eps"].to_scalar::<f64>()?;
            check_within(tolerance(&case), &case, &["xs", "weight", "bias"], |t| {
                let row = &t["xs"].dims()[t["xs"].rank() - dims..];
                if centred {
                    layer_norm(&t["xs"], row, t.get("weight"), t.get("bias"), eps)
                } else {
                    rms_norm(&t["xs"], row, t.get("weight"), eps)
                }
            })?;
        }
    }
    Ok(())
}

#[test]
fn layers_of_row_norms_create_their_parameters() -> Result<()> {
    let params = Params::new(0);
    let xs = uniform((2, 3, 4), 1, -1.0, 1.0, DType::F32)?;
    let layers: [Box<dyn Module>; 4] = [
        Box::new(LayerNorm::new(&params.root().pp("a"))),
        Box::new(LayerNorm::new(&params.root().pp("b")).dims(2).no_bias().eps(1e-3)),
        Box::new(RmsNorm::new(&params.root().pp("c"))),
        Box::new(RmsNorm::new(&params.root().pp("d")).no_affine()),
    ];
    for layer in &layers {
        assert_eq!(layer.forward(&xs)?.dims(), xs.dims());
    }
    let list = params.list();
    let shapes: Vec<(&str, &[usize])> = list.iter().map(|p| (p.name(), p.var().dims())).collect();
    let expected: [(&str, &[usize]); 4] =
        [("a.weight", &[4]), ("a.bias", &[4]), ("b.weight", &[3, 4]), ("c.weight", &[4])];
    assert_eq!(shapes, expected);
    let sums = layers[0].forward(&xs)?.sum(2)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(sums < 1e-5, "{sums}");
    let squares = layers[3].forward(&xs)?.sqr()?.mean(2)?;
    assert_close(&squares, &Tensor::ones((2, 3), DType::F32, &Device::Cpu)?, 1e-5, 0.0);
    let error = message(layers[1].forward(&xs.narrow(2, 0, 3)?));
    assert_eq!(error, "layer `b` takes rows of [3, 4], the input is [2, 3, 3]");
    Ok(())
}

#[test]
fn row_norms_refuse_shapes_that_do_not_fit() -> Result<()> {
    let xs = random((2, 3), 1)?;
    let expected = "layer_norm: input of shape [2, 3] for rows of [2]";
    assert_eq!(message(layer_norm(&xs, &[2], None, None, 1e-5)), expected);
    assert!(message(layer_norm(&xs, &[], None, None, 1e-5)).contains("for rows of []"));
    let weight = random(2, 2)?;
    let expected = "rms_norm: weight of shape [2] for rows of [3]";
    assert_eq!(message(rms_norm(&xs, &[3], Some(&weight), 1e-5)), expected);
    assert!(message(rms_norm(&xs, &[3], None, f64::NAN)).contains("eps NaN"));
    let xs = xs.to_dtype(DType::U32)?;
    let expected = "unsupported dtype U32 for op layer_norm";
    assert_eq!(message(layer_norm(&xs, &[3], None, None, 1e-5)), expected);
    Ok(())
}

/// Results, gradients and statistics of every norm in f32, with `threads` threads.
fn run(rows: usize, threads: usize) -> Result<Vec<Vec<u32>>> {
    let step = || -> Result<Vec<Vec<u32>>> {
        let flat = |tensor: &Tensor| -> Result<Vec<u32>> {
            let values = tensor.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let variable =
            |dims: &[usize], seed| Var::from_tensor(&uniform(dims, seed, -1.0, 1.0, DType::F32)?);
        let mut results = Vec::new();
        for dims in [[rows, 24, 6, 8], [rows, 300, 2, 1]] {
            let (xs, ws) = (variable(&dims, 1)?, variable(&[dims[1]], 2)?);
            let row = variable(&dims[1..], 3)?;
            let params = Params::new(0);
            let norm = BatchNorm2d::new(&params.root()).activation(Activation::Relu);
            let ys = norm.forward(&xs)?;
            let config = BatchNormConfig::default();
            let ys = batch_norm2d(&ys, Some(&ws), Some(&ws), None, config)?;
            let ys = layer_norm(&ys, &dims[1..], Some(&row), Some(&row), 1e-5)?;
            let ys = rms_norm(&ys, &dims[3..], None, 1e-5)?;
            let grads = ys.sqr()?.sum_all()?.backward()?;
            results.push(flat(&ys)?);
            for var in [&xs, &ws, &row] {
                results.push(flat(grads.get(var).expect("every variable has a gradient"))?);
            }
            for buffer in params.buffers() {
                results.push(flat(&buffer.value())?);
            }
        }
        Ok(results)
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
    pool.install(step)
}

#[test]
fn norms_do_not_depend_on_the_number_of_threads_or_the_run() -> Result<()> {
    for rows in [2, 61] {
        let expected = run(rows, 1)?;
        for threads in [1, 2, 5] {
            assert!(run(rows, threads)? == expected, "{rows} rows, {threads} threads");
        }
    }
    Ok(())
}
