//! A fully connected layer with bias and a fused activation.

use candle_core::{D, Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{Weights, check_features, described};
use crate::{Activation, Init, Scope, ops};

/// `(.., in) -> (.., outputs)`: `y = x · Wᵀ + b`, SINGA's `Linear`.
///
/// The first input determines the number of inputs. The weight `(outputs, in)` starts
/// Glorot-normal, the bias at zero.
#[derive(Debug)]
pub struct Linear {
    scope: Scope,
    outputs: usize,
    bias: bool,
    activation: Option<Activation>,
    weights: OnceCell<Weights>,
}

impl Linear {
    /// A layer of `outputs` units with bias.
    pub fn new(scope: &Scope, outputs: usize) -> Self {
        Self {
            scope: scope.clone(),
            outputs,
            bias: true,
            activation: None,
            weights: OnceCell::new(),
        }
    }

    /// Makes a layer without bias.
    #[must_use]
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// Applies `activation` to the output, fused into the matrix product.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inputs = xs.dim(D::Minus1)?;
        let weights = self.weights.get_or_try_init(|| {
            let init = Init::glorot_normal(inputs, self.outputs);
            Weights::new(&self.scope, &[self.outputs, inputs], init, self.bias)
        })?;
        check_features(&self.scope, "features", weights.weight.var().dim(1)?, inputs)?;
        let ys = ops::linear(xs, weights.weight.tensor(), weights.bias(), self.activation)?;
        self.scope.trace(&described("Linear".to_owned(), self.activation), &ys);
        Ok(ys)
    }
}
