//! The second half of a transformer's feed-forward branch: the activation of the hidden layer, the linear
//! layer behind it, and the residual.
//!
//! ```text
//! forward    h = act(x)           y = r + h w^T + b
//! backward   dh = dy w            dx = dh act'(x)      dw = dy^T h      db = column sums of dy      dr = dy
//! ```
//!
//! The backward computes `h` again from `x`, as checkpoints of activations do (Chen et al., 2016,
//! arXiv:1604.06174), for a single operation by elements. The hidden layer is the largest result of a block.
//! As separate operations, a step would keep `h` beside `x`.

use candle_core::{Result, Tensor, bail};

use super::activations;
use super::column_sums::column_sums;
use super::elementwise::{activate, activation_backward_in_blocks};
use super::float::Float;
use super::fused::{self, Backward, Fused, Reads};
use super::linear::Linear;
use super::linear_add::{copy, linear_add};
use super::matmul::{Dst, Mat, matmul};
use super::parallel::in_blocks;
use super::pool::Pooled;
use super::swiglu::{self, gate, gate_backward, swiglu};
use crate::activation::Activation;

const NAME: &str = "down_projection";

/// What a feed-forward branch computes of its hidden layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// The activation of each element.
    Activation(Activation),
    /// [`swiglu`](super::swiglu()), whose result is half as wide.
    SwiGlu,
}

/// `residual + act(xs) weight^T + bias`, where `act` is that of `feed_forward`. On a GPU these are two
/// operations, the second one [`linear_add`](super::linear_add()).
///
/// # Shapes
///
/// `xs` (.., in), (.., 2 in) for SwiGLU, `weight` (out, in), `bias` (out), `residual` (.., out) -> (.., out).
///
/// # Cost
///
/// For the backward only `xs` is kept. It computes `act(xs)` again.
///
/// # Errors
///
/// Those of [`linear_add`](super::linear_add()).
pub fn down_projection(
    xs: &Tensor,
    feed_forward: FeedForward,
    weight: &Tensor,
    bias: Option<&Tensor>,
    residual: &Tensor,
) -> Result<Tensor> {
    let mut dims = xs.dims().to_vec();
    if let (FeedForward::SwiGlu, Some(width)) = (feed_forward, dims.last_mut()) {
        if weight.dims().last().map(|inputs| 2 * inputs) != Some(*width) {
            let (xs, weight) = (xs.shape(), weight.shape());
            bail!("{NAME}: input of shape {xs:?} for a weight of {weight:?} behind SwiGLU");
        }
        *width /= 2;
    }
    let (linear, shape) = Linear::new(NAME, &dims, weight, bias, None)?;
    if residual.dims() != shape {
        bail!("{NAME}: residual of shape {:?} for a result of {shape:?}", residual.shape());
    }
    if !xs.device().is_cpu() {
        return linear_add(&feed_forward.apply(xs)?, weight, bias, residual);
    }
    let op = DownProjection { linear, feed_forward };
    fused::run(op, shape, &[Some(xs), Some(weight), bias, Some(residual)])
}

impl FeedForward {
    /// As an operation of its own.
    pub(crate) fn apply(self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Activation(activation) => activations::apply(xs.clone(), Some(activation)),
            Self::SwiGlu => swiglu(xs),
        }
    }

    /// Writes rows of `hidden`, of `width` elements.
    fn forward<T: Float>(self, xs: &[T], width: usize, hidden: &mut [T]) {
        match self {
            Self::Activation(activation) => in_blocks(hidden, |start, hidden| {
                hidden.copy_from_slice(&xs[start..][..hidden.len()]);
                activate(hidden, Some(activation));
            }),
            Self::SwiGlu => gate(xs, width, hidden),
        }
    }
}

struct DownProjection {
    linear: Linear,
    feed_forward: FeedForward,
}

impl DownProjection {
    fn hidden<T: Float>(&self, xs: &[T], rows: usize) -> Pooled<T> {
        let mut hidden = Pooled::new(rows * self.linear.inputs);
        self.feed_forward.forward(xs, self.linear.inputs, &mut hidden);
        hidden
    }
}

impl Fused for DownProjection {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0, 1])
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, residual] = inputs else { unreachable!("four inputs") };
        let hidden = self.hidden(xs, ys.len() / self.linear.outputs);
        self.linear.forward_add([&hidden, weight], bias, residual, ys);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, dys, mut grads, .. } = pass;
        let &[xs, weight, _, _] = inputs else { unreachable!("four inputs") };
        let Linear { inputs: width, outputs, .. } = self.linear;
        let rows = dys.len() / outputs;
        let dys_mat = Mat::new(dys, rows, outputs);
        let mut hidden = self.hidden(xs, rows);
        if let Some(dw) = grads.take(1) {
            matmul(dw, Dst::Overwrite, dys_mat.t(), Mat::new(&hidden, rows, width));
        }
        if let Some(dxs) = grads.take(0) {
            let weight = Mat::new(weight, outputs, width);
            match self.feed_forward {
                FeedForward::Activation(activation) => {
                    matmul(dxs, Dst::Overwrite, dys_mat, weight);
                    let reference = if activation.needs_input() { xs } else { &hidden };
                    activation_backward_in_blocks(dxs, reference, activation);
                }
                FeedForward::SwiGlu => {
                    matmul(&mut hidden, Dst::Overwrite, dys_mat, weight);
                    gate_backward(xs, width, &hidden, dxs);
                }
            }
        }
        if let Some(db) = grads.take(2) {
            column_sums(dys, db);
        }
        if let Some(dr) = grads.take(3) {
            copy(dys, dr);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias, Some(residual)] = inputs else {
            unreachable!("four inputs")
        };
        let hidden = match self.feed_forward {
            FeedForward::Activation(activation) => activations::composite(xs, Some(activation))?,
            FeedForward::SwiGlu => swiglu::composite(xs, self.linear.inputs)?,
        };
        self.linear.composite_add(&hidden, weight, bias.as_ref(), residual)
    }
}
