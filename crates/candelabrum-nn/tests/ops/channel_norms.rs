//! Normalisations by groups of channels, by images, by neighbouring channels, and of sequences by batches.

use candelabrum_nn::layers::{BatchNorm1d, GroupNorm, InstanceNorm2d, LocalResponseNorm};
use candelabrum_nn::ops::{LocalResponseNormConfig, group_norm, local_response_norm};
use candelabrum_nn::{Activation, Params};
use candelabrum_testkit::{assert_close, golden, gradcheck, uniform};
use candle_core::{DType, Device, Module, Result, Tensor};

use crate::behaviour::message;
use crate::golden::{cases, check_within};
use crate::{golden_path, random};

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

/// Shapes and numbers of groups.
pub(crate) const GROUPS: [(&[usize], usize); 7] = [
    (&[3, 4, 3, 5], 2),
    (&[1, 3, 2, 3], 3),
    (&[2, 6, 7, 6], 2),
    (&[4, 6], 3),
    (&[2, 5, 9], 1),
    (&[2, 2, 1, 1], 1),
    (&[2, 4, 3, 2, 2], 4),
];

/// Windows of an odd and an even number of channels, wider than the input, and other powers.
pub(crate) fn responses() -> [LocalResponseNormConfig; 6] {
    let config = LocalResponseNormConfig::new(3);
    [
        LocalResponseNormConfig { alpha: 1.5, ..config },
        LocalResponseNormConfig { size: 4, alpha: 2.0, k: 0.5, ..config },
        LocalResponseNormConfig { size: 11, alpha: 0.7, ..config },
        LocalResponseNormConfig { size: 1, alpha: 1.0, beta: 0.5, k: 2.0 },
        LocalResponseNormConfig { beta: -1.25, alpha: 1.0, ..config },
        LocalResponseNormConfig::of_the_paper(),
    ]
}

#[test]
fn groups_are_pytorchs() -> Result<()> {
    for case in cases("group_norm.safetensors") {
        let [groups] = case.config()?[..] else { panic!("one number") };
        let eps = case.tensors["eps"].to_scalar::<f64>()?;
        let tolerance = if case.name == "large_mean" { 1e-11 } else { 1e-12 };
        check_within(tolerance, &case, &["xs", "weight", "bias"], |t| {
            group_norm(&t["xs"], groups, t.get("weight"), t.get("bias"), eps)
        })?;
    }
    Ok(())
}

#[test]
fn responses_are_pytorchs() -> Result<()> {
    for case in cases("local_response_norm.safetensors") {
        let [size] = case.config()?[..] else { panic!("one number") };
        let [alpha, beta, k] = case.tensors["constants"].to_vec1::<f64>()?[..] else {
            panic!("three numbers")
        };
        let config = LocalResponseNormConfig { size, alpha, beta, k };
        check_within(1e-12, &case, &["xs"], |t| local_response_norm(&t["xs"], config))?;
    }
    Ok(())
}

#[test]
fn layers_of_groups_and_images_create_their_parameters() -> Result<()> {
    let params = Params::new(0);
    let root = params.root();
    let xs = uniform((2, 6, 4, 3), 1, -1.0, 3.0, DType::F32)?;
    let layers: [Box<dyn Module>; 4] = [
        Box::new(GroupNorm::new(&root.pp("a"), 3)),
        Box::new(GroupNorm::new(&root.pp("b"), 2).no_affine().eps(1e-3)),
        Box::new(InstanceNorm2d::new(&root.pp("c"))),
        Box::new(InstanceNorm2d::new(&root.pp("d")).affine().eps(1e-3)),
    ];
    for (layer, groups) in layers.iter().zip([3, 2, 6, 6]) {
        let ys = layer.forward(&xs)?.reshape((2, groups, ()))?;
        let (mean, square) = (ys.mean(2)?, ys.sqr()?.mean(2)?);
        assert_close(&mean, &mean.zeros_like()?, 0.0, 1e-6);
        assert_close(&square, &square.ones_like()?, 2e-3, 0.0);
    }
    let list = params.list();
    let names: Vec<(&str, &[usize])> = list.iter().map(|p| (p.name(), p.var().dims())).collect();
    let expected: [(&str, &[usize]); 4] =
        [("a.weight", &[6]), ("a.bias", &[6]), ("d.weight", &[6]), ("d.bias", &[6])];
    assert_eq!(names, expected);
    let three = xs.narrow(1, 0, 3)?;
    assert_eq!(message(layers[0].forward(&three)), "layer `a` takes 6 channels, the input has 3");
    let error = message(layers[1].forward(&three));
    assert_eq!(error, "layer `b`: 3 channels do not divide into 2 groups");
    let error = message(layers[2].forward(&xs.narrow(2, 0, 1)?.narrow(3, 0, 1)?));
    assert!(error.starts_with("layer `c`: more than one pixel per channel is needed"), "{error}");
    let error = message(layers[3].forward(&xs.get(0)?));
    assert_eq!(error, "layer `d`: input of shape [6, 4, 3], expected (N, C, H, W)");
    let config = LocalResponseNormConfig::of_the_paper();
    let ys = LocalResponseNorm::with(config).forward(&xs)?;
    assert_close(&ys, &local_response_norm(&xs, config)?, 0.0, 0.0);
    Ok(())
}

#[test]
fn a_batch_norm_of_sequences_is_pytorchs() -> Result<()> {
    let expected = golden(golden_path("batch_norm1d_layer.safetensors"));
    let params = Params::new(0);
    let norm = BatchNorm1d::new(&params.root().pp("norm"));
    let batch = |step: u64| uniform((4, 3, 5), 11700 + step, -(step as f64), 2.0, DType::F32);
    let mut last = None;
    for step in 1..4 {
        last = Some(norm.forward(&batch(step)?)?);
    }
    assert_close(&last.expect("three steps"), &expected["ys"], 1e-6, 1e-6);
    params.eval();
    assert_close(&norm.forward(&batch(1)?)?, &expected["eval_ys"], 1e-6, 1e-6);
    for buffer in params.buffers() {
        let name = buffer.name().strip_prefix("norm.").expect("the layer's scope").to_owned();
        assert_close(&buffer.value(), &expected[&name], 1e-6, 1e-7);
    }
    assert_eq!(params.buffers().len(), 2);
    Ok(())
}

#[test]
fn a_batch_norm_of_sequences_is_that_of_their_positions() -> Result<()> {
    let xs = random((3, 4, 5), 1)?;
    let f = |t: &[Tensor], sequences: bool| -> Result<Tensor> {
        let params = Params::on(0, DType::F64, &Device::Cpu);
        let norm = BatchNorm1d::new(&params.root()).activation(Activation::Relu).eps(1e-3);
        if sequences {
            return norm.forward(&t[0]);
        }
        let rows = t[0].transpose(1, 2)?.reshape((15, 4))?;
        norm.forward(&rows)?.reshape((3, 5, 4))?.transpose(1, 2)
    };
    gradcheck(|t| f(t, true), std::slice::from_ref(&xs), EPS, TOL)?;
    let xs = [xs];
    assert_close(&f(&xs, true)?, &f(&xs, false)?, 1e-12, 1e-12);
    let norm = BatchNorm1d::new(&Params::new(0).root().pp("norm"));
    let error = message(norm.forward(&random((1, 2, 3, 4), 1)?));
    assert_eq!(error, "layer `norm`: input of shape [1, 2, 3, 4], expected (N, C) or (N, C, L)");
    Ok(())
}

#[test]
fn norms_of_channels_refuse_what_does_not_fit() -> Result<()> {
    let xs = random((2, 4, 3), 1)?;
    let error = message(group_norm(&xs, 3, None, None, 1e-5));
    assert_eq!(error, "group_norm: 4 channels do not divide into 3 groups");
    let error = message(group_norm(&xs, 2, Some(&random(3, 2)?), None, 1e-5));
    assert_eq!(error, "group_norm: weight of shape [3] for 4 channels");
    assert!(message(group_norm(&xs, 2, None, None, f64::NAN)).contains("eps NaN"));
    let error = message(group_norm(&xs.get(0)?.get(0)?, 1, None, None, 1e-5));
    assert_eq!(error, "group_norm: input of shape [3], expected (N, C, ..)");
    let none = LocalResponseNormConfig::new(0);
    assert!(message(local_response_norm(&xs, none)).contains("size and k must be positive"));
    let zero = LocalResponseNormConfig { k: 0.0, ..LocalResponseNormConfig::new(3) };
    assert!(message(local_response_norm(&xs, zero)).contains("size and k must be positive"));
    Ok(())
}
