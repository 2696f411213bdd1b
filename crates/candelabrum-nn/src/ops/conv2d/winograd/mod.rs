//! 3 × 3 convolutions with stride 1 by Winograd's minimal filtering, F(2 × 2, 3 × 3) (Lavin and Gray,
//! *Fast Algorithms for Convolutional Neural Networks*, CVPR 2016, arXiv:1509.09308).
//!
//! The result is divided into tiles of 2 × 2 pixels. A tile depends on 4 × 4 pixels `d` of the image.
//! Transformed, the convolution is one product for each of 16 points, with one multiplication per
//! tile, point and pair of channels: 16 for 4 pixels instead of 36.
//!
//! ```text
//! forward    U = G g Gᵀ   V = Bᵀ d B   M[point] = U[point] V[point]   y = Aᵀ M A
//! backward   dx           the same with dz for x, and for the kernels turned by 180°
//!            dg = Gᵀ dU G   dU[point] = D[point] V[point]ᵀ   D = A dz Aᵀ
//!
//!     | 1  0 -1  0 |        | 1    0    0  |         | 1  1  1  0 |
//! Bᵀ =| 0  1  1  0 |    G = | 1/2  1/2 1/2 |    Aᵀ = | 0  1 -1 -1 |
//!     | 0 -1  1  0 |        | 1/2 -1/2 1/2 |
//!     | 0  1  0 -1 |        | 0    0    1  |
//! ```
//!
//! A kernel turned by 180° has the points of the kernel in another order, because a reversed line
//! exchanges the first and the last row of `G` and keeps the others. So the backward by the input
//! transforms the weights in the same way, and takes the points in another order (`tiles.rs`).
//!
//! Rounding: there are fewer and shorter sums than in the plain convolution, but the transforms add numbers
//! of similar size. docs/log/2026-11-23-convolution.md has the measured errors.

mod bf16;
mod channels;
mod images;
mod point_matrices;
mod tiles;
mod transformed_weights;
mod weights;

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use self::channels::ChannelsLast;
use self::images::{Halves, transform_inputs, transform_outputs};
use self::point_matrices::PointMatrices;
use self::tiles::{POINTS, WinogradProblem};
use self::transformed_weights::TransformedWeights;
use super::conv::{Conv, Gradients, each_share, elements};
use super::geometry::Geometry;
use crate::kernels::float::Float;
use crate::kernels::gemm::{
    LeftMatrix, MatrixRows, Product, ProductSize, dispatch, rows_of_a_tile,
};
use crate::kernels::product_precision;
use candelabrum_memory::thread_pool;

/// Tiles whose transforms are in the cache at the same time: whole tiles of the product on each
/// instruction set.
const BLOCK: usize = 96;

/// Fewer channels leave the product too little work for its transforms.
const FEWEST_CHANNELS: usize = 16;

/// Whether this algorithm computes a convolution of this geometry.
pub(super) fn applies(geometry: &Geometry) -> bool {
    let &Geometry { kernel, stride, dilation, groups, padding, .. } = geometry;
    kernel == (3, 3)
        && stride == (1, 1)
        && dilation == (1, 1)
        && groups == 1
        && padding.0 <= 2
        && padding.1 <= 2
        && !geometry.is_cropped()
        && geometry.in_channels.min(geometry.out_channels) >= FEWEST_CHANNELS
}

impl<T: Float> Conv<'_, T> {
    fn problem(&self) -> WinogradProblem {
        let &Geometry { in_channels, out_channels, in_size, out_size, padding, .. } = self.geometry;
        WinogradProblem { in_channels, out_channels, in_size, out_size, padding }
    }

    pub(super) fn forward_by_winograd(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T]) {
        let problem = self.problem();
        convolve(problem, &TransformedWeights::new(self.weight, &problem, false), xs, ys);
        if bias.is_some() || self.activation.is_some() {
            let finish = |y: &mut [T]| self.finish(y, bias, problem.out_pixels());
            thread_pool::for_each(ys.par_chunks_mut(self.geometry.out_image()), finish);
        }
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_by_winograd(
        &self,
        xs: &[T],
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        let problem = self.problem();
        if let Some(dw) = dw {
            weight_gradient(problem, xs, dys, dw);
        }
        if let Some(dxs) = dxs {
            let kernels = TransformedWeights::new(self.weight, &problem, true);
            convolve(problem.backward(), &kernels, dys, dxs);
        }
    }
}

/// Computes `ys` from `xs`. The threads share the images.
fn convolve<T: Float>(
    problem: WinogradProblem,
    kernels: &TransformedWeights<T>,
    xs: &[T],
    ys: &mut [T],
) {
    let (from, to) =
        (problem.in_channels * problem.in_pixels(), problem.out_channels * problem.out_pixels());
    each_share(true, (ys, to), |images, ys| {
        let xs = &xs[elements(images, from)];
        dispatch(WinogradConvolution { problem, kernels, xs, ys });
    });
}

struct WinogradConvolution<'a, T: Float> {
    problem: WinogradProblem,
    kernels: &'a TransformedWeights<T>,
    xs: &'a [T],
    ys: &'a mut [T],
}

impl<T: Float> WithSimd for WinogradConvolution<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { problem, kernels, xs, ys } = self;
        let kernels = match kernels {
            TransformedWeights::F32(kernels) => kernels,
            TransformedWeights::Bf16(kernels) => {
                return kernels.convolve::<T, S>(simd, &problem, xs, ys);
            }
        };
        let &WinogradProblem { in_channels, out_channels, .. } = &problem;
        let images = ys.len() / (out_channels * problem.out_pixels());
        let tiles = images * problem.tiles_per_image();
        let rows = out_channels.next_multiple_of(rows_of_a_tile::<S>());
        let mut halves = Halves::new::<S>(&problem);
        let mut inputs = PointMatrices::new(in_channels, BLOCK);
        let mut results = PointMatrices::new(rows, BLOCK);
        for first in (0..tiles).step_by(BLOCK) {
            let block = first..tiles.min(first + BLOCK);
            let all = 0..in_channels;
            transform_inputs(simd, &problem, xs, all, block.clone(), &mut halves, &mut inputs);
            let size = ProductSize { rows: out_channels, depth: in_channels, columns: block.len() };
            for point in 0..POINTS {
                let (left, right) = (kernels.left(point), inputs.of(point));
                let out = results.of_mut(point);
                simd.vectorize(Product { size, left, right, out, add: false });
            }
            transform_outputs::<T, S>(simd, &problem, &results, 0..out_channels, block, ys);
        }
    }
}

/// Writes the gradient of the weight. The threads share the output channels.
fn weight_gradient<T: Float>(problem: WinogradProblem, xs: &[T], dzs: &[T], dw: &mut [T]) {
    let kernels = problem.in_channels * 9;
    let channels = problem.out_channels.div_ceil(thread_pool::threads()).next_multiple_of(8);
    thread_pool::for_each(dw.par_chunks_mut(channels * kernels).enumerate(), |(number, dw)| {
        let first = number * channels;
        let channels = first..first + dw.len() / kernels;
        dispatch(WinogradWeightGradient { problem, xs, dzs, channels, dw });
    });
}

/// The gradient of the weights of some output channels.
struct WinogradWeightGradient<'a, T> {
    problem: WinogradProblem,
    xs: &'a [T],
    dzs: &'a [T],
    channels: Range<usize>,
    dw: &'a mut [T],
}

/// Tiles of one product of [`WinogradWeightGradient`].
const DEPTH: usize = 128;

impl<T: Float> WithSimd for WinogradWeightGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { problem, xs, dzs, channels, dw } = self;
        let lanes = T::lanes::<S>();
        let per_image = problem.tiles_per_image();
        let (from, to) = (
            problem.in_channels * problem.in_pixels(),
            problem.out_channels * problem.out_pixels(),
        );
        let columns = problem.in_channels.next_multiple_of(lanes);
        let rows = channels.len().next_multiple_of(rows_of_a_tile::<S>());
        let mut sums = PointMatrices::new(rows, columns);
        if let Some(instructions) = product_precision::bf16::<T>() {
            bf16::add_gradients(simd, instructions, &problem, (xs, dzs), &channels, &mut sums);
            return weights::gradient(&sums, problem.in_channels, dw);
        }
        let mut left = PointMatrices::new(DEPTH, rows.next_multiple_of(lanes));
        let mut right = PointMatrices::new(DEPTH, columns);
        let mut add = false;
        let together = DEPTH.div_ceil(per_image);
        for (xs, dzs) in xs.chunks(together * from).zip(dzs.chunks(together * to)) {
            let inputs = ChannelsLast::of_inputs::<S>(&problem, xs);
            let gradients = ChannelsLast::of_outputs::<S>(&problem, dzs, &channels);
            let tiles = xs.len() / from * per_image;
            for first in (0..tiles).step_by(DEPTH) {
                let block = first..tiles.min(first + DEPTH);
                channels::transform_inputs(simd, &problem, &inputs, block.clone(), &mut right);
                channels::transform_gradients(simd, &problem, &gradients, block.clone(), &mut left);
                let size = ProductSize {
                    rows: channels.len(),
                    depth: block.len(),
                    columns: problem.in_channels,
                };
                for point in 0..POINTS {
                    let MatrixRows { data, step } = left.of(point);
                    let left = LeftMatrix::Columns { data, step };
                    let (right, out) = (right.of(point), sums.of_mut(point));
                    simd.vectorize(Product { size, left, right, out, add });
                }
                add = true;
            }
        }
        weights::gradient(&sums, problem.in_channels, dw);
    }
}
