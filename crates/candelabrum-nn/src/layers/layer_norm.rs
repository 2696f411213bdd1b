//! Layer normalisation (Ba, Kiros and Hinton 2016) and RMS normalisation (Zhang and Sennrich 2019).

use candle_core::{DType, Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use crate::{Init, Param, Scope, ops};

/// `(.., R) -> (.., R)`: each row gets mean 0 and variance 1, then `weight` multiplies it and
/// `bias` is added.
///
/// A row is the last dimension, or the last few ([`Self::dims`]). The first input determines its
/// size. `weight` starts at one, `bias` at zero.
#[derive(Debug)]
pub struct LayerNorm {
    scope: Scope,
    dims: usize,
    weight: bool,
    bias: bool,
    eps: f64,
    state: OnceCell<LayerNormState>,
}

/// `(.., R) -> (.., R)`: each row gets mean square 1, then `weight` multiplies it.
///
/// A row is the last dimension, or the last few ([`Self::dims`]). The first input determines its
/// size. `weight` starts at one.
#[derive(Debug)]
pub struct RmsNorm {
    scope: Scope,
    dims: usize,
    weight: bool,
    eps: Option<f64>,
    state: OnceCell<LayerNormState>,
}

#[derive(Debug)]
struct LayerNormState {
    row: Vec<usize>,
    weight: Option<Param>,
    bias: Option<Param>,
}

impl LayerNorm {
    /// PyTorch's defaults: eps 1e-5, weight and bias.
    pub fn new(scope: &Scope) -> Self {
        let state = OnceCell::new();
        Self { scope: scope.clone(), dims: 1, weight: true, bias: true, eps: 1e-5, state }
    }

    builder! { layer:
        /// Normalises over the last `dims` dimensions together.
        dims(dims: usize) => layer.dims = dims;
        /// The constant added to the variance.
        eps(eps: f64) => layer.eps = eps;
        /// Makes a layer without bias.
        no_bias() => layer.bias = false;
        /// Makes a layer without weight and bias.
        no_affine() => (layer.weight, layer.bias) = (false, false);
    }
}

impl RmsNorm {
    /// PyTorch's defaults: a weight, and the epsilon of the input's type (1.2e-7 in f32).
    pub fn new(scope: &Scope) -> Self {
        Self { scope: scope.clone(), dims: 1, weight: true, eps: None, state: OnceCell::new() }
    }

    builder! { layer:
        /// Normalises over the last `dims` dimensions together.
        dims(dims: usize) => layer.dims = dims;
        /// The constant added to the mean square.
        eps(eps: f64) => layer.eps = Some(eps);
        /// Makes a layer without weight.
        no_affine() => layer.weight = false;
    }
}

/// The sizes of the last `dims` dimensions.
fn row(scope: &Scope, xs: &Tensor, dims: usize) -> Result<Vec<usize>> {
    match xs.rank().checked_sub(dims) {
        Some(start) if dims > 0 => Ok(xs.dims()[start..].to_vec()),
        _ => bail!(
            "layer `{}` normalises over the last {dims} dimensions, the input is {:?}",
            scope.path(),
            xs.shape()
        ),
    }
}

impl LayerNormState {
    fn new(scope: &Scope, row: Vec<usize>, weight: bool, bias: bool) -> Result<Self> {
        let create = |wanted: bool, name: &str, value: f64| {
            wanted.then(|| scope.param(name, &row[..], Init::Const(value))).transpose()
        };
        let (weight, bias) = (create(weight, "weight", 1.0)?, create(bias, "bias", 0.0)?);
        Ok(Self { row, weight, bias })
    }

    fn check(&self, scope: &Scope, xs: &Tensor) -> Result<()> {
        if xs.dims().ends_with(&self.row) {
            return Ok(());
        }
        bail!(
            "layer `{}` takes rows of {:?}, the input is {:?}",
            scope.path(),
            self.row,
            xs.shape()
        )
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let state = self.state.get_or_try_init(|| {
            LayerNormState::new(
                &self.scope,
                row(&self.scope, xs, self.dims)?,
                self.weight,
                self.bias,
            )
        })?;
        state.check(&self.scope, xs)?;
        let weight = state.weight.as_ref().map(Param::tensor);
        let bias = state.bias.as_ref().map(Param::tensor);
        let ys = ops::layer_norm(xs, &state.row, weight, bias, self.eps)?;
        self.scope.trace("LayerNorm", &ys);
        Ok(ys)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let state = self.state.get_or_try_init(|| {
            LayerNormState::new(&self.scope, row(&self.scope, xs, self.dims)?, self.weight, false)
        })?;
        state.check(&self.scope, xs)?;
        let eps = self.eps.unwrap_or(match xs.dtype() {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
        let ys = ops::rms_norm(xs, &state.row, state.weight.as_ref().map(Param::tensor), eps)?;
        self.scope.trace("RmsNorm", &ys);
        Ok(ys)
    }
}
