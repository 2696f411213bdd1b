//! Normalisation of each value by its neighbours in other channels, AlexNet's.

use candle_core::{Module, Result, Tensor};

use crate::Scope;
use crate::ops::{self, LocalResponseNormConfig};

/// `(N, C, ..) -> (N, C, ..)`: [`ops::local_response_norm`], a layer without parameters.
#[derive(Clone, Debug)]
pub struct LocalResponseNorm {
    scope: Option<Scope>,
    config: LocalResponseNormConfig,
}

impl LocalResponseNorm {
    /// PyTorch's constants for windows of `size` channels: alpha 1e-4, beta 0.75, k 1.
    pub fn new(size: usize) -> Self {
        Self::with(LocalResponseNormConfig::new(size))
    }

    /// The layer with other constants.
    pub fn with(config: LocalResponseNormConfig) -> Self {
        Self { scope: None, config }
    }

    builder! { layer:
        /// Shows the layer in the model's summary under the name of `scope`.
        named(scope: &Scope) => layer.scope = Some(scope.clone());
    }
}

impl Module for LocalResponseNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = ops::local_response_norm(xs, self.config)?;
        if let Some(scope) = &self.scope {
            scope.trace(&format!("LocalResponseNorm {}", self.config.size), &ys);
        }
        Ok(ys)
    }
}
