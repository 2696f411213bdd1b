//! Convolutions in which each group has one input channel (depthwise convolutions).
//!
//! There is no sum over channels, so nothing is a matrix product. In the layout of [`Phases`], an output
//! channel is a sum of as many runs of its input channel as the kernel has elements, and so is the
//! gradient of the input. The gradient of a kernel's element is a dot product of two runs. All of it
//! happens for one channel of one image at a time, which is in the nearest cache.

use std::ops::Range;

use candelabrum_memory::team;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::conv::{Conv, Gradients, each_share};
use super::geometry::Geometry;
use super::phases::{Phases, SLACK, has_small_strides};
use crate::ops::float::Float;
use crate::ops::gemm::dispatch;
use crate::ops::parallel::worth_threads;
use crate::ops::pool::Pooled;

/// Whether each group has one input channel, and strides are small.
pub(super) fn applies(geometry: &Geometry) -> bool {
    geometry.groups == geometry.in_channels && geometry.groups > 1 && has_small_strides(geometry)
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward_by_channels(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T]) {
        let (geometry, weight) = (self.geometry, self.weight);
        let threads = worth_threads(ys.len());
        each_share(threads, (xs, geometry.in_image()), (ys, geometry.out_image()), |xs, ys| {
            dispatch(Forward { geometry, weight, xs, ys });
            for y in ys.chunks_exact_mut(geometry.out_image()) {
                self.finish(y, bias, geometry.out_pixels());
            }
        });
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_by_channels(
        &self,
        xs: &[T],
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let (geometry, weight) = (self.geometry, self.weight);
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        if let Some(dw) = dw {
            let channels = geometry.in_channels.div_ceil(team::threads());
            let part = channels * dw.len() / geometry.in_channels;
            let dys = &*dys;
            team::for_each(dw.par_chunks_mut(part).enumerate(), |(number, dw)| {
                let end = ((number + 1) * channels).min(geometry.in_channels);
                let channels = number * channels..end;
                dispatch(WeightGradient { geometry, xs, dys, channels, dw });
            });
        }
        if let Some(dxs) = dxs {
            let threads = worth_threads(dxs.len());
            each_share(
                threads,
                (dys, geometry.out_image()),
                (dxs, geometry.in_image()),
                |dys, dxs| {
                    dispatch(InputGradient { geometry, weight, dys, dxs });
                },
            );
        }
    }
}

/// Some images.
struct Forward<'a, T> {
    geometry: &'a Geometry,
    weight: &'a [T],
    xs: &'a [T],
    ys: &'a mut [T],
}

impl<T: Float> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, weight, xs, ys } = self;
        let phases = Phases::new(geometry);
        let offsets = phases.offsets();
        let mut channel = Pooled::zeros(phases.channel() + SLACK);
        let mut rows = Pooled::new(phases.outputs() + SLACK);
        let outputs = ys.chunks_exact_mut(geometry.out_pixels() * geometry.group_channels());
        let mut kernels = weight.chunks_exact(offsets.len()).cycle();
        for (x, ys) in xs.chunks_exact(geometry.in_size.0 * geometry.in_size.1).zip(outputs) {
            phases.divide(x, &mut channel);
            for y in ys.chunks_exact_mut(geometry.out_pixels()) {
                let kernel = kernels.next().unwrap_or_default();
                let len = phases.outputs();
                let terms = Terms { weight: kernel, offsets: &offsets, from: &channel };
                terms.sum(simd, &mut rows, len, false);
                phases.narrow(&rows, y);
            }
        }
    }
}

/// Runs of `from` with their weights.
#[derive(Clone, Copy)]
struct Terms<'a, T> {
    weight: &'a [T],
    /// The first element of each run.
    offsets: &'a [usize],
    from: &'a [T],
}

impl<T: Float> Terms<'_, T> {
    /// `out = sum of weight · run`, or `out += ...` if `add`, for `len` elements and a few behind them.
    #[inline(always)]
    fn sum<S: Simd>(self, simd: S, out: &mut [T], len: usize, add: bool) {
        let lanes = T::lanes::<S>();
        for at in (0..len).step_by(VECTORS * lanes) {
            let out = &mut T::vectors_mut::<S>(&mut out[at..])[..VECTORS];
            let mut sums = [T::zero_vector(simd); VECTORS];
            if add {
                sums.copy_from_slice(out);
            }
            for (&weight, &offset) in self.weight.iter().zip(self.offsets) {
                let weight = T::splat(simd, weight);
                let run = &T::vectors::<S>(&self.from[offset + at..])[..VECTORS];
                for (sum, &x) in sums.iter_mut().zip(run) {
                    *sum = T::times_plus(simd, weight, x, *sum);
                }
            }
            out.copy_from_slice(&sums);
        }
    }
}

/// Vectors of one sum: as many additions are under way at the same time.
const VECTORS: usize = 4;

/// The gradients of some images.
struct InputGradient<'a, T> {
    geometry: &'a Geometry,
    weight: &'a [T],
    dys: &'a [T],
    dxs: &'a mut [T],
}

impl<T: Float> WithSimd for InputGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, weight, dys, dxs } = self;
        let phases = Phases::new(geometry);
        let offsets = phases.offsets();
        let mut channel = Pooled::new(phases.channel() + SLACK);
        let mut rows = Pooled::zeros(phases.outputs() + SLACK);
        let outputs = dys.chunks_exact(geometry.out_pixels() * geometry.group_channels());
        let mut kernels = weight.chunks_exact(offsets.len()).cycle();
        for (dx, dys) in dxs.chunks_exact_mut(geometry.in_size.0 * geometry.in_size.1).zip(outputs)
        {
            channel.fill(T::zero());
            for dy in dys.chunks_exact(geometry.out_pixels()) {
                phases.widen(dy, &mut rows);
                let kernel = kernels.next().unwrap_or_default();
                for (weight, &offset) in kernel.chunks_exact(1).zip(&offsets) {
                    let run = Terms { weight, offsets: &[0], from: &rows };
                    run.sum(simd, &mut channel[offset..], phases.outputs(), true);
                }
            }
            phases.join(&channel, dx);
        }
    }
}

/// The gradient of the kernels of some input channels, over all images.
struct WeightGradient<'a, T> {
    geometry: &'a Geometry,
    xs: &'a [T],
    dys: &'a [T],
    channels: Range<usize>,
    dw: &'a mut [T],
}

impl<T: Float> WithSimd for WeightGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, xs, dys, channels, dw } = self;
        let phases = Phases::new(geometry);
        let offsets = phases.offsets();
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let per_channel = geometry.out_pixels() * geometry.group_channels();
        let mut channel = Pooled::zeros(phases.channel() + SLACK);
        let mut rows = Pooled::zeros(phases.outputs() + SLACK);
        dw.fill(T::zero());
        let images =
            xs.chunks_exact(geometry.in_image()).zip(dys.chunks_exact(geometry.out_image()));
        for (xs, dys) in images {
            let mut kernels = dw.chunks_exact_mut(offsets.len());
            for number in channels.clone() {
                phases.divide(&xs[number * pixels..][..pixels], &mut channel);
                let dys = &dys[number * per_channel..][..per_channel];
                for (dy, dw) in dys.chunks_exact(geometry.out_pixels()).zip(&mut kernels) {
                    phases.widen(dy, &mut rows);
                    for (dw, &offset) in dw.iter_mut().zip(&offsets) {
                        *dw += dot(simd, &rows, &channel[offset..], phases.outputs());
                    }
                }
            }
        }
    }
}

/// The sum of the products of `len` elements. Behind them `a` has zeros, and `b` has numbers.
#[inline(always)]
fn dot<T: Float, S: Simd>(simd: S, a: &[T], b: &[T], len: usize) -> T {
    let lanes = T::lanes::<S>();
    let mut sums = [T::zero_vector(simd); VECTORS];
    for at in (0..len).step_by(VECTORS * lanes) {
        let (a, b) = (T::vectors::<S>(&a[at..]), T::vectors::<S>(&b[at..]));
        for (sum, (&a, &b)) in sums.iter_mut().zip(a[..VECTORS].iter().zip(&b[..VECTORS])) {
            *sum = T::times_plus(simd, a, b, *sum);
        }
    }
    let [a, b, c, d] = sums;
    let sum = T::plus(simd, T::plus(simd, a, b), T::plus(simd, c, d));
    T::total(simd, sum)
}
