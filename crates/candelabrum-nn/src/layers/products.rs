//! The products of a layer with its weight: a parameter or a quantised matrix, with or without an adapter.

use candle_core::{Result, Tensor};

use crate::autograd::fused::widen;
use crate::ops::{CrossEntropyConfig, HiddenUnits};
use crate::params::WeightMatrix;
use crate::{Activation, Param, Weight, ops};

impl Weight {
    /// `act(xs weight^T + bias)`, for `xs` (.., inputs) and `bias` (outputs): [`ops::linear`].
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn linear(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        if let Some(weight) = self.plain() {
            return ops::linear(xs, weight, bias, activation);
        }
        let ys = self.adapted(xs, bias, None)?;
        match activation {
            Some(activation) => HiddenUnits::Activation(activation).apply(ys),
            None => Ok(ys),
        }
    }

    /// `residual + xs weight^T + bias`, for `residual` (.., outputs): [`ops::linear_add`].
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn linear_add(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        residual: &Tensor,
    ) -> Result<Tensor> {
        match self.plain() {
            Some(weight) => ops::linear_add(xs, weight, bias, residual),
            None => self.adapted(xs, bias, Some(residual)),
        }
    }

    /// The mean cross entropy of `xs weight^T + bias`, taken as logits, against `labels` (..):
    /// [`ops::linear_cross_entropy`], for which the tensor of all logits never exists. With a quantised weight or an
    /// adapter the logits exist.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a label out of range.
    pub fn cross_entropy(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        labels: &Tensor,
        config: CrossEntropyConfig,
    ) -> Result<Tensor> {
        if let Some(weight) = self.plain() {
            return ops::linear_cross_entropy(xs, weight, bias, labels, config);
        }
        let logits = widen(&self.adapted(xs, bias, None)?)?;
        ops::softmax_cross_entropy_with(&logits, labels, config)
    }

    /// The [loss](Self::cross_entropy) without gradients, for an evaluation. Takes a third of the time.
    ///
    /// # Errors
    /// Those of [`cross_entropy`](Self::cross_entropy).
    pub fn loss_alone(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        labels: &Tensor,
        config: CrossEntropyConfig,
    ) -> Result<Tensor> {
        match self.plain() {
            Some(weight) => ops::linear_cross_entropy(xs, &weight.detach(), bias, labels, config),
            None => self.cross_entropy(xs, bias, labels, config),
        }
    }

    /// The rows at `indices` (..), as `(.., columns)`: [`ops::embedding`]. Those of a quantised table have no gradient.
    ///
    /// # Errors
    /// An index that is not below the number of rows, on the CPU.
    pub fn rows(&self, indices: &Tensor, padding_index: Option<usize>) -> Result<Tensor> {
        match &self.matrix {
            WeightMatrix::Param(param) => ops::embedding(param.tensor(), indices, padding_index),
            WeightMatrix::Quantized(matrix) => matrix.rows_at(indices)?.to_dtype(self.dtype),
        }
    }

    /// The tensor of a parameter without an adapter.
    pub(super) fn plain(&self) -> Option<&Tensor> {
        if self.active_adapter().is_some() { None } else { self.param().map(Param::tensor) }
    }

    /// `residual + xs weight^T + bias` with a quantised weight, an adapter, or both.
    fn adapted(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        if let Some(adapter) = self.active_adapter() {
            return adapter.product(self, xs, bias, residual);
        }
        let ys = self.product_alone(xs, bias)?;
        if let Some(residual) = residual { ops::add(&ys, residual, None) } else { Ok(ys) }
    }

    /// `xs weight^T + bias` without the adapter.
    pub(crate) fn product_alone(&self, xs: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match &self.matrix {
            WeightMatrix::Param(param) => ops::linear(xs, param.tensor(), bias, None),
            WeightMatrix::Quantized(matrix) => ops::linear_quantized(xs, matrix, bias),
        }
    }
}
