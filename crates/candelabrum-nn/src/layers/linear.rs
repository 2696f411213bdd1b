//! A fully connected layer with bias and a fused activation.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{LayerWeights, check_features, described, last};
use crate::ops::{self, CrossEntropyConfig};
use crate::{Activation, Init, Scope};

/// `(.., in) -> (.., outputs)`: `y = x · Wᵀ + b`, SINGA's `Linear`.
///
/// The first input determines the number of inputs. The weight `(outputs, in)` starts
/// Glorot-normal, the bias at zero. [`init`](Self::init) chooses another distribution.
#[derive(Debug)]
pub struct Linear {
    scope: Scope,
    outputs: usize,
    bias: bool,
    init: Option<Init>,
    activation: Option<Activation>,
    weights: OnceCell<LayerWeights>,
}

impl Linear {
    /// A layer of `outputs` units with bias.
    pub fn new(scope: &Scope, outputs: usize) -> Self {
        Self {
            scope: scope.clone(),
            outputs,
            bias: true,
            init: None,
            activation: None,
            weights: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Makes a layer without bias.
        no_bias() => layer.bias = false;
        /// The distribution of the weight's initial values.
        init(init: Init) => layer.init = Some(init);
        /// Applies `activation` to the output, fused into the matrix product.
        activation(activation: Activation) => layer.activation = Some(activation);
    }

    /// A layer with or without bias, whose weight has the usual distribution unless `init` is given.
    pub(super) fn with(scope: &Scope, outputs: usize, bias: bool, init: Option<Init>) -> Self {
        Self { bias, init, ..Self::new(scope, outputs) }
    }

    weights! {}

    /// The output plus `residual` (.., outputs), in one operation if the layer has no activation:
    /// [`ops::linear_add`].
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        if self.activation.is_some() {
            return ops::add(&self.forward(xs)?, residual, None);
        }
        let weights = self.weights(xs)?;
        let ys = ops::linear_add(xs, weights.weight.tensor(), weights.bias(), residual)?;
        self.scope.trace("Linear, added", &ys);
        Ok(ys)
    }

    /// The mean cross entropy of the output, taken as logits, against `labels` (..): the last layer of
    /// a language model with its loss in one operation, [`ops::linear_cross_entropy`], for which the
    /// tensor of all logits never exists. In f32 also for an input in f16 or bf16.
    ///
    /// In evaluation mode the loss has no gradient, and takes a third of the time.
    ///
    /// # Errors
    /// Shapes that do not fit together, a label out of range, or a layer with an activation.
    pub fn cross_entropy(
        &self,
        xs: &Tensor,
        labels: &Tensor,
        config: CrossEntropyConfig,
    ) -> Result<Tensor> {
        if let Some(activation) = self.activation {
            candle_core::bail!(
                "layer `{}`: the outputs of {activation} are no logits",
                self.scope.path()
            )
        }
        let weights = self.weights(xs)?;
        let (mut xs, mut weight) = (xs.clone(), weights.weight.tensor().clone());
        let mut bias = weights.bias().cloned();
        if !self.scope.is_training() {
            (xs, weight) = (xs.detach(), weight.detach());
            bias = bias.map(|bias| bias.detach());
        }
        let loss = ops::linear_cross_entropy(&xs, &weight, bias.as_ref(), labels, config)?;
        self.scope.trace("Linear, cross entropy", &loss);
        Ok(loss)
    }

    /// The weights. The first call creates them for the input `xs`.
    pub(super) fn weights(&self, xs: &Tensor) -> Result<&LayerWeights> {
        self.weights_for(last(&self.scope, xs, "(.., in)")?)
    }

    /// The weights. The first call creates them for so many inputs.
    pub(super) fn weights_for(&self, inputs: usize) -> Result<&LayerWeights> {
        let weights = self.weights.get_or_try_init(|| {
            let init = self.init.unwrap_or_else(|| Init::glorot_normal(inputs, self.outputs));
            LayerWeights::new(&self.scope, (&[self.outputs, inputs], self.outputs), init, self.bias)
        })?;
        check_features(&self.scope, "features", weights.weight.var().dim(1)?, inputs)?;
        Ok(weights)
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weights = self.weights(xs)?;
        let ys = ops::linear(xs, weights.weight.tensor(), weights.bias(), self.activation)?;
        self.scope.trace(&described("Linear".to_owned(), self.activation), &ys);
        Ok(ys)
    }
}
