//! A comparison of gradients with central differences.

use candle_core::{DType, Device, Result, Tensor, Var};

use crate::close::{position, values};
use crate::random::uniform;

/// Compares candle's backward through `f` with central differences, for every element of every
/// input: `|numeric - backward| <= tol * (1 + |numeric|)`.
///
/// The result of `f` may have any shape; it is reduced to `sum(w * f(inputs))` with fixed random
/// weights `w`, so that errors of elements do not cancel. `eps` around 1e-5 and `tol` around
/// 1e-7 suit smooth functions; keep piecewise ones (relu, max) away from their kinks by more than
/// `eps`.
///
/// # Errors
///
/// The errors of `f` and of candle.
///
/// # Panics
///
/// If an input is not f64, if an input has no gradient, or with the worst input and element.
#[track_caller]
pub fn gradcheck(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    eps: f64,
    tol: f64,
) -> Result<()> {
    for (index, input) in inputs.iter().enumerate() {
        assert_eq!(input.dtype(), DType::F64, "gradcheck wants f64, input {index}");
    }
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let output = f(&tensors)?;
    let weights = uniform(output.shape(), 0xC0FFEE, 0.5, 1.5, DType::F64)?;
    let grads = (output * &weights)?.sum_all()?.backward()?;
    let objective = |inputs: &[Tensor]| -> Result<f64> {
        (f(inputs)? * &weights)?.sum_all()?.to_scalar::<f64>()
    };

    // (excess over the tolerance, message) of the worst element so far.
    let mut worst: Option<(f64, String)> = None;
    for (index, input) in inputs.iter().enumerate() {
        let Some(grad) = grads.get(&vars[index]) else {
            panic!("gradcheck: input {index} got no gradient");
        };
        assert_eq!(grad.dims(), input.dims(), "gradcheck: gradient shape of input {index}");
        let grad = values(grad);
        let data = values(input);
        let mut moved = inputs.to_vec();
        for (element, &backward) in grad.iter().enumerate() {
            let mut at = |value: f64| -> Result<f64> {
                let mut data = data.clone();
                data[element] = value;
                moved[index] = Tensor::from_vec(data, input.shape(), &Device::Cpu)?;
                objective(&moved)
            };
            let numeric = (at(data[element] + eps)? - at(data[element] - eps)?) / (2.0 * eps);
            let excess = (numeric - backward).abs() - tol * (1.0 + numeric.abs());
            let excess = if excess.is_nan() { f64::INFINITY } else { excess };
            if excess > 0.0 && worst.as_ref().is_none_or(|(most, _)| excess > *most) {
                let position = position(element, input.dims());
                let message = format!(
                    "input {index} at {position:?}: numeric {numeric}, backward {backward}"
                );
                worst = Some((excess, message));
            }
        }
    }
    if let Some((_, message)) = worst {
        panic!("gradcheck: the worst element is {message}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_true_gradient_passes() -> Result<()> {
        let x = uniform((2, 3), 1, -1.0, 1.0, DType::F64)?;
        let y = uniform((3, 2), 2, -1.0, 1.0, DType::F64)?;
        gradcheck(|t| t[0].matmul(&t[1])?.sqr(), &[x, y], 1e-5, 1e-7)
    }

    #[test]
    fn a_false_gradient_is_found_and_named() -> Result<()> {
        // candle's max-pool backward divides the gradient by the size of the window.
        let x = uniform((1, 1, 2, 2), 1, -1.0, 1.0, DType::F64)?;
        let outcome =
            catch_unwind(AssertUnwindSafe(|| gradcheck(|t| t[0].max_pool2d(2), &[x], 1e-5, 1e-7)));
        let panic = outcome.expect_err("the check must fail");
        let message = panic.downcast::<String>().expect("a formatted message");
        assert!(message.contains("worst element is input 0 at [0, 0,"), "{message}");
        Ok(())
    }
}
