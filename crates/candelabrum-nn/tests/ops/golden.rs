//! Forward and backward against PyTorch, in f64 and f32.

use std::collections::{BTreeMap, BTreeSet};

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{
    Conv2dConfig, Pool2dConfig, conv2d, linear, max_pool2d, relu, softmax_cross_entropy,
    with_composites,
};
use candelabrum_testkit::{assert_close, golden};
use candle_core::{DType, Result, Tensor, Var};

use crate::golden_path;

/// One case of a golden file: its tensors by name.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Case {
    pub(crate) fn config(&self) -> Result<Vec<usize>> {
        let config = self.tensors["config"].to_vec1::<i64>()?;
        Ok(config.into_iter().map(|n| usize::try_from(n).expect("no size is negative")).collect())
    }
}

pub(crate) fn cases(file: &str) -> Vec<Case> {
    let tensors = golden(golden_path(file));
    let split = |name: &str| {
        let (case, tensor) = name.split_once('.').expect("names are `case.tensor`");
        (case.to_owned(), tensor.to_owned())
    };
    let names: BTreeSet<String> = tensors.keys().map(|name| split(name).0).collect();
    let case = |name: String| {
        let own = tensors.iter().filter(|(key, _)| split(key).0 == name);
        let own = own.map(|(key, tensor)| (split(key).1, tensor.clone())).collect();
        Case { name, tensors: own }
    };
    names.into_iter().map(case).collect()
}

/// [`check_within`] the rounding of a few hundred additions.
pub(crate) fn check(
    case: &Case,
    inputs: &[&str],
    f: impl Fn(&BTreeMap<&str, Tensor>) -> Result<Tensor>,
) -> Result<()> {
    check_within(1e-12, case, inputs, f)
}

/// Runs `f` on variables with the values of those `inputs` that the case has. Compares the result
/// and all gradients, by kernel and by composite, in f64 within `tolerance` and in f32.
#[expect(clippy::print_stdout, reason = "names the case when a comparison fails")]
pub(crate) fn check_within(
    tolerance: f64,
    case: &Case,
    inputs: &[&str],
    f: impl Fn(&BTreeMap<&str, Tensor>) -> Result<Tensor>,
) -> Result<()> {
    let types = [(DType::F64, tolerance), (DType::F32, 4e-6)];
    for ((dtype, tolerance), composite) in types.map(|t| [(t, false), (t, true)]).concat() {
        println!("{} in {dtype:?}, composite: {composite}", case.name);
        let mut vars = BTreeMap::new();
        for &name in inputs.iter().filter(|name| case.tensors.contains_key(**name)) {
            vars.insert(name, Var::from_tensor(&case.tensors[name].to_dtype(dtype)?)?);
        }
        let tensors = vars.iter().map(|(name, var)| (*name, var.as_tensor().clone())).collect();
        let ys = if composite { with_composites(|| f(&tensors)) } else { f(&tensors) }?;
        assert_eq!(ys.dtype(), dtype);
        assert_close(&ys, &case.tensors["ys"], tolerance, tolerance);
        let dys = case.tensors["dys"].to_dtype(dtype)?;
        let grads = (&ys * &dys)?.sum_all()?.backward()?;
        for (name, var) in &vars {
            println!("gradient of {name}");
            let grad = grads.get(var).expect("every input has a gradient");
            assert_close(grad, &case.tensors[&format!("d{name}")], tolerance, tolerance);
        }
    }
    Ok(())
}

pub(crate) fn activation(flag: usize) -> Option<Activation> {
    (flag == 1).then_some(Activation::Relu)
}

#[test]
fn conv2d_is_pytorchs() -> Result<()> {
    for case in cases("conv2d.safetensors") {
        let [sy, sx, py, px, dy, dx, groups, relu] = case.config()?[..] else {
            panic!("eight numbers")
        };
        let (stride, padding, dilation) = ((sy, sx), (py, px), (dy, dx));
        let config = Conv2dConfig { stride, padding, dilation, groups };
        check(&case, &["xs", "weight", "bias"], |t| {
            conv2d(&t["xs"], &t["weight"], t.get("bias"), config, activation(relu))
        })?;
    }
    Ok(())
}

#[test]
fn linear_is_pytorchs() -> Result<()> {
    for case in cases("linear.safetensors") {
        let [relu] = case.config()?[..] else { panic!("one number") };
        check(&case, &["xs", "weight", "bias"], |t| {
            linear(&t["xs"], &t["weight"], t.get("bias"), activation(relu))
        })?;
    }
    Ok(())
}

#[test]
fn max_pool2d_is_pytorchs_with_ties_overlaps_and_nan() -> Result<()> {
    for case in cases("max_pool2d.safetensors") {
        let [ky, kx, sy, sx, py, px] = case.config()?[..] else { panic!("six numbers") };
        let config = Pool2dConfig { kernel: (ky, kx), stride: (sy, sx), padding: (py, px) };
        check(&case, &["xs"], |t| max_pool2d(&t["xs"], config))?;
    }
    Ok(())
}

#[test]
fn relu_is_pytorchs_at_zero_and_nan() -> Result<()> {
    for case in cases("relu.safetensors") {
        check(&case, &["xs"], |t| relu(&t["xs"]))?;
    }
    Ok(())
}

#[test]
fn softmax_cross_entropy_is_pytorchs() -> Result<()> {
    for case in cases("cross_entropy.safetensors") {
        let targets = &case.tensors["targets"];
        check(&case, &["logits"], |t| {
            let logits = &t["logits"];
            let targets = match targets.dtype() {
                DType::I64 => targets.clone(),
                _ => targets.to_dtype(logits.dtype())?,
            };
            softmax_cross_entropy(logits, &targets)
        })?;
    }
    Ok(())
}
