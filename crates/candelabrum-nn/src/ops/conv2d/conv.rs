//! A convolution, which each algorithm computes in its own file.

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Geometry;
use crate::activation::Activation;
use crate::kernels::elementwise::{activate, activation_backward_in_blocks, bias_activation, sum};
use crate::kernels::float::Float;
use crate::kernels::matmul::Destination;
use crate::kernels::parallel::{for_each, worth_threads};
use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;

/// A convolution by a weight without elements that meet only padding.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a, T> {
    pub(super) geometry: &'a Geometry,
    /// (O, C / groups, KH, KW)
    pub(super) weight: &'a [T],
    pub(super) activation: Option<Activation>,
}

/// The places of the gradients. `None` for a gradient that is not needed.
pub(crate) struct Gradients<'a, T> {
    /// Of the images, (N, C, H, W).
    pub(crate) dxs: Option<&'a mut [T]>,
    /// Of the weight, (O, C / groups, KH, KW).
    pub(crate) dw: Option<&'a mut [T]>,
    /// Of the bias, (O).
    pub(crate) db: Option<&'a mut [T]>,
}

impl<T: Float> Conv<'_, T> {
    /// Adds the bias (O) to `ys`, some channels of results, and applies the activation. Each row of `row`
    /// elements is one output channel.
    pub(super) fn finish(&self, ys: &mut [T], bias: Option<&[T]>, row: usize) {
        let Some(bias) = bias else { return activate(ys, self.activation) };
        for (ys, &bias) in ys.chunks_exact_mut(row).zip(bias) {
            bias_activation(ys, bias, self.activation);
        }
    }

    /// Replaces the gradients `dys` of all results, (N, O, OH, OW), by those before the activation, which
    /// computes its derivative from `reference` of the same shape, and writes the gradient of the bias (O).
    pub(super) fn differentiate_result(
        &self,
        reference: &[T],
        dys: &mut [T],
        db: Option<&mut [T]>,
    ) {
        if let Some(activation) = self.activation {
            activation_backward_in_blocks(dys, reference, activation);
        }
        if let Some(db) = db {
            self.bias_gradient(dys, db, Destination::Overwrite);
        }
    }

    /// Writes or adds the gradient of the bias from that before the activation.
    pub(super) fn bias_gradient(&self, dzs: &[T], db: &mut [T], dst: Destination) {
        if dst == Destination::Overwrite {
            db.fill(T::zero());
        }
        add_channel_sums(dzs, self.geometry.out_pixels(), db);
    }
}

/// Adds to each number of `sums` the values of its channel in `dzs`, images of channels of so many pixels.
pub(crate) fn add_channel_sums<T: Float>(dzs: &[T], pixels: usize, sums: &mut [T]) {
    let image = sums.len() * pixels;
    let add = |(channel, total): (usize, &mut T)| {
        simd(
            #[inline(always)]
            || {
                for dz in dzs.chunks_exact(image) {
                    *total += sum(&dz[channel * pixels..][..pixels]);
                }
            },
        );
    };
    for_each(worth_threads(dzs.len()), sums.par_iter_mut().enumerate(), add);
}

/// Calls `f` with each thread's share of the images of `to`, which have so many elements, and their numbers.
/// Uses several threads if `threads`.
pub(super) fn each_share<T: Float>(
    threads: bool,
    (to, image): (&mut [T], usize),
    f: impl Fn(Range<usize>, &mut [T]) + Sync,
) {
    let images = to.len() / image;
    if !threads {
        return f(0..images, to);
    }
    let share = images.div_ceil(thread_pool::threads()).max(1);
    let shares = to.par_chunks_mut(share * image).enumerate();
    thread_pool::for_each(shares, |(number, to)| {
        let first = number * share;
        f(first..first + to.len() / image, to);
    });
}

/// The elements of some images, which have so many each.
pub(super) fn elements(images: Range<usize>, image: usize) -> Range<usize> {
    images.start * image..images.end * image
}
