//! `relu(x) = max(x, 0)`; the gradient at exactly 0 is 0, as in PyTorch (candle passes it).

use candle_core::{Result, Tensor};

use super::elementwise::{activation_backward, relu as rectify};
use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};
use crate::activation::Activation;

/// `max(x, 0)`, element by element; NaN stays NaN.
///
/// # Errors
///
/// If `xs` is neither f32 nor f64.
pub fn relu(xs: &Tensor) -> Result<Tensor> {
    fused::run(Relu, xs.shape(), &[Some(xs)])
}

struct Relu;

impl Fused for Relu {
    const NAME: &'static str = "relu";

    fn reads(&self) -> Reads {
        Reads::NOTHING.and_output(true)
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        for (y, &x) in ys.iter_mut().zip(inputs[0]) {
            *y = rectify(x);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        if let Some(dxs) = pass.grads.take(0) {
            dxs.copy_from_slice(pass.dys);
            activation_backward(dxs, pass.ys, Activation::Relu);
        }
        Ok(())
    }
}
