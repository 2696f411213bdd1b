//! The mean of the steps of a sequence, weighted by the softmax of their scores.
//!
//! ```text
//! forward    a = softmax(scores) over the steps of the sequence    y = sum_t a_t h_t
//! backward   dh_t = a_t dy    da_t = dy h_t    dscores = a (da - sum_k a_k da_k)
//! ```

use std::sync::Arc;

use candle_core::{D, Device, Result, Tensor, bail};
use rayon::prelude::*;

use super::sizes::sizes;
use super::softmax::{exp_into, shifted};
use super::{lengths, masked_fill};
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::moments::sum_of;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "attention_pool";

/// The mean of the first `lengths` steps of each sequence, or of all, weighted by the softmax of their scores: the
/// pooling of Yang et al. (NAACL 2016, equations 6, 7, 9 and 10). The mean of no steps is 0. What is behind the
/// length is not read.
///
/// # Shapes
///
/// `xs` (N, T, H), `scores` (N, T), `lengths` (N) in u8, u32 or i64 -> (N, H)
///
/// # Errors
///
/// If a length is above T, shapes or dtypes do not fit, or there are no steps.
pub fn attention_pool(xs: &Tensor, scores: &Tensor, lengths: Option<&Tensor>) -> Result<Tensor> {
    let [batch, steps, width] = sizes(NAME, "input", xs.shape(), "(N, T, H)")?;
    if scores.dims() != [batch, steps] || steps == 0 || width == 0 {
        bail!("{NAME}: scores of shape {:?} for {:?}", scores.shape(), xs.shape());
    }
    let lengths = match lengths {
        Some(lengths) => lengths::read(NAME, "length", lengths, (batch, steps))?,
        None => vec![steps; batch],
    };
    let op = AttentionPool { lengths: lengths.into(), steps, width };
    fused::run(op, (batch, width), &[Some(xs), Some(scores)])
}

struct AttentionPool {
    lengths: Arc<[usize]>,
    steps: usize,
    width: usize,
}

impl FusedOp for AttentionPool {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0]);

    /// Saves the weights (N, T).
    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, scores] = inputs else { unreachable!("two inputs") };
        let mut saved = Pooled::new(scores.len());
        let rows = ys.par_chunks_mut(self.width).zip(xs.par_chunks(self.steps * self.width));
        let rows = rows.zip(scores.par_chunks(self.steps).zip(saved.par_chunks_mut(self.steps)));
        let rows = rows.zip(&self.lengths[..]);
        for_each(worth_threads(xs.len()), rows, |(((y, xs), (scores, weights)), &length)| {
            y.fill(T::zero());
            weights.fill(T::zero());
            if length == 0 {
                return;
            }
            let weights = &mut weights[..length];
            let (_, sum) = exp_into(&scores[..length], weights);
            simd(
                #[inline(always)]
                || {
                    for (weight, x) in weights.iter_mut().zip(xs.chunks_exact(self.width)) {
                        *weight /= sum;
                        y.iter_mut().zip(x).for_each(|(y, &x)| *y += *weight * x);
                    }
                },
            );
        });
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, saved, dys, mut grads, .. } = pass;
        let (xs, dys, size) = (inputs[0], &*dys, self.steps * self.width);
        let weights = saved.par_chunks(self.steps).zip(dys.par_chunks(self.width));
        if let Some(dscores) = grads.take(1) {
            let rows = dscores.par_chunks_mut(self.steps).zip(xs.par_chunks(size));
            let rows = rows.zip(weights.clone()).zip(&self.lengths[..]);
            for_each(worth_threads(xs.len()), rows, |(((ds, xs), (weights, dy)), &length)| {
                ds.fill(T::zero());
                let ds = &mut ds[..length];
                simd(
                    #[inline(always)]
                    || {
                        for (d, x) in ds.iter_mut().zip(xs.chunks_exact(self.width)) {
                            *d = sum_of(x, dy, |x, dy| x * dy);
                        }
                    },
                );
                let mut mean = T::zero();
                ds.iter().zip(weights).for_each(|(&d, &weight)| mean += d * weight);
                ds.iter_mut().zip(weights).for_each(|(d, &weight)| *d = weight * (*d - mean));
            });
        }
        if let Some(dxs) = grads.take(0) {
            let rows = dxs.par_chunks_mut(size).zip(weights);
            for_each(worth_threads(xs.len()), rows, |(dxs, (weights, dy))| {
                simd(
                    #[inline(always)]
                    || {
                        for (dx, &weight) in dxs.chunks_exact_mut(self.width).zip(weights) {
                            dx.iter_mut().zip(dy).for_each(|(dx, &dy)| *dx = weight * dy);
                        }
                    },
                );
            });
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(scores)] = inputs else { unreachable!("two inputs") };
        // An empty sequence has the softmax of equal scores first, because that of no scores would be NaN.
        let wide = masked_fill(&fused::widen(scores)?, &self.mask(|length, _| length == 0)?, 0.0)?;
        let hidden = self.mask(|length, step| length > 0 && step >= length)?;
        let weights = shifted(&masked_fill(&wide, &hidden, f64::NEG_INFINITY)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.unsqueeze(2)?;
        let padding = self.mask(|length, step| step >= length)?.unsqueeze(2)?;
        let counted = masked_fill(&fused::widen(xs)?, &padding, 0.0)?;
        counted.broadcast_mul(&weights)?.sum(1)?.to_dtype(xs.dtype())
    }
}

impl AttentionPool {
    /// 1 (N, T) where `f` of the length and of the step is true.
    fn mask(&self, f: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
        let row = |&length| (0..self.steps).map(move |step| (length, step));
        let steps = self.lengths.iter().flat_map(row);
        let mask = steps.map(|(length, step)| u8::from(f(length, step))).collect();
        Tensor::from_vec::<_, u8>(mask, (self.lengths.len(), self.steps), &Device::Cpu)
    }
}
