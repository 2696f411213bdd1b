//! `candle_nn::layer_norm` with gradients. candle's own layers have none for tensors that are contiguous.

use candelabrum_nn::ops;
use candle_core::{D, Module, Result, Tensor};
use candle_nn::VarBuilder;

pub use candle_nn::layer_norm::*;

/// Brings the rows of the last dimension to mean 0 and variance 1, or to a mean square of 1, and scales them.
#[derive(Clone, Debug)]
pub struct LayerNorm(candle_nn::LayerNorm);

impl LayerNorm {
    /// The layer of a `weight` and a `bias`, each of the length of a row.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new(weight, bias, eps))
    }

    /// The layer without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new_no_bias(weight, eps))
    }

    /// The layer that keeps the mean.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::rms_norm(weight, eps))
    }

    /// The factors of a row's numbers.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to a row's numbers.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// What is added to the variance.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Whether the mean is subtracted.
    pub fn remove_mean(&self) -> bool {
        self.0.remove_mean()
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let row = [xs.dim(D::Minus1)?];
        // candle's layer takes every weight and bias that can be broadcast.
        let is_row = |tensor: &&Tensor| tensor.dims() == row;
        let weight = Some(self.weight()).filter(is_row);
        let fuses_bias = self.remove_mean() && weight.is_some();
        let bias = self.bias().filter(is_row).filter(|_| fuses_bias);
        let ys = match self.remove_mean() {
            true => ops::layer_norm(xs, &row, weight, bias, self.eps())?,
            false => ops::rms_norm(xs, &row, weight, self.eps())?,
        };
        let ys = if weight.is_none() { ys.broadcast_mul(self.weight())? } else { ys };
        match self.bias() {
            Some(left) if bias.is_none() => ys.broadcast_add(left),
            _ => Ok(ys),
        }
    }
}

/// A layer with the parameters `weight` and, unless the configuration turns it off, `bias`. It also reads a file that
/// names them `gamma` and `beta`.
///
/// # Errors
/// Those of the builder.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder<'_>,
) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(LayerNorm)
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    layer_norm(size, LayerNormConfig { eps, remove_mean: true, affine: false }, vb)
}

/// Brings the rows of the last dimension to a mean square of 1, and scales them.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// The layer of a `weight` of the length of a row.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same layer as a [`LayerNorm`].
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The factors of a row's numbers.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as [`Module::forward`], which has a gradient here, too.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    let config = LayerNormConfig { eps, remove_mean: false, affine: false };
    Ok(RmsNorm(layer_norm(size, config, vb)?))
}
