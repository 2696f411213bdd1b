//! The simple recurrent layer (Elman, Cognitive Science 14(2), 1990), PyTorch's `nn.RNN`.
//!
//! ```text
//! h' = g(x W_ih^T + b_ih + h W_hh^T + b_hh)      g = tanh or relu
//! ```

use candle_core::{Result, Tensor, bail};

use super::activations;
use super::recurrent::{
    self, CellStep, RecurrentCell, RecurrentWeights, SequenceSteps, StepBackward,
};
use crate::activation::Activation;
use crate::kernels::elementwise::{activation_backward, bias_row_activation};
use crate::kernels::float::Float;

/// All hidden states of a sequence. `h0` is the state before it, zeros if omitted.
///
/// On a GPU it is a composite.
///
/// # Shapes
///
/// `xs` (N, T, I), weights of 1 gate, `h0` (N, H) -> (N, T, H).
///
/// # Errors
///
/// If shapes, lengths or dtypes do not fit together, a sequence is empty, the dtype is no float, or `activation`
/// is neither [`Tanh`](Activation::Tanh) nor [`Relu`](Activation::Relu).
///
/// # Cost
///
/// Kept for the backward: `H` elements per step and sequence, besides input and result.
pub fn rnn(
    xs: &Tensor,
    weights: RecurrentWeights<'_>,
    h0: Option<&Tensor>,
    activation: Activation,
    order: &SequenceSteps,
) -> Result<Tensor> {
    let run = match activation {
        Activation::Tanh => recurrent::run::<RnnCell<false>>,
        Activation::Relu => recurrent::run::<RnnCell<true>>,
        other => bail!("rnn: the activation {other}, expected tanh or relu"),
    };
    Ok(run(xs, weights, [h0, None], order)?.0)
}

struct RnnCell<const RELU: bool>;

impl<const RELU: bool> RnnCell<RELU> {
    const ACTIVATION: Activation = if RELU { Activation::Relu } else { Activation::Tanh };
}

impl<const RELU: bool> RecurrentCell for RnnCell<RELU> {
    const NAME: &'static str = "rnn";
    const GATES: usize = 1;
    const HAS_CELL_STATE: bool = false;
    const SPLIT: bool = false;
    const HAS_EXTRA: bool = false;
    const GPU_KERNELS: Option<[&'static str; 2]> = None;

    fn forward<T: Float>(step: CellStep<'_, T>) {
        let CellStep { gates, b, h, .. } = step;
        bias_row_activation(gates, b, Some(Self::ACTIVATION));
        h.copy_from_slice(gates);
    }

    fn backward<T: Float>(step: StepBackward<'_, T>) {
        let StepBackward { gates, dh, da, .. } = step;
        da.copy_from_slice(dh);
        activation_backward(da, gates, Self::ACTIVATION);
        dh.fill(T::zero());
    }

    fn composite(a: &Tensor, b: &Tensor, _: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((activations::composite(&(a + b)?, Some(Self::ACTIVATION))?, c.clone()))
    }
}
