//! The mean of a sequence's steps, weighted by attention to a context vector.

use candle_core::{Module, Result, Tensor};

use super::Linear;
use crate::{Activation, Init, Scope, ops};

/// `(N, T, in) -> (N, in)`: the attention of hierarchical attention networks (Yang et al., NAACL 2016, equations 5
/// to 7). A *context vector* `c`, which is trained, asks which steps matter.
///
/// ```text
/// u_t = tanh(W h_t + b)    a = softmax over t of u_t c    s = sum_t a_t h_t
/// ```
///
/// The parameters are `projection.weight` `(units, in)`, `projection.bias` `(units)` and `context.weight`
/// `(1, units)`, as those of two linear layers of PyTorch. They start as those of a [`Linear`].
#[derive(Debug)]
pub struct AttentionPooling {
    scope: Scope,
    projection: Linear,
    context: Linear,
}

impl AttentionPooling {
    /// A layer whose context vector has `units` elements.
    pub fn new(scope: &Scope, units: usize) -> Self {
        let projection = Linear::new(&scope.pp("projection"), units).activation(Activation::Tanh);
        let context = Linear::new(&scope.pp("context"), 1).no_bias();
        Self { scope: scope.clone(), projection, context }
    }

    /// Chooses the distribution of the initial values of both weights.
    #[must_use]
    pub fn init(self, init: Init) -> Self {
        let (projection, context) = (self.projection.init(init), self.context.init(init));
        Self { scope: self.scope, projection, context }
    }

    /// The mean over the first `lengths` `(N)` steps of each sequence. That of no steps is 0.
    ///
    /// # Errors
    /// Shapes or lengths that do not fit together.
    pub fn forward_lengths(&self, xs: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        self.run(xs, Some(lengths))
    }

    fn run(&self, xs: &Tensor, lengths: Option<&Tensor>) -> Result<Tensor> {
        let scores = self.context.forward(&self.projection.forward(xs)?)?; // (N, T, 1)
        let ys = ops::attention_pool(xs, &scores.squeeze(2)?, lengths)?;
        self.scope.trace("AttentionPooling", &ys);
        Ok(ys)
    }
}

impl Module for AttentionPooling {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.run(xs, None)
    }
}
