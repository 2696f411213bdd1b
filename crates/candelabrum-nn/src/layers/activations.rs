//! Activations as separate layers. [`Conv2d`](super::Conv2d) and [`Linear`](super::Linear) can fuse
//! each of them.

use candle_core::{Module, Result, Tensor};

use crate::ops;

/// `x Phi(x)`, exact by the error function, for any shape: [`ops::gelu`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Gelu;

impl Module for Gelu {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::gelu(xs)
    }
}

/// [`Gelu`] approximated by tanh, for any shape: [`ops::gelu_tanh`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GeluTanh;

impl Module for GeluTanh {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::gelu_tanh(xs)
    }
}

/// `x sigmoid(x)`, for any shape: [`ops::silu`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Silu;

impl Module for Silu {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::silu(xs)
    }
}

/// `1 / (1 + e^-x)`, for any shape: [`ops::sigmoid`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Sigmoid;

impl Module for Sigmoid {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::sigmoid(xs)
    }
}

/// The hyperbolic tangent, for any shape: [`ops::tanh`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Tanh;

impl Module for Tanh {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::tanh(xs)
    }
}
