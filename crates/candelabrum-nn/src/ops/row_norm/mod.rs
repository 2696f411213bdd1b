//! Layer normalisation (Ba, Kiros and Hinton 2016, arXiv:1607.06450) and root-mean-square
//! normalisation (Zhang and Sennrich, NeurIPS 2019, arXiv:1910.07467), row by row.
//!
//! ```text
//! layer_norm   m = mean(x)   r = 1 / sqrt(mean((x - m)^2) + eps)   h = (x - m) r   y = w h + b
//! rms_norm     m = 0         r = 1 / sqrt(mean(x^2) + eps)         h = x r         y = w h
//! backward     g = dy w      dx = r (g - mean(g) - h mean(g h))    dw = sum(dy h)  db = sum(dy)
//! ```
//!
//! `mean(g)` is subtracted only if a mean was subtracted in the forward. A row stays in the cache:
//! forward and backward are one pass over memory each. The gradients of weight and bias are summed
//! in parts of rows. The number of parts does not depend on the threads, and the parts are added in
//! order.

mod gpu;

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::moments::{LaneSums, Moments, moments};
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::row_scale::RowScale;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// The maximum number of parts of the sums over rows.
const PARTS: usize = 16;

/// Brings every row to mean 0 and variance 1, scales it by `weight` and adds `bias`.
///
/// # Shapes
///
/// `xs` (.., R) where R is `row`, one dimension or several; `weight` and `bias` (R) -> (.., R).
///
/// # Errors
///
/// If shapes or dtypes do not fit together, the dtype is no float, or `eps` is negative.
pub fn layer_norm(
    xs: &Tensor,
    row: &[usize],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    RowNorm::<true>::run(xs, row, weight, bias, eps)
}

/// Brings every row to a mean square of 1 and scales it by `weight`.
///
/// # Shapes
///
/// `xs` (.., R) where R is `row`, one dimension or several; `weight` (R) -> (.., R).
///
/// # Errors
///
/// Those of [`layer_norm`].
pub fn rms_norm(xs: &Tensor, row: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    RowNorm::<false>::run(xs, row, weight, None, eps)
}

/// `CENTRED`: the mean is subtracted.
pub(super) struct RowNorm<const CENTRED: bool> {
    pub(super) len: usize,
    pub(super) eps: f64,
}

impl<const CENTRED: bool> RowNorm<CENTRED> {
    fn run(
        xs: &Tensor,
        row: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let name = Self::NAME;
        if row.is_empty() || !xs.dims().ends_with(row) {
            bail!("{name}: input of shape {:?} for rows of {row:?}", xs.shape());
        }
        for (what, tensor) in [("weight", weight), ("bias", bias)] {
            if let Some(tensor) = tensor.filter(|tensor| tensor.dims() != row) {
                bail!("{name}: {what} of shape {:?} for rows of {row:?}", tensor.shape());
            }
        }
        if eps.is_nan() || eps < 0.0 {
            bail!("{name}: eps {eps} is not a small positive number");
        }
        let len = row.iter().product();
        fused::run(Self { len, eps }, xs.shape(), &[Some(xs), weight, bias])
    }
}

impl<const CENTRED: bool> FusedOp for RowNorm<CENTRED> {
    const NAME: &'static str = if CENTRED { "layer_norm" } else { "rms_norm" };
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let len = self.len.max(1);
        let mut saved = Pooled::new(ys.len() / len * RowScale::<T>::LEN);
        let run = |((x, y), saved): ((&[T], &mut [T]), &mut [T])| {
            simd(
                #[inline(always)]
                || {
                    let scale = self.scale(x);
                    let pairs = y.iter_mut().zip(x);
                    match (weight, bias) {
                        ([], []) => pairs.for_each(|(y, &x)| *y = scale.at(x)),
                        (weight, []) => {
                            pairs.zip(weight).for_each(|((y, &x), &w)| *y = scale.at(x) * w);
                        }
                        ([], bias) => {
                            pairs.zip(bias).for_each(|((y, &x), &b)| *y = scale.at(x) + b);
                        }
                        (weight, bias) => {
                            let triples = pairs.zip(weight).zip(bias);
                            triples.for_each(|(((y, &x), &w), &b)| *y = scale.at(x) * w + b);
                        }
                    }
                    scale.save(saved);
                },
            );
        };
        let threads = worth_threads(ys.len());
        let records = saved.par_chunks_mut(RowScale::<T>::LEN);
        for_each(threads, xs.par_chunks(len).zip(ys.par_chunks_mut(len)).zip(records), run);
        Ok(saved)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let &[xs, weight, _] = pass.inputs else { unreachable!("three inputs") };
        let (dxs, dw, db) = (pass.grads.take(0), pass.grads.take(1), pass.grads.take(2));
        if pass.dys.is_empty() {
            dw.into_iter().chain(db).for_each(|gradient| gradient.fill(T::zero()));
            return Ok(());
        }
        let (dys, saved, len) = (&*pass.dys, pass.saved, self.len);
        let dxs = dxs.unwrap_or_default();
        let sums = dw.is_some() || db.is_some();
        let rows = dys.len() / len;
        let part = rows.div_ceil(PARTS);
        let parts = rows.div_ceil(part);
        // If the input needs no gradient, its parts are empty.
        let mut dx_parts: Vec<&mut [T]> = dxs.chunks_mut(part * len).collect();
        dx_parts.resize_with(parts, Default::default);
        let width = if sums { 2 * len } else { 1 };
        let mut partial = Pooled::new(parts * width);
        let run = |(number, (dxs, partial)): (usize, (&mut [T], &mut [T]))| {
            let first = number * part;
            let last = (first + part).min(rows);
            let sums = sums.then(|| {
                partial.fill(T::zero());
                partial.split_at_mut(len)
            });
            let (dw, db) = sums.unwrap_or_default();
            for row in first..last {
                let (x, dy) = (&xs[row * len..][..len], &dys[row * len..][..len]);
                let mut dx = dxs.get_mut((row - first) * len..).and_then(|dx| dx.get_mut(..len));
                let scale = RowScale::load(&saved[row * RowScale::<T>::LEN..]);
                simd(
                    #[inline(always)]
                    || {
                        if let Some(dx) = &mut dx {
                            Self::input_gradient(x, dy, weight, scale, dx);
                        }
                        for (((dw, db), &x), &dy) in dw.iter_mut().zip(&mut *db).zip(x).zip(dy) {
                            *dw += dy * scale.at(x);
                            *db += dy;
                        }
                    },
                );
            }
        };
        let items = dx_parts.into_par_iter().zip(partial.par_chunks_mut(width)).enumerate();
        for_each(worth_threads(dys.len()), items, run);
        for (gradient, start) in [(dw, 0), (db, len)] {
            let Some(gradient) = gradient else { continue };
            gradient.fill(T::zero());
            partial.chunks(width).for_each(|part| add_assign(gradient, &part[start..][..len]));
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), weight, bias] = inputs else { unreachable!("three inputs") };
        let rows = xs.elem_count() / self.len;
        let mut h = fused::widen(xs)?.reshape((rows, self.len))?;
        if CENTRED {
            // In two steps, because the mean of large numbers is rounded. The first step subtracts
            // a constant, on which the result does not depend.
            h = h.broadcast_sub(&h.detach().mean_keepdim(1)?)?;
            h = h.broadcast_sub(&h.mean_keepdim(1)?)?;
        }
        let mut ys = h.broadcast_div(&(h.sqr()?.mean_keepdim(1)? + self.eps)?.sqrt()?)?;
        if let Some(weight) = weight {
            ys = ys.broadcast_mul(&fused::widen(weight)?.reshape(self.len)?)?;
        }
        if let Some(bias) = bias {
            ys = ys.broadcast_add(&fused::widen(bias)?.reshape(self.len)?)?;
        }
        ys.to_dtype(xs.dtype())
    }
}

impl<const CENTRED: bool> RowNorm<CENTRED> {
    #[inline(always)]
    fn scale<T: Float>(&self, x: &[T]) -> RowScale<T> {
        let moments = if CENTRED {
            moments(std::iter::once(x), x.len())
        } else {
            let mut squares = LaneSums::new();
            squares.add(x, x, |x, _| [x * x]);
            let [squares] = squares.totals();
            Moments { shift: T::zero(), rest: 0.0, variance: squares / x.len() as f64 }
        };
        RowScale::new(moments, self.eps)
    }

    #[inline(always)]
    fn input_gradient<T: Float>(x: &[T], dy: &[T], weight: &[T], scale: RowScale<T>, dx: &mut [T]) {
        // g = dy w, stored in place of dx. The second pass finds it in the cache.
        if weight.is_empty() {
            dx.copy_from_slice(dy);
        } else {
            for ((g, &dy), &w) in dx.iter_mut().zip(dy).zip(weight) {
                *g = dy * w;
            }
        }
        let mut sums = LaneSums::new();
        sums.add(x, dx, |x, g| [g, g * scale.at(x)]);
        let count = x.len() as f64;
        let [sum, dot] = sums.totals();
        let mean = if CENTRED { T::narrow(sum / count) } else { T::zero() };
        let slope = T::narrow(dot / count);
        for (g, &x) in dx.iter_mut().zip(x) {
            *g = scale.inverse * ((*g - mean) - scale.at(x) * slope);
        }
    }
}
