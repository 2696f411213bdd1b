//! `candle_nn::ops` with gradients for all of its functions but [`sdpa`], which is made for inference on Metal, and
//! refuses to be trained.

use candelabrum_nn::ops as kernels;
use candle_core::shape::Dim;
use candle_core::{D, Result, Tensor};

use crate::attention::refuse_gradients;

pub use candle_nn::ops::*;

/// `exp(xs)` divided by its sum along `dim`.
///
/// # Errors
/// A dimension that `xs` does not have.
pub fn softmax<Along: Dim>(xs: &Tensor, dim: Along) -> Result<Tensor> {
    match dim.to_index(xs.shape(), "softmax")? {
        last if last + 1 == xs.rank() => kernels::softmax(xs),
        dim => candle_nn::ops::softmax(xs, dim),
    }
}

/// The logarithm of [`softmax`].
///
/// # Errors
/// A dimension that `xs` does not have.
pub fn log_softmax<Along: Dim>(xs: &Tensor, dim: Along) -> Result<Tensor> {
    match dim.to_index(xs.shape(), "log-softmax")? {
        last if last + 1 == xs.rank() => kernels::log_softmax(xs),
        dim => candle_nn::ops::log_softmax(xs, dim),
    }
}

/// [`softmax`] along the last dimension.
///
/// # Errors
/// A scalar.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    kernels::softmax(xs)
}

/// `xs sigmoid(xs)`.
///
/// # Errors
/// A dtype that is no float.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    kernels::silu(xs)
}

/// `1 / (1 + exp(-xs))`.
///
/// # Errors
/// A dtype that is no float.
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    kernels::sigmoid(xs)
}

/// Brings the rows of the last dimension to a mean square of 1, and multiplies them by `alpha`.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    kernels::rms_norm(xs, &[xs.dim(D::Minus1)?], Some(alpha), f64::from(eps))
}

/// Brings the rows of the last dimension to mean 0 and variance 1, multiplies them by `alpha` and adds `beta`.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    let row = [xs.dim(D::Minus1)?];
    kernels::layer_norm(xs, &row, Some(alpha), Some(beta), f64::from(eps))
}

/// Attention, without gradients.
///
/// # Errors
/// Tensors whose gradients are computed, and those of `candle_nn`.
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    refuse_gradients("ops::sdpa", [q, k, v])?;
    candle_nn::ops::sdpa(q, k, v, mask, do_causal, scale, softcapping)
}
