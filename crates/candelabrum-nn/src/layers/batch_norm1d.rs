//! Batch normalisation of vectors and sequences.

use std::sync::Arc;

use candle_core::{Module, Result, Tensor, bail};

use super::{BatchNorm2d, described};
use crate::ops;
use crate::{Activation, Scope, StatisticsExchange};

/// Normalises `(N, C)` or `(N, C, L)` per channel: [`BatchNorm2d`] of images with a single column, with the same
/// parameters and buffers.
#[derive(Debug)]
pub struct BatchNorm1d {
    scope: Scope,
    activation: Option<Activation>,
    norm: BatchNorm2d,
}

impl BatchNorm1d {
    /// PyTorch's defaults: momentum 0.1, eps 1e-5, weight and bias.
    pub fn new(scope: &Scope) -> Self {
        Self { scope: scope.clone(), activation: None, norm: BatchNorm2d::new(scope) }
    }

    builder! { layer:
        /// The weight of a new batch in the running statistics.
        momentum(momentum: f64) => layer.norm = layer.norm.momentum(momentum);
        /// The constant added to the variance.
        eps(eps: f64) => layer.norm = layer.norm.eps(eps);
        /// Makes a layer without weight and bias.
        no_affine() => layer.norm = layer.norm.no_affine();
        /// Applies `activation` to the output, fused into the normalisation.
        activation(activation: Activation) => {
            layer.activation = Some(activation);
            layer.norm = layer.norm.activation(activation);
        };
        /// Normalises, in training, by the batches of all replicas of `exchange`. This replaces the
        /// exchange of the store.
        synchronized(exchange: Arc<dyn StatisticsExchange>) => layer.norm = layer.norm.synchronized(exchange);
    }
}

impl Module for BatchNorm1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let images = match *xs.dims() {
            [_, _] => xs.clone(),
            [batch, channels, length] => xs.reshape((batch, channels, length, 1))?,
            _ => bail!(
                "layer `{}`: input of shape {:?}, expected (N, C) or (N, C, L)",
                self.scope.path(),
                xs.shape()
            ),
        };
        let ys = self.norm.with(&images, |norm| ops::normalise(&images, norm, None))?;
        let ys = ys.reshape(xs.shape())?;
        self.scope.trace(&described("BatchNorm1d".to_owned(), self.activation), &ys);
        Ok(ys)
    }
}
