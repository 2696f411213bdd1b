//! Gated recurrent unit (Cho et al., 2014, arXiv:1406.1078), PyTorch's variant.
//!
//! ```text
//! r  = sigmoid(a_r + b_r)        a = x W_ih^T + b_ih
//! z  = sigmoid(a_z + b_z)        b = h W_hh^T + b_hh
//! n  = tanh(a_n + r b_n)
//! h' = (1 - z) n + z h
//! ```
//!
//! Unlike in the paper, the reset gate `r` is applied after the product with `W_hh`, so one product
//! serves all gates.

use candle_core::{Result, Tensor};
use candle_nn::ops::sigmoid;

use super::recurrent::{
    self, CellStep, RecurrentCell, RecurrentWeights, SequenceSteps, StepBackward, parts, parts_mut,
};
use crate::activation::Activation;
use crate::kernels::elementwise::{activate, bias_row_activation};
use crate::kernels::float::Float;
use candelabrum_memory::simd::simd;

/// All hidden states of a sequence. `h0` is the state before it, zeros if omitted.
///
/// # Shapes
///
/// `xs` (N, T, I), weights of 3 gates in the order r, z, n, `h0` (N, H) -> (N, T, H).
///
/// # Errors
///
/// If shapes or dtypes do not fit together, a sequence is empty, or the dtype is no float.
///
/// # Cost
///
/// Kept for the backward: `4 H` elements per step and sequence, besides input and result.
pub fn gru(xs: &Tensor, weights: RecurrentWeights<'_>, h0: Option<&Tensor>) -> Result<Tensor> {
    gru_with(xs, weights, h0, &SequenceSteps::default())
}

/// [`gru`] of some steps of each sequence, or against the direction of time. On a GPU it is a composite then.
///
/// # Errors
///
/// Those of [`gru`], and lengths that do not fit.
pub fn gru_with(
    xs: &Tensor,
    weights: RecurrentWeights<'_>,
    h0: Option<&Tensor>,
    order: &SequenceSteps,
) -> Result<Tensor> {
    Ok(recurrent::run::<GruCell>(xs, weights, [h0, None], order)?.0)
}

struct GruCell;

impl RecurrentCell for GruCell {
    const NAME: &'static str = "gru";
    const GATES: usize = 3;
    const HAS_CELL_STATE: bool = false;
    const SPLIT: bool = true;
    const HAS_EXTRA: bool = true;
    const GPU_KERNELS: Option<[&'static str; 2]> = Some(["gru_step", "gru_step_back"]);

    /// `extra` is `b_n`.
    fn forward<T: Float>(step: CellStep<'_, T>) {
        let CellStep { gates, b, bias, extra, h, .. } = step;
        let (rz, n) = gates.split_at_mut(2 * h.len());
        let (b_rz, b_n) = b.split_at(2 * h.len());
        extra.copy_from_slice(b_n);
        // Passes with few slices each, because the compiler vectorises these.
        bias_row_activation(rz, b_rz, Some(Activation::Sigmoid));
        let [r, z] = parts(rz);
        simd(
            #[inline(always)]
            || {
                for (((n, &b), &r), &bias) in n.iter_mut().zip(b_n).zip(r).zip(bias) {
                    *n = *n + bias + r * b;
                }
            },
        );
        activate(n, Some(Activation::Tanh));
        simd(
            #[inline(always)]
            || {
                for ((h, &z), &n) in h.iter_mut().zip(z).zip(&*n) {
                    *h = n + z * (*h - n);
                }
            },
        );
    }

    fn backward<T: Float>(step: StepBackward<'_, T>) {
        let StepBackward { gates, extra: b_n, h_prev, dh, da, db, .. } = step;
        let [r, z, n] = parts(gates);
        let one = T::one();
        let [dr, dz, dn] = parts_mut(da);
        let db_n = db;
        simd(
            #[inline(always)]
            || {
                for (((dn, &dh), &z), &n) in dn.iter_mut().zip(&*dh).zip(z).zip(n) {
                    *dn = dh * (one - z) * (one - n * n);
                }
                for ((((dz, &dh), &z), &n), &h) in dz.iter_mut().zip(&*dh).zip(z).zip(n).zip(h_prev)
                {
                    *dz = dh * (h - n) * z * (one - z);
                }
                for (((dr, &dn), &b), &r) in dr.iter_mut().zip(&*dn).zip(b_n).zip(r) {
                    *dr = dn * b * r * (one - r);
                }
                for ((db, &dn), &r) in db_n.iter_mut().zip(&*dn).zip(r) {
                    *db = dn * r;
                }
                for (dh, &z) in dh.iter_mut().zip(z) {
                    *dh *= z;
                }
            },
        );
    }

    fn composite(a: &Tensor, b: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let (a, b) = (a.chunk(3, 1)?, b.chunk(3, 1)?);
        let r = sigmoid(&(&a[0] + &b[0])?)?;
        let z = sigmoid(&(&a[1] + &b[1])?)?;
        let n = (&a[2] + (r * &b[2])?)?.tanh()?;
        Ok(((&n + (z * (h - &n)?)?)?, c.clone()))
    }
}
