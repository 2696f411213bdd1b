//! Group normalisation (Wu and He, ECCV 2018, arXiv:1803.08494). With as many groups as channels it is instance
//! normalisation (Ulyanov, Vedaldi and Lempitsky, 2016, arXiv:1607.08022).
//!
//! Per group of channels of one sample, with the `n` values of the group:
//!
//! ```text
//! forward    m = mean(x)   v = mean((x - m)^2)   r = 1 / sqrt(v + eps)   h = (x - m) r   y = w h + b
//! backward   g = dy w      dx = r (g - mean(g) - h mean(g h))
//!            dw = sum(dy h)    db = sum(dy), over samples and pixels
//! ```
//!
//! `w` and `b` are those of the channel. A group is processed while it is in the cache, so forward and backward
//! are one pass over memory each. The sums of each channel of each sample are kept apart and added in the order
//! of the samples.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::channel_line::ChannelLine;
use crate::kernels::float::Float;
use crate::kernels::moments::{LaneSums, moments};
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::row_scale::RowScale;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "group_norm";

/// Brings each of `groups` groups of channels of each sample to mean 0 and variance 1, scales each channel by
/// `weight` and adds `bias`.
///
/// # Shapes
///
/// `xs` (N, C, ..), `weight` and `bias` (C) -> (N, C, ..)
///
/// # Errors
///
/// If shapes or dtypes do not fit together, `groups` does not divide the channels, the dtype is no float, or
/// `eps` is negative.
pub fn group_norm(
    xs: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let &[_, channels, ref pixels @ ..] = xs.dims() else {
        bail!("{NAME}: input of shape {:?}, expected (N, C, ..)", xs.shape())
    };
    if groups == 0 || channels % groups != 0 {
        bail!("{NAME}: {channels} channels do not divide into {groups} groups");
    }
    for (what, tensor) in [("weight", weight), ("bias", bias)] {
        if let Some(tensor) = tensor.filter(|tensor| tensor.dims() != [channels]) {
            bail!("{NAME}: {what} of shape {:?} for {channels} channels", tensor.shape());
        }
    }
    if eps.is_nan() || eps < 0.0 {
        bail!("{NAME}: eps {eps} is not a small positive number");
    }
    let op = GroupNorm { channels, groups, plane: pixels.iter().product(), eps };
    fused::run(op, xs.shape(), &[Some(xs), weight, bias])
}

struct GroupNorm {
    channels: usize,
    groups: usize,
    /// The number of pixels of a channel.
    plane: usize,
    eps: f64,
}

impl GroupNorm {
    /// The number of channels of a group.
    fn width(&self) -> usize {
        self.channels / self.groups
    }

    /// The number of values of a group.
    fn count(&self) -> usize {
        self.width() * self.plane
    }

    /// The first channel of group `number`, counted through all samples.
    fn first_channel(&self, number: usize) -> usize {
        number % self.groups * self.width()
    }
}

impl FusedOp for GroupNorm {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        if ys.is_empty() {
            return Ok(Pooled::none());
        }
        let (count, plane) = (self.count(), self.plane);
        let mut saved = Pooled::new(ys.len() / count * RowScale::<T>::LEN);
        let groups = xs.par_chunks(count).zip(ys.par_chunks_mut(count));
        let groups = groups.zip(saved.par_chunks_mut(RowScale::<T>::LEN)).enumerate();
        for_each(worth_threads(xs.len()), groups, |(number, ((x, y), saved))| {
            let first = self.first_channel(number);
            simd(
                #[inline(always)]
                || {
                    let moments = moments(std::iter::once(x), count);
                    let planes = x.chunks_exact(plane).zip(y.chunks_exact_mut(plane));
                    for (channel, (x, y)) in (first..).zip(planes) {
                        let weight = weight.get(channel).copied().unwrap_or(T::one());
                        let bias = bias.get(channel).copied().unwrap_or(T::zero());
                        let line = ChannelLine::new(moments, self.eps, weight, bias);
                        y.iter_mut().zip(x).for_each(|(y, &x)| *y = line.at(x));
                    }
                    RowScale::new(moments, self.eps).save(saved);
                },
            );
        });
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, saved, dys, is_passed, mut grads, .. } = pass;
        let &[xs, weight, _] = inputs else { unreachable!("three inputs") };
        let (dxs, dw, db) = (grads.take(0), grads.take(1), grads.take(2));
        let has_dxs = is_passed || dxs.is_some();
        if dys.is_empty() {
            dw.into_iter().chain(db).for_each(|gradient| gradient.fill(T::zero()));
            return Ok(());
        }
        // The gradient of the input is computed in the place of that of the result.
        let gradients = match dxs {
            Some(dxs) => {
                in_blocks(dxs, |start, dxs| dxs.copy_from_slice(&dys[start..][..dxs.len()]));
                dxs
            }
            None => dys,
        };
        let (count, width) = (self.count(), self.width());
        let threads = worth_threads(gradients.len());
        // The sums of dy and dy h of each channel of each sample.
        let mut sums = Pooled::<f64>::new(gradients.len() / self.plane * 2);
        let groups = gradients.par_chunks_mut(count).zip(sums.par_chunks_mut(2 * width));
        for_each(threads, groups.enumerate(), |(number, (dy, sums))| {
            let x = &xs[number * count..][..count];
            let group = RowScale::load(&saved[number * RowScale::<T>::LEN..]);
            let weight = weight.get(self.first_channel(number)..).unwrap_or_default();
            simd(
                #[inline(always)]
                || self.differentiate(x, dy, weight, group, sums, has_dxs),
            );
        });
        for (gradient, number) in [(db, 0), (dw, 1)] {
            for (channel, gradient) in gradient.into_iter().flatten().enumerate() {
                let samples = sums.chunks_exact(2 * self.channels);
                let total: f64 = samples.map(|sums| sums[2 * channel + number]).sum();
                *gradient = T::narrow(total);
            }
        }
        Ok(())
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        Some(0)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), weight, bias] = inputs else { unreachable!("three inputs") };
        let groups = xs.elem_count() / self.count();
        let x = fused::widen(xs)?.reshape((groups, self.count()))?;
        // In two steps, because the mean of large numbers is rounded. The first step subtracts a constant, on
        // which the result does not depend.
        let x = x.broadcast_sub(&x.detach().mean_keepdim(1)?)?;
        let x = x.broadcast_sub(&x.mean_keepdim(1)?)?;
        let h = x.broadcast_div(&(x.sqr()?.mean_keepdim(1)? + self.eps)?.sqrt()?)?;
        let mut ys = h.reshape((groups / self.groups, self.channels, self.plane))?;
        if let Some(weight) = weight {
            ys = ys.broadcast_mul(&fused::widen(weight)?.reshape((self.channels, 1))?)?;
        }
        if let Some(bias) = bias {
            ys = ys.broadcast_add(&fused::widen(bias)?.reshape((self.channels, 1))?)?;
        }
        ys.to_dtype(xs.dtype())
    }
}

impl GroupNorm {
    /// Writes the sums of each channel of a group, and replaces the gradient `dy` of the result by that of the
    /// input `x`, if this is wanted. `weight` begins with the group's and may be empty.
    #[inline(always)]
    fn differentiate<T: Float>(
        &self,
        x: &[T],
        dy: &mut [T],
        weight: &[T],
        group: RowScale<T>,
        sums: &mut [f64],
        has_dxs: bool,
    ) {
        let (mut sum, mut dot) = (0.0, 0.0);
        let planes = x.chunks_exact(self.plane).zip(dy.chunks_exact(self.plane));
        for (channel, ((x, dy), sums)) in planes.zip(sums.chunks_exact_mut(2)).enumerate() {
            let mut totals = LaneSums::new();
            totals.add(x, dy, |x, dy| [dy, dy * group.at(x)]);
            let totals = totals.totals();
            let weight = weight.get(channel).map_or(1.0, |weight| weight.widen());
            sum += weight * totals[0];
            dot += weight * totals[1];
            sums.copy_from_slice(&totals);
        }
        if !has_dxs {
            return;
        }
        let count = x.len() as f64;
        let (mean, slope) = (T::narrow(sum / count), T::narrow(dot / count));
        let planes = x.chunks_exact(self.plane).zip(dy.chunks_exact_mut(self.plane));
        for (channel, (x, dy)) in planes.enumerate() {
            let weight = weight.get(channel).copied().unwrap_or(T::one());
            for (dy, &x) in dy.iter_mut().zip(x) {
                *dy = group.inverse * ((*dy * weight - mean) - group.at(x) * slope);
            }
        }
    }
}
