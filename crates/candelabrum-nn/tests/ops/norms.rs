//! Batch, layer and RMS normalisation: gradients, PyTorch, threads, running statistics, errors.

use candelabrum_nn::layers::{BatchNorm2d, LayerNorm, RmsNorm};
use candelabrum_nn::ops::{BatchNormConfig, batch_norm2d, layer_norm, rms_norm};
use candelabrum_nn::{Activation, FromModule, Model, Params};
use candelabrum_testkit::{assert_close, golden, uniform};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::behaviour::message;
use crate::table::some_running;
use crate::{golden_path, random};

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
    let statistics = some_running(&random((1, 4), 1)?)?;
    assert_eq!(message(batch_norm2d(&xs, None, None, Some(&statistics), config)), expected);
    let xs = xs.to_dtype(DType::U32)?;
    let expected = "unsupported dtype U32 for op batch_norm2d";
    assert_eq!(message(batch_norm2d(&xs, None, None, None, config)), expected);
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
