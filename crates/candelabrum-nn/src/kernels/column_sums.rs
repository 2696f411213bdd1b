//! The sums of the columns of a matrix: the gradient of a bias.
//!
//! If rows are added one after the other, the sum loses a digit with every tenfold number of rows.
//! Sums of blocks of rows that are added pairwise lose almost nothing (Higham, The accuracy of
//! floating point summation, SIAM J. Sci. Comput. 14, 1993).

use rayon::prelude::*;

use super::elementwise::add_assign;
use super::float::Float;
use super::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// The number of rows up to which all rows are one block.
const FEW: usize = 4096;

/// The rows of a block if there are more than [`FEW`].
const BLOCK: usize = 256;

/// Writes the sum over all rows of `matrix` to `sums`, which has the length of a row. The order of
/// the additions depends only on the number of rows.
pub(crate) fn column_sums<T: Float>(matrix: &[T], sums: &mut [T]) {
    match matrix.len() / sums.len().max(1) <= FEW {
        true => of_block(matrix, sums),
        false => in_blocks(matrix, sums, BLOCK),
    }
}

/// Writes the sums of each block of rows, and adds them to those of the first block.
fn in_blocks<T: Float>(matrix: &[T], sums: &mut [T], block: usize) {
    let width = sums.len();
    let blocks = matrix.len().div_ceil(block * width);
    let mut partial = Pooled::new(blocks * width);
    let items = matrix.par_chunks(block * width).zip(partial.par_chunks_mut(width));
    for_each(worth_threads(matrix.len()), items, |(rows, sums)| of_block(rows, sums));
    pairwise(&mut partial, width);
    sums.copy_from_slice(&partial[..width]);
}

fn of_block<T: Float>(rows: &[T], sums: &mut [T]) {
    sums.fill(T::zero());
    simd(
        #[inline(always)]
        || rows.chunks_exact(sums.len().max(1)).for_each(|row| add_assign(sums, row)),
    );
}

/// Adds all rows to the first one, pairwise by halves.
pub(crate) fn pairwise<T: Float>(rows: &mut [T], width: usize) {
    let count = rows.len() / width;
    if count < 2 {
        return;
    }
    let (first, rest) = rows.split_at_mut(count / 2 * width);
    pairwise(first, width);
    pairwise(rest, width);
    add_assign(&mut first[..width], &rest[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rows` of three whole numbers each, and the sums of their columns.
    fn matrix(rows: usize) -> (Vec<f64>, [f64; 3]) {
        let matrix: Vec<f64> = (0..3 * rows).map(|i| (i * i % 17) as f64).collect();
        let mut sums = [0.0; 3];
        for row in matrix.chunks(3) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        (matrix, sums)
    }

    #[test]
    fn every_row_counts_once_with_any_number_of_threads() {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a thread pool").install(|| {
                for rows in [0, 1, FEW, FEW + 1, 20_011] {
                    let (matrix, expected) = matrix(rows);
                    let mut sums = [f64::NAN; 3];
                    column_sums(&matrix, &mut sums);
                    assert_eq!(sums, expected, "{rows} rows, {threads} threads");
                }
            });
        }
        column_sums::<f32>(&[], &mut []);
    }

    #[test]
    fn few_rows_are_added_one_after_the_other() {
        let matrix: Vec<f32> = (0..3 * FEW).map(|i| 1.0 / (i + 1) as f32).collect();
        let mut expected = [0.0; 3];
        for row in matrix.chunks(3) {
            expected.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        let mut sums = [0.0; 3];
        column_sums(&matrix, &mut sums);
        assert_eq!(sums, expected);
    }
}
