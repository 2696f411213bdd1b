//! Batch normalisation (Ioffe and Szegedy, ICML 2015).

use std::sync::Arc;

use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use super::conv2d::{Conv2d, ConvCall};
use super::{check_features, described};
use crate::ops::{self, BatchNorm, BatchNormConfig, RunningStatistics};
use crate::{Activation, Init, Param, Scope, StatisticsExchange};

/// Normalises `(N, C, H, W)` or `(N, C)` per channel to mean 0 and variance 1, then multiplies by
/// `weight` and adds `bias`.
///
/// In training the layer uses the statistics of the batch and moves the running statistics towards
/// them. In evaluation it uses the running statistics, the buffers `running_mean` and
/// `running_var`. The first input determines the number of channels. `weight` starts at one, `bias`
/// at zero.
///
/// Each data-parallel replica normalises by its own part of the batch and has its own running
/// statistics, unless the replicas exchange statistics. To exchange them, use
/// [`synchronized`](Self::synchronized) for this layer or
/// [`Params::set_statistics_exchange`](crate::Params::set_statistics_exchange) for all layers of a
/// store.
#[derive(Debug)]
pub struct BatchNorm2d {
    scope: Scope,
    affine: bool,
    momentum: f64,
    eps: f64,
    activation: Option<Activation>,
    exchange: Option<Arc<dyn StatisticsExchange>>,
    state: OnceCell<BatchNormState>,
}

#[derive(Debug)]
struct BatchNormState {
    affine: Option<(Param, Param)>,
    running: RunningStatistics,
}

impl BatchNorm2d {
    /// PyTorch's defaults: momentum 0.1, eps 1e-5, weight and bias.
    pub fn new(scope: &Scope) -> Self {
        let BatchNormConfig { momentum, eps, activation, .. } = BatchNormConfig::default();
        let (scope, state) = (scope.clone(), OnceCell::new());
        Self { scope, affine: true, momentum, eps, activation, exchange: None, state }
    }

    builder! { layer:
        /// The weight of a new batch in the running statistics.
        momentum(momentum: f64) => layer.momentum = momentum;
        /// The constant added to the variance.
        eps(eps: f64) => layer.eps = eps;
        /// Makes a layer without weight and bias.
        no_affine() => layer.affine = false;
        /// Applies `activation` to the output, fused into the normalisation.
        activation(activation: Activation) => layer.activation = Some(activation);
        /// Normalises, in training, by the batches of all replicas of `exchange`. This replaces the
        /// exchange of the store.
        synchronized(exchange: Arc<dyn StatisticsExchange>) => layer.exchange = Some(exchange);
    }

    fn create(&self, channels: usize) -> Result<BatchNormState> {
        let scope = &self.scope;
        if self.exchange.is_some() {
            scope.params().note_own_exchange();
        }
        let affine = if self.affine {
            let weight = scope.param("weight", channels, Init::Const(1.0))?;
            Some((weight, scope.param("bias", channels, Init::ZEROS)?))
        } else {
            None
        };
        let mean = scope.buffer("running_mean", channels, Init::ZEROS)?;
        let variance = scope.buffer("running_var", channels, Init::Const(1.0))?;
        Ok(BatchNormState { affine, running: RunningStatistics { mean, variance } })
    }
}

impl BatchNorm2d {
    /// `activation(norm(xs) + residual)`, the end of a residual branch, in one operation:
    /// [`batch_norm2d_add`](ops::batch_norm2d_add). `residual` has the shape of `xs`.
    ///
    /// # Errors
    ///
    /// Those of `forward`, and a residual of another shape.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let ys = self.with(xs, |norm| ops::batch_norm2d_add(xs, norm, residual))?;
        self.trace(xs);
        Ok(ys)
    }

    /// `conv(norm(xs))` in one operation, which keeps less memory for the backward pass than the two layers
    /// one after the other: [`batch_norm2d_conv2d`](ops::batch_norm2d_conv2d).
    ///
    /// # Errors
    ///
    /// Those of both layers.
    pub fn forward_conv(&self, xs: &Tensor, conv: &Conv2d) -> Result<Tensor> {
        self.with(xs, |norm| {
            self.trace(xs);
            conv.with(xs, |ConvCall { weight, bias, config, activation }| {
                ops::batch_norm2d_conv2d(xs, norm, weight, bias, config, activation)
            })
        })
    }

    /// Calls `f` with what the operation needs.
    pub(super) fn with(
        &self,
        xs: &Tensor,
        f: impl FnOnce(BatchNorm<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let channels = match *xs.dims() {
            [_, channels] | [_, channels, _, _] => channels,
            _ => bail!(
                "layer `{}`: input of shape {:?}, expected (N, C, H, W) or (N, C)",
                self.scope.path(),
                xs.shape()
            ),
        };
        let BatchNormState { affine, running } =
            self.state.get_or_try_init(|| self.create(channels))?;
        check_features(&self.scope, "channels", running.mean.value().dim(0)?, channels)?;
        let (weight, bias) =
            affine.as_ref().map(|(weight, bias)| (weight.tensor(), bias.tensor())).unzip();
        let config = BatchNormConfig {
            training: self.scope.is_training(),
            momentum: self.momentum,
            eps: self.eps,
            activation: self.activation,
        };
        let exchange = self.exchange.clone().or_else(|| self.scope.params().statistics_exchange());
        let exchange =
            exchange.map(|exchange| exchange.for_layer(self.scope.path()).unwrap_or(exchange));
        let exchange = exchange.as_ref();
        f(BatchNorm { weight, bias, running: Some(running), exchange, config })
    }

    /// The output has the shape of `xs`.
    fn trace(&self, xs: &Tensor) {
        self.scope.trace(&described("BatchNorm2d".to_owned(), self.activation), xs);
    }
}

impl Module for BatchNorm2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.with(xs, |norm| ops::normalise(xs, norm, None))?;
        self.trace(xs);
        Ok(ys)
    }
}
