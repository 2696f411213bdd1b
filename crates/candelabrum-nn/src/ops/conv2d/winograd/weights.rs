//! The transform of weights, `U = G g Gᵀ`, and that of their gradients, `dg = Gᵀ dU G`.

use candelabrum_memory::simd::simd;
use rayon::prelude::*;

use super::point_matrices::{PointMatrices, RowsMut};
use super::tiles::POINTS;
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};

/// Kernels that are transformed together.
const TOGETHER: usize = 16;

/// Rows that a thread transforms at a time.
const ROWS: usize = 16;

/// The elements of a 3 × 3 kernel.
const TAPS: usize = 9;

/// The transformed elements of some kernels: one array for each of the 16 points.
type Points<T> = [[T; TOGETHER]; POINTS];

/// Writes the transforms of the kernels `weight` (O, C, 3, 3) to `out`, (O × C) for each point. The threads
/// share the rows.
pub(super) fn transform_all<T: Float>(weight: &[T], channels: usize, out: &mut PointMatrices<T>) {
    let parts = out.in_rows(ROWS).into_par_iter().zip(weight.par_chunks(ROWS * channels * TAPS));
    for_each(worth_threads(weight.len()), parts, |(mut out, weight)| {
        simd(
            #[inline(always)]
            || transform(weight, channels, &mut out),
        );
    });
}

#[inline(always)]
fn transform<T: Float>(weight: &[T], channels: usize, out: &mut RowsMut<'_, T>) {
    for (row, weight) in weight.chunks_exact(channels * TAPS).enumerate() {
        for (number, weight) in weight.chunks(TOGETHER * TAPS).enumerate() {
            let mut taps = [[T::zero(); TOGETHER]; TAPS];
            for (i, kernel) in weight.chunks_exact(TAPS).enumerate() {
                for (taps, &w) in taps.iter_mut().zip(kernel) {
                    taps[i] = w;
                }
            }
            // Behind the last channel is space for a whole array.
            for (point, values) in points_of(&taps).iter().enumerate() {
                let to = out.rest_mut(point, row, number * TOGETHER);
                to[..TOGETHER].copy_from_slice(values);
            }
        }
    }
}

/// The reverse for gradients: writes those of the kernels `dw` (O, C, 3, 3) from those of their
/// transforms.
#[inline(always)]
pub(super) fn gradient<T: Float>(points: &PointMatrices<T>, channels: usize, dw: &mut [T]) {
    for (row, dw) in dw.chunks_exact_mut(channels * TAPS).enumerate() {
        for (number, dw) in dw.chunks_mut(TOGETHER * TAPS).enumerate() {
            let mut some = [[T::zero(); TOGETHER]; POINTS];
            for (point, some) in some.iter_mut().enumerate() {
                let from = points.rest(point, row, number * TOGETHER);
                some.copy_from_slice(&from[..TOGETHER]);
            }
            let taps = taps_of(&some);
            for (i, kernel) in dw.chunks_exact_mut(TAPS).enumerate() {
                for (w, taps) in kernel.iter_mut().zip(&taps) {
                    *w = taps[i];
                }
            }
        }
    }
}

#[inline(always)]
fn points_of<T: Float>(taps: &[[T; TOGETHER]; TAPS]) -> Points<T> {
    let mut points = [[T::zero(); TOGETHER]; POINTS];
    for i in 0..TOGETHER {
        let mut columns = [[T::zero(); 4]; 3];
        for x in 0..3 {
            columns[x] = points_of_line(taps[x][i], taps[3 + x][i], taps[6 + x][i]);
        }
        for y in 0..4 {
            let row = points_of_line(columns[0][y], columns[1][y], columns[2][y]);
            for x in 0..4 {
                points[4 * y + x][i] = row[x];
            }
        }
    }
    points
}

#[inline(always)]
fn points_of_line<T: Float>(a: T, b: T, c: T) -> [T; 4] {
    let half = T::narrow(0.5);
    [a, half * (a + b + c), half * (a - b + c), c]
}

#[inline(always)]
fn taps_of<T: Float>(points: &Points<T>) -> [[T; TOGETHER]; TAPS] {
    let mut taps = [[T::zero(); TOGETHER]; TAPS];
    for i in 0..TOGETHER {
        let mut rows = [[T::zero(); 3]; 4];
        for (row, [a, b, c, d]) in rows.iter_mut().zip(points.as_chunks::<4>().0) {
            *row = taps_of_line([a[i], b[i], c[i], d[i]]);
        }
        for x in 0..3 {
            let column = taps_of_line([rows[0][x], rows[1][x], rows[2][x], rows[3][x]]);
            for y in 0..3 {
                taps[3 * y + x][i] = column[y];
            }
        }
    }
    taps
}

#[inline(always)]
fn taps_of_line<T: Float>([a, b, c, d]: [T; 4]) -> [T; 3] {
    let half = T::narrow(0.5);
    let (sum, difference) = (half * (b + c), half * (b - c));
    [a + sum, difference, sum + d]
}
