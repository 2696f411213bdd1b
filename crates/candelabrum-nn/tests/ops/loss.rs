//! Softmax, and cross entropy with label smoothing and ignored rows.

use candelabrum_nn::LossWeight;
use candelabrum_nn::layers::SoftMaxCrossEntropy;
use candelabrum_nn::ops::{
    CrossEntropyConfig, linear_cross_entropy, log_softmax, softmax, softmax_cross_entropy,
    softmax_cross_entropy_with, with_composites,
};
use candelabrum_testkit::{integers, uniform};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

#[test]
fn softmax_and_its_logarithm_are_pytorchs() -> Result<()> {
    for case in cases("softmax.safetensors") {
        check(&case, &["xs"], |t| softmax(&t["xs"]))?;
    }
    for case in cases("log_softmax.safetensors") {
        check(&case, &["xs"], |t| log_softmax(&t["xs"]))?;
    }
    Ok(())
}

#[test]
fn softmax_of_nothing_but_minus_infinity_is_nan_and_a_scalar_is_refused() -> Result<()> {
    let xs = Tensor::new(&[f64::NEG_INFINITY; 2], &Device::Cpu)?;
    assert!(softmax(&xs)?.to_vec1::<f64>()?.iter().all(|y| y.is_nan()));
    assert_eq!(softmax(&random((3, 0), 1)?)?.dims(), [3, 0]);
    assert_eq!(softmax(&random((0, 3), 1)?)?.dims(), [0, 3]);
    assert!(softmax(&random((), 1)?).is_err());
    let ints = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    assert_eq!(message(log_softmax(&ints)), "unsupported dtype U32 for op log_softmax");
    Ok(())
}

#[test]
fn cross_entropy_with_options_is_pytorchs() -> Result<()> {
    for case in cases("cross_entropy_options.safetensors") {
        let targets = &case.tensors["targets"];
        let smoothing = case.tensors["smoothing"].to_scalar::<f64>()?;
        let mut loss = SoftMaxCrossEntropy::new().label_smoothing(smoothing as f32);
        if let Some(ignore) = case.tensors.get("ignore") {
            loss = loss.ignore_index(ignore.to_scalar::<i64>()?);
        }
        check(&case, &["logits"], |t| {
            let logits = &t["logits"];
            let targets = match targets.dtype() {
                DType::I64 => targets.clone(),
                _ => targets.to_dtype(logits.dtype())?,
            };
            loss.forward(logits, &targets)
        })?;
    }
    Ok(())
}

#[test]
fn without_options_the_cross_entropy_is_the_plain_one() -> Result<()> {
    let (logits, targets) = (random((6, 4), 1)?, integers(6, 2, 4)?);
    let plain = softmax_cross_entropy(&logits, &targets)?.to_scalar::<f64>()?;
    let with = SoftMaxCrossEntropy::default().forward(&logits, &targets)?.to_scalar::<f64>()?;
    assert_eq!(plain, with);
    Ok(())
}

#[test]
fn the_loss_of_sequences_is_that_of_all_their_tokens() -> Result<()> {
    let logits = random((2, 3, 5), 1)?;
    let labels = Tensor::new(&[[0u32, 4, 2], [2, 1, 3]], &Device::Cpu)?;
    let config = CrossEntropyConfig { label_smoothing: 0.1, ignore_index: Some(2) };
    let loss = |logits: &Tensor, targets: &Tensor| -> Result<f64> {
        softmax_cross_entropy_with(logits, targets, config)?.to_scalar()
    };
    let flat = loss(&logits.flatten_to(1)?, &labels.flatten_all()?)?;
    assert_eq!(loss(&logits, &labels)?.to_bits(), flat.to_bits());
    // The row of an error is the number of the token.
    let labels = Tensor::new(&[[0u32, 4, 2], [2, 5, 3]], &Device::Cpu)?;
    let error = message(softmax_cross_entropy(&logits, &labels));
    assert_eq!(error, "softmax_cross_entropy: class 5 in row 4, but there are 5 classes");
    // One row without a dimension for its number.
    let row = logits.narrow(0, 0, 1)?.narrow(1, 0, 1)?;
    let one = loss(&row.flatten_all()?, &Tensor::new(1u32, &Device::Cpu)?)?;
    let plain = loss(&row.flatten_to(1)?, &Tensor::new(&[1u32], &Device::Cpu)?)?;
    assert_eq!(one.to_bits(), plain.to_bits());
    Ok(())
}

/// Sums over many classes must not lose digits. The reference is the same operation in f64.
#[test]
fn many_classes_cost_no_digits() -> Result<()> {
    for classes in [1_000, 50_000, 250_000] {
        let logits = uniform((2, classes), 1, -3.0, 3.0, DType::F64)?.to_dtype(DType::F32)?;
        let even = Tensor::full(1.0 / classes as f64, (2, classes), &Device::Cpu)?;
        let labels = integers(2, 2, classes as u32)?;
        for (targets, label_smoothing) in [(&even, 0.0), (&even, 0.1), (&labels, 1.0)] {
            let config = CrossEntropyConfig { label_smoothing, ignore_index: None };
            let run = |dtype: DType| -> Result<(f64, Vec<f64>)> {
                let logits = Var::from_tensor(&logits.to_dtype(dtype)?)?;
                let targets = match targets.dtype() {
                    DType::F64 => targets.to_dtype(DType::F32)?.to_dtype(dtype)?,
                    _ => targets.clone(),
                };
                let loss = softmax_cross_entropy_with(&logits, &targets, config)?;
                let grads = loss.backward()?;
                let grad = grads.get(&logits).expect("the logits have a gradient");
                let grad = grad.get(0)?.to_dtype(DType::F64)?.to_vec1()?;
                Ok((loss.to_dtype(DType::F64)?.to_scalar()?, grad))
            };
            let what = format!("{classes} classes, smoothing {label_smoothing}");
            let ((loss, grad), (exact_loss, exact)) = (run(DType::F32)?, run(DType::F64)?);
            let error = (loss / exact_loss - 1.0).abs();
            assert!(error < 2e-7, "the loss of {what}: {loss}, exact {exact_loss}");
            // The softmax and the target both add up to 1, so the gradient of a row adds up to 0.
            let (total, size) =
                (grad.iter().sum::<f64>(), exact.iter().map(|x| x.abs()).sum::<f64>());
            assert!(total.abs() < 1e-6 * size, "the gradient of {what} adds up to {total:e}");
        }
    }
    Ok(())
}

#[test]
fn an_ignored_row_may_hold_anything() -> Result<()> {
    let logits = Tensor::new(&[[f64::NAN, 1.0], [0.0, 0.0]], &Device::Cpu)?;
    let logits = Var::from_tensor(&logits)?;
    // 7 is no class but the ignored index.
    let targets = Tensor::new(&[7u32, 1], &Device::Cpu)?;
    let config = CrossEntropyConfig { ignore_index: Some(7), ..Default::default() };
    let loss = softmax_cross_entropy_with(&logits, &targets, config)?;
    assert!((loss.to_scalar::<f64>()? - 2f64.ln()).abs() < 1e-15);
    let grads = loss.backward()?;
    let grad = grads.get(&logits).expect("the logits have a gradient").to_vec2::<f64>()?;
    assert_eq!(grad, [[0.0, 0.0], [0.5, -0.5]]);
    Ok(())
}

#[test]
fn a_batch_of_ignored_rows_adds_nothing_to_a_mean_over_batches() -> Result<()> {
    let logits = Var::from_tensor(&random((3, 4), 1)?)?;
    let weight = Var::from_tensor(&random((4, 2), 2)?)?;
    let targets = Tensor::new(&[7u32, 7, 7], &Device::Cpu)?;
    let config = CrossEntropyConfig { ignore_index: Some(7), label_smoothing: 0.1 };
    let check = |loss: Tensor, var: &Var| -> Result<()> {
        assert_eq!(loss.to_scalar::<f64>()?, 0.0);
        let counted = LossWeight::from_loss(&loss).expect("a cross entropy has a weight");
        assert_eq!((counted.value()?, counted.ignored()), (0.0, Some(7)));
        let grads = loss.backward()?;
        let gradient = grads.get(var).expect("there is a gradient of zeros");
        assert_eq!(gradient.abs()?.sum_all()?.to_scalar::<f64>()?, 0.0);
        Ok(())
    };
    let cases = || -> Result<()> {
        check(softmax_cross_entropy_with(&logits, &targets, config)?, &logits)?;
        let xs = random((3, 2), 3)?;
        check(linear_cross_entropy(&xs, &weight, None, &targets, config)?, &weight)
    };
    cases()?;
    with_composites(cases)
}

#[test]
fn a_cross_entropy_weighs_the_rows_that_it_counts() -> Result<()> {
    let logits = random((2, 3, 4), 1)?;
    let targets = Tensor::new(&[[0i64, -1, 2], [-1, -1, 3]], &Device::Cpu)?;
    let config = CrossEntropyConfig { ignore_index: Some(-1), ..Default::default() };
    let weight = |loss: &Tensor| LossWeight::from_loss(loss).expect("a cross entropy has a weight");
    let some = weight(&softmax_cross_entropy_with(&logits, &targets, config)?);
    assert_eq!((some.value()?, some.varies()), (3.0, true));
    let all = weight(&softmax_cross_entropy(&logits, &targets.abs()?)?);
    assert_eq!((all.value()?, all.varies()), (6.0, false));
    let probabilities = weight(&softmax_cross_entropy(&logits, &random((2, 3, 4), 2)?)?);
    assert_eq!((probabilities.value()?, probabilities.varies()), (6.0, false));
    Ok(())
}

#[test]
fn one_class_is_refused_because_nothing_is_learned() -> Result<()> {
    let (logits, weight) = (random((3, 1), 1)?, random((1, 4), 2)?);
    let targets = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    let config = CrossEntropyConfig::default();
    for error in [
        message(softmax_cross_entropy(&logits, &targets)),
        message(softmax_cross_entropy(&logits, &logits)),
        message(linear_cross_entropy(&random((3, 4), 3)?, &weight, None, &targets, config)),
    ] {
        assert!(error.contains("one class") && error.contains("`mse_loss`"), "{error}");
    }
    Ok(())
}

#[test]
fn options_without_meaning_are_refused() -> Result<()> {
    let logits = random((3, 4), 1)?;
    let targets = Tensor::new(&[1i64, 1, 1], &Device::Cpu)?;
    let config =
        |label_smoothing, ignore_index| CrossEntropyConfig { label_smoothing, ignore_index };
    let run =
        |targets: &Tensor, config| message(softmax_cross_entropy_with(&logits, targets, config));
    for smoothing in [-0.1, 1.5, f32::NAN] {
        assert!(run(&targets, config(smoothing, None)).contains("outside of [0, 1]"));
    }
    let probabilities = random((3, 4), 2)?.abs()?;
    assert!(run(&probabilities, config(0.0, Some(1))).contains("no class to ignore"));
    let expected = "softmax_cross_entropy: class -100 in row 1, but there are 4 classes";
    let targets = Tensor::new(&[1i64, -100, -1], &Device::Cpu)?;
    assert_eq!(run(&targets, config(0.0, Some(-1))), expected);
    Ok(())
}
