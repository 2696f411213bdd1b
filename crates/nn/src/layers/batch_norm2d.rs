//! Batch normalisation (Ioffe and Szegedy, ICML 2015).

use std::sync::Arc;

use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use super::{check_features, described};
use crate::ops::{self, BatchNormConfig, RunningStatistics};
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
    state: OnceCell<State>,
}

#[derive(Debug)]
struct State {
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

    /// The weight of a new batch in the running statistics.
    #[must_use]
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// The constant added to the variance.
    #[must_use]
    pub fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Makes a layer without weight and bias.
    #[must_use]
    pub fn no_affine(mut self) -> Self {
        self.affine = false;
        self
    }

    /// Applies `activation` to the output, fused into the normalisation.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }

    /// Normalises, in training, by the batches of all replicas of `exchange`. This replaces the
    /// exchange of the store.
    #[must_use]
    pub fn synchronized(mut self, exchange: Arc<dyn StatisticsExchange>) -> Self {
        self.exchange = Some(exchange);
        self
    }

    fn create(&self, channels: usize) -> Result<State> {
        let scope = &self.scope;
        let affine = if self.affine {
            let weight = scope.param("weight", channels, Init::Const(1.0))?;
            Some((weight, scope.param("bias", channels, Init::ZEROS)?))
        } else {
            None
        };
        let mean = scope.buffer("running_mean", channels, Init::ZEROS)?;
        let variance = scope.buffer("running_var", channels, Init::Const(1.0))?;
        Ok(State { affine, running: RunningStatistics { mean, variance } })
    }
}

impl Module for BatchNorm2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let channels = match *xs.dims() {
            [_, channels] | [_, channels, _, _] => channels,
            _ => bail!(
                "layer `{}`: input of shape {:?}, expected (N, C, H, W) or (N, C)",
                self.scope.path(),
                xs.shape()
            ),
        };
        let State { affine, running } = self.state.get_or_try_init(|| self.create(channels))?;
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
        let ys = match exchange {
            None => ops::batch_norm2d(xs, weight, bias, Some(running), config)?,
            Some(exchange) => {
                let exchange = exchange.for_layer(self.scope.path()).unwrap_or(exchange);
                ops::sync_batch_norm2d(xs, weight, bias, Some(running), config, &exchange)?
            }
        };
        self.scope.trace(&described("BatchNorm2d".to_owned(), self.activation), &ys);
        Ok(ys)
    }
}
