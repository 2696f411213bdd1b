//! A fully connected layer with bias and a fused activation.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{check_features, described, last};
use crate::ops::{self, CrossEntropyConfig};
use crate::{Activation, Init, Param, Scope, Weight};

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
    is_output: bool,
    weights: OnceCell<LinearWeights>,
}

/// Weight and bias.
#[derive(Debug)]
pub(super) struct LinearWeights {
    pub(super) weight: Weight,
    bias: Option<Param>,
}

impl LinearWeights {
    pub(super) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref().map(Param::tensor)
    }

    /// Weight and bias as they are in one operation, `None` if the weight is quantised or has an adapter.
    pub(super) fn plain(&self) -> Option<(&Tensor, Option<&Tensor>)> {
        Some((self.weight.plain()?, self.bias()))
    }
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
            is_output: false,
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
        /// Says that the layer makes the output of the model, or belongs to the head that does. LoRA on all linear
        /// layers leaves it out.
        output() => layer.is_output = true;
    }

    /// A layer with or without bias, whose weight has the usual distribution unless `init` is given.
    pub(super) fn with(scope: &Scope, outputs: usize, bias: bool, init: Option<Init>) -> Self {
        Self { bias, init, ..Self::new(scope, outputs) }
    }

    /// The weight as a parameter. `None` before the first input, which creates the weight, and for a weight that is
    /// [quantised](crate::QuantizedMatrix).
    pub fn weight(&self) -> Option<&Param> {
        self.weights.get().and_then(|weights| weights.weight.param())
    }

    /// The bias, `None` before the first input, which creates it, and for a layer without bias.
    pub fn bias(&self) -> Option<&Param> {
        self.weights.get().and_then(|weights| weights.bias.as_ref())
    }

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
        let ys = weights.weight.linear_add(xs, weights.bias(), residual)?;
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
        let loss = if self.scope.is_training() {
            weights.weight.cross_entropy(xs, weights.bias(), labels, config)?
        } else {
            let bias = weights.bias().map(Tensor::detach);
            weights.weight.loss_alone(&xs.detach(), bias.as_ref(), labels, config)?
        };
        self.scope.trace("Linear, cross entropy", &loss);
        Ok(loss)
    }

    /// The weights. The first call creates them for the input `xs`.
    pub(super) fn weights(&self, xs: &Tensor) -> Result<&LinearWeights> {
        self.weights_for(last(&self.scope, xs, "(.., in)")?)
    }

    /// The weights. The first call creates them for so many inputs.
    pub(super) fn weights_for(&self, inputs: usize) -> Result<&LinearWeights> {
        let weights = self.weights.get_or_try_init(|| self.create(inputs))?;
        check_features(&self.scope, "features", weights.weight.dims().1, inputs)?;
        Ok(weights)
    }

    fn create(&self, inputs: usize) -> Result<LinearWeights> {
        let (scope, outputs) = (&self.scope, self.outputs);
        if outputs == 0 {
            candle_core::bail!("layer `{}` has no outputs", scope.path())
        }
        let init = self.init.unwrap_or_else(|| Init::glorot_normal(inputs, outputs));
        let shape = (outputs, inputs);
        let weight = scope.weight_of("weight", shape, init, self.is_output)?;
        let bias = self.bias.then(|| scope.param("bias", outputs, Init::ZEROS)).transpose()?;
        Ok(LinearWeights { weight, bias })
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weights = self.weights(xs)?;
        let ys = weights.weight.linear(xs, weights.bias(), self.activation)?;
        self.scope.trace(&described("Linear".to_owned(), self.activation), &ys);
        Ok(ys)
    }
}
