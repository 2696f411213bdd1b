//! Normalisation of each value by its neighbours in other channels at the same pixel (Krizhevsky, Sutskever and
//! Hinton, *ImageNet Classification with Deep Convolutional Neural Networks*, NeurIPS 2012, section 3.3).
//!
//! With the window of `n` channels around channel `c`, from `c - n / 2` to `c + (n - 1) / 2`:
//!
//! ```text
//! forward    d_c = k + alpha / n  sum of x^2 over the window of c       y = x d^-beta
//! backward   t = dy x d^(-beta - 1)
//!            dx_c = dy d^-beta - 2 alpha beta / n  x_c  (sum of t over the channels whose windows hold c)
//! ```
//!
//! The division of `alpha` by `n` is PyTorch's and Caffe's. The paper does not divide.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "local_response_norm";

/// The constants of [`local_response_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalResponseNormConfig {
    /// The number of channels of a window.
    pub size: usize,
    /// The factor of the mean square of a window.
    pub alpha: f64,
    /// The exponent of the divisor.
    pub beta: f64,
    /// The divisor where all values are 0.
    pub k: f64,
}

impl LocalResponseNormConfig {
    /// PyTorch's constants for windows of `size` channels: alpha 1e-4, beta 0.75, k 1.
    pub fn new(size: usize) -> Self {
        Self { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    /// The paper's normalisation: windows of 5 channels, beta 0.75, k 2, and alpha 1e-4, which here is 5e-4
    /// because it is divided by the size.
    pub fn of_the_paper() -> Self {
        Self { size: 5, alpha: 5e-4, beta: 0.75, k: 2.0 }
    }
}

/// Divides each value by a power of `k` plus `alpha` times the mean square of its neighbours in `size` channels,
/// PyTorch's `local_response_norm`. Channels beyond the first and the last one count as zeros.
///
/// # Shapes
///
/// `xs` (N, C, ..) -> (N, C, ..)
///
/// # Errors
///
/// If `xs` has no channels' dimension, a window has no channels, `k` is not positive, `alpha` is negative,
/// `beta` is not finite, or the dtype is no float.
pub fn local_response_norm(xs: &Tensor, config: LocalResponseNormConfig) -> Result<Tensor> {
    let &[_, channels, ref pixels @ ..] = xs.dims() else {
        bail!("{NAME}: input of shape {:?}, expected (N, C, ..)", xs.shape())
    };
    let LocalResponseNormConfig { size, alpha, beta, k } = config;
    let is_usable = size > 0 && k > 0.0 && k.is_finite() && alpha >= 0.0 && alpha.is_finite();
    if !is_usable || !beta.is_finite() {
        bail!(
            "{NAME}: size and k must be positive, alpha not negative, all finite, got {config:?}"
        );
    }
    let op = LocalResponseOperation { channels, plane: pixels.iter().product(), config };
    fused::run(op, xs.shape(), &[Some(xs)])
}

struct LocalResponseOperation {
    channels: usize,
    /// The number of pixels of a channel.
    plane: usize,
    config: LocalResponseNormConfig,
}

impl LocalResponseOperation {
    /// The planes of a sample that the window of a plane holds. Planes are counted through all samples.
    fn window(&self, plane: usize) -> Range<usize> {
        let size = self.config.size;
        self.neighbours(plane, size / 2, (size - 1) / 2)
    }

    /// The planes whose windows hold this plane.
    fn mirrored_window(&self, plane: usize) -> Range<usize> {
        let size = self.config.size;
        self.neighbours(plane, (size - 1) / 2, size / 2)
    }

    fn neighbours(&self, plane: usize, before: usize, behind: usize) -> Range<usize> {
        let (sample, channel) = (plane / self.channels, plane % self.channels);
        let end = channel.saturating_add(behind).saturating_add(1).min(self.channels);
        sample * self.channels + channel.saturating_sub(before)..sample * self.channels + end
    }

    fn share(&self) -> f64 {
        self.config.alpha / self.config.size as f64
    }

    /// `to = values d^-beta`, with the divisors `d`.
    #[inline(always)]
    fn divide<T: Float>(&self, values: &[T], divisors: &[T], to: &mut [T]) {
        let triples = to.iter_mut().zip(values).zip(divisors);
        let beta = self.config.beta;
        // The exponent of the paper, which roots compute many times as fast.
        if (beta - 0.75).abs() < f64::EPSILON {
            triples.for_each(|((to, &value), &d)| {
                let root = d.sqrt();
                *to = value / (root * root.sqrt());
            });
        } else {
            let exponent = T::narrow(-beta);
            triples.for_each(|((to, &value), &d)| *to = value * d.powf(exponent));
        }
    }
}

impl FusedOp for LocalResponseOperation {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (xs, plane) = (inputs[0], self.plane.max(1));
        let mut divisors = Pooled::new(ys.len());
        let (share, k) = (T::narrow(self.share()), T::narrow(self.config.k));
        let run = |(number, (ys, divisors)): (usize, (&mut [T], &mut [T]))| {
            simd(
                #[inline(always)]
                || {
                    divisors.fill(T::zero());
                    for other in self.window(number) {
                        let others = &xs[other * plane..][..plane];
                        divisors.iter_mut().zip(others).for_each(|(d, &x)| *d += x * x);
                    }
                    divisors.iter_mut().for_each(|d| *d = *d * share + k);
                    self.divide(&xs[number * plane..][..plane], divisors, ys);
                },
            );
        };
        let planes = ys.par_chunks_mut(plane).zip(divisors.par_chunks_mut(plane)).enumerate();
        for_each(worth_threads(xs.len()), planes, run);
        Ok(divisors)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (xs, divisors, plane) = (pass.inputs[0], pass.saved, self.plane.max(1));
        let threads = worth_threads(xs.len());
        // dx becomes dy d^-beta, and dy becomes t.
        let planes = dxs.par_chunks_mut(plane).zip(pass.dys.par_chunks_mut(plane)).enumerate();
        for_each(threads, planes, |(number, (dxs, dys))| {
            let own = number * plane..number * plane + dys.len();
            let (xs, divisors) = (&xs[own.clone()], &divisors[own]);
            simd(
                #[inline(always)]
                || {
                    self.divide(dys, divisors, dxs);
                    for (((dy, &dx), &x), &d) in dys.iter_mut().zip(&*dxs).zip(xs).zip(divisors) {
                        *dy = dx * x / d;
                    }
                },
            );
        });
        let terms = &*pass.dys;
        let factor = T::narrow(-2.0 * self.config.beta * self.share());
        for_each(threads, dxs.par_chunks_mut(plane).enumerate(), |(number, dxs)| {
            let xs = &xs[number * plane..][..plane];
            simd(
                #[inline(always)]
                || {
                    for other in self.mirrored_window(number) {
                        let terms = &terms[other * plane..][..plane];
                        for ((dx, &x), &t) in dxs.iter_mut().zip(xs).zip(terms) {
                            *dx += factor * x * t;
                        }
                    }
                },
            );
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let (size, LocalResponseNormConfig { beta, k, .. }) = (self.config.size, self.config);
        let x = fused::widen(xs)?.reshape(((), self.channels, self.plane))?;
        let squares = x.sqr()?.pad_with_zeros(1, size / 2, (size - 1) / 2)?;
        let mut sum = squares.narrow(1, 0, self.channels)?;
        for first in 1..size {
            sum = (sum + squares.narrow(1, first, self.channels)?)?;
        }
        (x * sum.affine(self.share(), k)?.powf(-beta)?)?.to_dtype(xs.dtype())
    }
}
