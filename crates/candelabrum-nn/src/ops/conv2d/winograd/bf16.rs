//! The products of the 16 points in bf16.
//!
//! The transforms are computed in f32, some channels or tiles at a time, and packed while they are in the
//! nearest caches. So the tiles of a block take half of the memory that they take in f32.

use std::ops::Range;

use pulp::Simd;

use super::channels::{self, ChannelsLast};
use super::images::{Halves, transform_inputs, transform_outputs};
use super::point_matrices::PointMatrices;
use super::tiles::{POINTS, WinogradProblem, point_of};
use super::weights;
use crate::kernels::float::Float;
use crate::kernels::gemm::MatrixRows;
use crate::kernels::gemm::bf16::{
    InstructionSet, Operand, OperandLines, PackedFactor, Starts, f32s, f32s_mut, product,
};
use crate::kernels::mat_mut::MatMut;

/// Tiles of a block.
const BLOCK: usize = 96;

/// Input channels that are transformed before they are packed.
const CHANNELS: usize = 8;

/// Output channels whose points are in the cache at the same time, and output channels whose kernels are
/// transformed before they are packed: whole groups of packed rows.
const ROWS: usize = 64;
const KERNELS: usize = 16;

/// Tiles of one product of the gradient of the weight, and those that are transformed before they are
/// packed.
const DEPTH: usize = 128;
const TILES: usize = 8;

/// The transformed weights, for each point.
pub(super) struct PackedWeights {
    instructions: InstructionSet,
    points: Vec<PackedFactor>,
}

impl PackedWeights {
    /// The transforms of the kernels `weight` (O, C, 3, 3) in f32.
    pub(super) fn new<T: Float>(
        instructions: InstructionSet,
        weight: &[T],
        problem: &WinogradProblem,
        turned: bool,
    ) -> Self {
        let (outputs, inputs) = (problem.out_channels, problem.in_channels);
        let (rows, depth) = if turned { (inputs, outputs) } else { (outputs, inputs) };
        let mut points: Vec<_> =
            (0..POINTS).map(|_| PackedFactor::left(instructions, rows, depth)).collect();
        let mut planes = PointMatrices::new(KERNELS, inputs);
        for (number, weight) in weight.chunks(KERNELS * inputs * 9).enumerate() {
            weights::transform_all(weight, inputs, &mut planes);
            let (first, some) = (number * KERNELS, weight.len() / (inputs * 9));
            for (point, points) in points.iter_mut().enumerate() {
                let lines = lines(planes.of(point_of(point, turned)));
                if turned {
                    let from = Operand::Across(lines);
                    points.pack_part(from, 0..inputs, 0..some, (0, first));
                } else {
                    let from = Operand::Along(lines);
                    points.pack_part(from, 0..some, 0..inputs, (first, 0));
                }
            }
        }
        Self { instructions, points }
    }

    /// Computes `ys` from `xs`.
    #[inline(always)]
    pub(super) fn convolve<T: Float, S: Simd>(
        &self,
        simd: S,
        problem: &WinogradProblem,
        xs: &[T],
        ys: &mut [T],
    ) {
        let &WinogradProblem { in_channels, out_channels, .. } = problem;
        let images = ys.len() / (out_channels * problem.out_pixels());
        let tiles = images * problem.tiles_per_image();
        let mut halves = Halves::new::<S>(problem);
        let mut inputs = PointMatrices::new(CHANNELS, BLOCK);
        let mut results = PointMatrices::new(ROWS, BLOCK);
        let mut points = packed_right(self.instructions, BLOCK, in_channels);
        for first in (0..tiles).step_by(BLOCK) {
            let block = first..tiles.min(first + BLOCK);
            points.iter_mut().for_each(|points| points.resize(block.len(), in_channels));
            for first in (0..in_channels).step_by(CHANNELS) {
                let some = first..in_channels.min(first + CHANNELS);
                let (count, tiles) = (some.len(), block.clone());
                transform_inputs(simd, problem, xs, some, tiles, &mut halves, &mut inputs);
                for (point, points) in points.iter_mut().enumerate() {
                    let from = Operand::Across(lines(inputs.of(point)));
                    let width = 0..block.len();
                    points.pack_part(from, width, 0..count, (0, first));
                }
            }
            for first in (0..out_channels).step_by(ROWS) {
                let some = first..out_channels.min(first + ROWS);
                for (point, (kernels, points)) in self.points.iter().zip(&points).enumerate() {
                    let out = matrix(results.of_mut(point), some.len(), block.len());
                    product((kernels, first), points, out, false);
                }
                transform_outputs::<T, S>(simd, problem, &results, some, block.clone(), ys);
            }
        }
    }
}

/// Writes the gradients of the transformed weights of some output channels.
#[inline(always)]
pub(super) fn add_gradients<T: Float, S: Simd>(
    simd: S,
    instructions: InstructionSet,
    problem: &WinogradProblem,
    (xs, dzs): (&[T], &[T]),
    channels: &Range<usize>,
    sums: &mut PointMatrices<T>,
) {
    let (inputs, outputs) = (problem.in_channels, channels.len());
    let per_image = problem.tiles_per_image();
    let (from, to) = (inputs * problem.in_pixels(), problem.out_channels * problem.out_pixels());
    let lanes = T::lanes::<S>();
    let mut some = PointMatrices::new(TILES, inputs.max(outputs).next_multiple_of(lanes));
    let mut left: Vec<_> =
        (0..POINTS).map(|_| PackedFactor::left(instructions, outputs, DEPTH)).collect();
    let mut right = packed_right(instructions, inputs, DEPTH);
    let mut add = false;
    let together = DEPTH.div_ceil(per_image);
    for (xs, dzs) in xs.chunks(together * from).zip(dzs.chunks(together * to)) {
        let images = ChannelsLast::of_inputs::<S>(problem, xs);
        let gradients = ChannelsLast::of_outputs::<S>(problem, dzs, channels);
        let tiles = xs.len() / from * per_image;
        for start in (0..tiles).step_by(DEPTH) {
            let block = start..tiles.min(start + DEPTH);
            left.iter_mut().for_each(|left| left.resize(outputs, block.len()));
            right.iter_mut().for_each(|right| right.resize(inputs, block.len()));
            for first in block.clone().step_by(TILES) {
                let tiles = first..block.end.min(first + TILES);
                let (count, at) = (tiles.len(), (0, first - block.start));
                channels::transform_inputs(simd, problem, &images, tiles.clone(), &mut some);
                for (point, right) in right.iter_mut().enumerate() {
                    let from = Operand::Across(lines(some.of(point)));
                    right.pack_part(from, 0..inputs, 0..count, at);
                }
                channels::transform_gradients(simd, problem, &gradients, tiles, &mut some);
                for (point, left) in left.iter_mut().enumerate() {
                    let from = Operand::Across(lines(some.of(point)));
                    left.pack_part(from, 0..outputs, 0..count, at);
                }
            }
            for (point, (left, right)) in left.iter().zip(&right).enumerate() {
                let out = matrix(sums.of_mut(point), outputs, inputs);
                product((left, 0), right, out, add);
            }
            add = true;
        }
    }
}

/// Space for a factor of each point.
fn packed_right(instructions: InstructionSet, width: usize, depth: usize) -> Vec<PackedFactor> {
    (0..POINTS).map(|_| PackedFactor::right(instructions, width, depth)).collect()
}

/// The rows of a plane, which are f32 where products are in bf16.
#[inline(always)]
fn lines<T: Float>(MatrixRows { data, step }: MatrixRows<&[T]>) -> OperandLines<'_, f32> {
    OperandLines { data: f32s(data), starts: Starts::Every(step) }
}

/// A plane as a result.
#[inline(always)]
fn matrix<T: Float>(
    MatrixRows { data, step }: MatrixRows<&mut [T]>,
    rows: usize,
    columns: usize,
) -> MatMut<'_, f32> {
    MatMut::strided(f32s_mut(data), rows, columns, step)
}
