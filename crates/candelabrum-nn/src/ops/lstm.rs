//! Long short-term memory (Hochreiter and Schmidhuber, 1997) with a forget gate (Gers,
//! Schmidhuber and Cummins, 2000), as in PyTorch.
//!
//! ```text
//! i  = sigmoid(s_i)    f = sigmoid(s_f)    g = tanh(s_g)    o = sigmoid(s_o)
//!                                          s = x W_ih^T + b_ih + h W_hh^T + b_hh
//! c' = f c + i g
//! h' = o tanh(c')
//! ```

use candle_core::{Result, Tensor, bail};
use candle_nn::ops::sigmoid;

use super::recurrent::{
    self, CellStep, RecurrentCell, RecurrentWeights, SequenceSteps, StepBackward, parts, parts_mut,
};
use crate::activation::Activation;
use crate::kernels::elementwise::{activate, bias_row_activation};
use crate::kernels::float::Float;
use candelabrum_memory::simd::simd;

/// All hidden states of a sequence, and the final cell state. `state` contains the hidden and the
/// cell state before the sequence, zeros if omitted.
///
/// # Shapes
///
/// `xs` (N, T, I), weights of 4 gates in the order i, f, g, o, `state` twice (N, H) ->
/// (N, T, H) and (N, H).
///
/// # Errors
///
/// If shapes or dtypes do not fit together, a sequence is empty, or the dtype is no float.
///
/// # Cost
///
/// Kept for the backward: `5 H` elements per step and sequence, besides input and result.
pub fn lstm(
    xs: &Tensor,
    weights: RecurrentWeights<'_>,
    state: Option<(&Tensor, &Tensor)>,
) -> Result<(Tensor, Tensor)> {
    lstm_with(xs, weights, state, &SequenceSteps::default())
}

/// [`lstm`] of some steps of each sequence, or against the direction of time. On a GPU it is a composite then.
///
/// # Errors
///
/// Those of [`lstm`], and lengths that do not fit.
pub fn lstm_with(
    xs: &Tensor,
    weights: RecurrentWeights<'_>,
    state: Option<(&Tensor, &Tensor)>,
    order: &SequenceSteps,
) -> Result<(Tensor, Tensor)> {
    let (ys, c) = recurrent::run::<LstmCell>(xs, weights, state.unzip().into(), order)?;
    let Some(c) = c else { bail!("{}: no final cell state, this is a bug", LstmCell::NAME) };
    Ok((ys, c))
}

struct LstmCell;

impl RecurrentCell for LstmCell {
    const NAME: &'static str = "lstm";
    const GATES: usize = 4;
    const HAS_CELL_STATE: bool = true;
    const SPLIT: bool = false;
    const HAS_EXTRA: bool = true;
    const GPU_KERNELS: Option<[&'static str; 2]> = Some(["lstm_step", "lstm_step_back"]);

    /// `extra` is the cell state before the step.
    fn forward<T: Float>(step: CellStep<'_, T>) {
        let CellStep { gates, b, extra, h, c, .. } = step;
        extra.copy_from_slice(c);
        let [b_i, b_f, b_g, b_o] = parts(b);
        let [i, f, g, o] = parts_mut(gates);
        // Passes with few slices each, because the compiler vectorises these.
        for (gate, b) in [(&mut *i, b_i), (&mut *f, b_f), (&mut *o, b_o)] {
            bias_row_activation(gate, b, Some(Activation::Sigmoid));
        }
        bias_row_activation(g, b_g, Some(Activation::Tanh));
        simd(
            #[inline(always)]
            || {
                for (((c, &f), &i), &g) in c.iter_mut().zip(&*f).zip(&*i).zip(&*g) {
                    *c = f * *c + i * g;
                }
            },
        );
        h.copy_from_slice(c);
        activate(h, Some(Activation::Tanh));
        simd(
            #[inline(always)]
            || {
                for (h, &o) in h.iter_mut().zip(&*o) {
                    *h *= o;
                }
            },
        );
    }

    fn backward<T: Float>(step: StepBackward<'_, T>) {
        let StepBackward { gates, extra: c_prev, dh, dc, da, .. } = step;
        let [i, f, g, o] = parts(gates);
        let [di, df, dg, d_o] = parts_mut(da);
        let one = T::one();
        // First tanh(c'), stored in place of the last gradient.
        simd(
            #[inline(always)]
            || {
                for ((((t, &c), &f), &i), &g) in d_o.iter_mut().zip(c_prev).zip(f).zip(i).zip(g) {
                    *t = f * c + i * g;
                }
            },
        );
        activate(d_o, Some(Activation::Tanh));
        simd(
            #[inline(always)]
            || {
                for (((dc, &dh), &o), &t) in dc.iter_mut().zip(&*dh).zip(o).zip(&*d_o) {
                    *dc += dh * o * (one - t * t);
                }
                for ((d_o, &dh), &o) in d_o.iter_mut().zip(&*dh).zip(o) {
                    *d_o = dh * *d_o * o * (one - o);
                }
                for (((di, &dc), &g), &i) in di.iter_mut().zip(&*dc).zip(g).zip(i) {
                    *di = dc * g * i * (one - i);
                }
                for (((df, &dc), &c), &f) in df.iter_mut().zip(&*dc).zip(c_prev).zip(f) {
                    *df = dc * c * f * (one - f);
                }
                for (((dg, &dc), &i), &g) in dg.iter_mut().zip(&*dc).zip(i).zip(g) {
                    *dg = dc * i * (one - g * g);
                }
                for (dc, &f) in dc.iter_mut().zip(f) {
                    *dc *= f;
                }
            },
        );
        dh.fill(T::zero());
    }

    fn composite(a: &Tensor, b: &Tensor, _: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let gates = (a + b)?.chunk(4, 1)?;
        let (i, f, o) = (sigmoid(&gates[0])?, sigmoid(&gates[1])?, sigmoid(&gates[3])?);
        let c = ((f * c)? + (i * gates[2].tanh()?)?)?;
        Ok(((o * c.tanh()?)?, c))
    }
}
