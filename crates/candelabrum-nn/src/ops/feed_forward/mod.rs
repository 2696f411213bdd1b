//! The feed-forward branch of a transformer: a linear layer, its hidden units, and a second linear layer.
//!
//! ```text
//! forward    z = x Wu^T + bu        h = units(z)           y = h Wd^T + bd (+ r)
//! backward   dh = dy Wd             dz = dh units'(z)      dx = dz Wu          dr = dy
//!            dWu = dz^T x           dWd = dy^T h           dbu, dbd: column sums of dz and of dy
//! ```
//!
//! Both passes go through the rows in blocks, so the hidden units and their gradients never exist for all rows.
//! Only `z` is kept for the backward pass, which computes `h` again, as
//! checkpoints of activations do (Chen et al., 2016, arXiv:1604.06174). As separate operations, a step keeps
//! `h` beside `z`.

mod units;

use candle_core::{Result, Tensor, bail};

use super::linear::{LinearOp, PACKED_GRADIENT_ROWS, PACKED_ROWS, affine, linear};
use super::linear_add::linear_add;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::autograd::recomputing;
use crate::kernels::column_sums::column_sums;
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, RightFactor, StridedMatrix};
use crate::kernels::scratch::Pooled;

pub use self::units::HiddenUnits;

const NAME: &str = "feed_forward";

/// The rows of a block. Each block packs the weights anew: blocks of a third of these rows made the step of a
/// GPT 2% slower.
const ROWS: usize = 2048;

/// `units(xs up^T + up_bias) down^T + down_bias`, and `residual` added to it if there is one. `up` and `down`
/// are a weight and its bias. On a GPU these are two linear layers.
///
/// # Shapes
///
/// `xs` (.., C), `up` (hidden, C), or (2 hidden, C) for SwiGLU, with a bias of as many elements, `down`
/// (out, hidden), (out), `residual` (.., out) -> (.., out).
///
/// # Cost
///
/// Of the hidden layer, the results of `up` are kept for the backward pass, which computes the units again.
///
/// # Errors
///
/// Shapes or dtypes that do not fit together, layers without outputs, or a dtype that is no float.
pub fn feed_forward(
    xs: &Tensor,
    (up, up_bias): (&Tensor, Option<&Tensor>),
    units: HiddenUnits,
    (down, down_bias): (&Tensor, Option<&Tensor>),
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (up_op, mut hidden_shape) = LinearOp::new(NAME, xs.dims(), up, up_bias, None)?;
    let hidden = down.dims().last().copied().unwrap_or_default();
    if units.inputs(hidden) != up_op.outputs {
        let (up, down) = (up.shape(), down.shape());
        bail!("{NAME}: weights of shapes {up:?} and {down:?} with {units:?} between them");
    }
    if let Some(last) = hidden_shape.last_mut() {
        *last = hidden;
    }
    let (down_op, shape) = LinearOp::new(NAME, &hidden_shape, down, down_bias, None)?;
    if let Some(residual) = residual.filter(|residual| residual.dims() != shape) {
        bail!("{NAME}: residual of shape {:?} for a result of {shape:?}", residual.shape());
    }
    if !xs.device().is_cpu() {
        let hidden = units.apply(linear(xs, up, up_bias, None)?)?;
        return match residual {
            Some(residual) => linear_add(&hidden, down, down_bias, residual),
            None => linear(&hidden, down, down_bias, None),
        };
    }
    let inputs = [Some(xs), Some(up), up_bias, Some(down), down_bias, residual];
    fused::run(FeedForwardOp { up: up_op, down: down_op, units }, shape, &inputs)
}

struct FeedForwardOp {
    up: LinearOp,
    down: LinearOp,
    units: HiddenUnits,
}

impl FusedOp for FeedForwardOp {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1, 3]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, up, up_bias, down, down_bias, residual] = inputs else {
            unreachable!("six inputs")
        };
        let Self { up: LinearOp { inputs: features, outputs: width, .. }, .. } = *self;
        let (hidden, outputs) = (self.down.inputs, self.down.outputs);
        let rows = ys.len() / outputs;
        let mut zs = Pooled::new(rows * width);
        let up = self.up.right_factor(up, rows);
        // Without the result, only `zs` is needed.
        let is_read = !recomputing::result_is_unread();
        let down = is_read.then(|| self.down.right_factor(down, rows));
        let is_packed = up.is_packed() && down.as_ref().is_none_or(RightFactor::is_packed);
        let block = if is_packed { PACKED_ROWS } else { ROWS };
        let mut hs = Pooled::new(rows.min(block) * hidden);
        let blocks = ys.chunks_mut(block * outputs).zip(zs.chunks_mut(block * width)).enumerate();
        for (number, (ys, zs)) in blocks {
            let (first, rows) = (number * block, ys.len() / outputs);
            let hs = &mut hs[..rows * hidden];
            let xs = &xs[first * features..][..rows * features];
            up.product(StridedMatrix::new(xs, rows, features), zs, Destination::Overwrite);
            self.up.finish(zs, up_bias);
            let Some(down) = &down else { continue };
            self.units.forward(zs, hidden, hs);
            let residual = residual.get(first * outputs..).unwrap_or_default();
            self.down.product_added((hs, down), down_bias, residual, ys);
        }
        Ok(zs)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, saved: zs, dys, mut grads, .. } = pass;
        let &[xs, up, _, down, ..] = inputs else { unreachable!("six inputs") };
        let Self { up: LinearOp { inputs: features, outputs: width, .. }, .. } = *self;
        let (hidden, outputs) = (self.down.inputs, self.down.outputs);
        let [mut dxs, mut dup, mut dup_bias, mut ddown] = [0, 1, 2, 3].map(|i| grads.take(i));
        if let Some(db) = grads.take(4) {
            column_sums(dys, db);
        }
        if let Some(dr) = grads.take(5) {
            dr.copy_from_slice(dys);
        }
        let all = dys.len() / outputs;
        let up = RightFactor::new(StridedMatrix::new(up, width, features), all);
        let down = RightFactor::new(StridedMatrix::new(down, outputs, hidden), all);
        let block = if up.is_packed() && down.is_packed() { PACKED_GRADIENT_ROWS } else { ROWS };
        let most = block.min(all);
        let (mut hs, mut dhs) = (Pooled::new(most * hidden), Pooled::new(most * hidden));
        // Without gates, the gradients of `zs` take the place of those of the units.
        let gated = if width == hidden { 0 } else { width };
        let mut dzs = Pooled::new(most * gated);
        let mut sums = Pooled::new(width);
        // Without rows, a block of none writes zeros to the gradients of the weights.
        for first in (0..all.max(1)).step_by(block) {
            let rows = block.min(all - first);
            let dst = if first == 0 { Destination::Overwrite } else { Destination::Add };
            let dys = &dys[first * outputs..][..rows * outputs];
            let (hs, dhs) = (&mut hs[..rows * hidden], &mut dhs[..rows * hidden]);
            let zs = &zs[first * width..][..rows * width];
            let xs = &xs[first * features..][..rows * features];
            down.product(StridedMatrix::new(dys, rows, outputs), dhs, Destination::Overwrite);
            let dzs = self.units.backward(zs, hidden, hs, (dhs, &mut dzs[..rows * gated]));
            if let Some(dw) = &mut ddown {
                self.down.weight_gradient(hs, dys, dw, dst);
            }
            if let Some(dw) = &mut dup {
                self.up.weight_gradient(xs, dzs, dw, dst);
            }
            if let Some(db) = &mut dup_bias {
                column_sums(dzs, &mut sums);
                match dst {
                    Destination::Overwrite => db.copy_from_slice(&sums),
                    Destination::Add => add_assign(db, &sums),
                }
            }
            if let Some(dxs) = &mut dxs {
                let dxs = &mut dxs[first * features..][..rows * features];
                up.product(StridedMatrix::new(dzs, rows, width), dxs, Destination::Overwrite);
            }
        }
        Ok(())
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        Some(5)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(up), up_bias, Some(down), down_bias, residual] = inputs else {
            unreachable!("six inputs")
        };
        let rows = xs.elem_count().checked_div(self.up.inputs).unwrap_or_default();
        let zs = affine(&xs.reshape((rows, self.up.inputs))?, up, up_bias.as_ref())?;
        let hs = self.units.composite(&zs, self.down.inputs)?;
        let ys = affine(&hs, down, down_bias.as_ref())?;
        match residual {
            Some(residual) => residual.reshape((rows, self.down.outputs))? + ys,
            None => Ok(ys),
        }
    }
}
