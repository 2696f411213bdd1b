//! `candle_nn::linear` with the product and the bias in one operation.

use candelabrum_nn::ops;
use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

/// `xs weight^T + bias`.
#[derive(Clone, Debug)]
pub struct Linear(candle_nn::Linear);

impl Linear {
    /// The layer of a `weight` (out, in) and a `bias` (out).
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self(candle_nn::Linear::new(weight, bias))
    }

    /// The weight, of shape (out, in).
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The bias, of shape (out).
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl Module for Linear {
    /// (.., in) -> (.., out)
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        // candle's layer takes every bias that can be broadcast.
        if self.bias().is_some_and(|bias| bias.rank() != 1) {
            return self.0.forward(xs);
        }
        ops::linear(xs, self.weight(), self.bias(), None)
    }
}

/// A layer with the parameters `weight` and `bias`.
///
/// # Errors
/// Those of the builder.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, true, vb)
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, false, vb)
}

/// [`linear`] or [`linear_no_bias`].
///
/// # Errors
/// Those of the builder.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear)
}
