//! The sums of the columns of a matrix: the gradient of a bias.
//!
//! If rows are added one after the other, the sum loses a digit with every tenfold number of rows.
//! Sums of blocks of rows that are added pairwise lose almost nothing (Higham, The accuracy of
//! floating point summation, SIAM J. Sci. Comput. 14, 1993).

use super::elementwise::add_assign;
use super::float::Float;
use super::parallel::worth_threads;
use super::pool::Pooled;
use candelabrum_memory::simd::simd;

/// The number of rows up to which all rows are one block.
const FEW: usize = 4096;

/// The rows of a block if there are more than [`FEW`].
const BLOCK: usize = 256;

/// Writes the sum over all rows of `matrix` to `sums`, which has the length of a row. The order of
/// the additions depends only on the number of rows.
pub(super) fn column_sums<T: Float>(matrix: &[T], sums: &mut [T]) {
    let width = sums.len().max(1);
    let block = if matrix.len() / width <= FEW { FEW } else { BLOCK };
    pairwise(matrix, sums, block);
}

fn pairwise<T: Float>(matrix: &[T], sums: &mut [T], block: usize) {
    let width = sums.len().max(1);
    let rows = matrix.len() / width;
    if rows <= block {
        sums.fill(T::zero());
        return simd(
            #[inline(always)]
            || matrix.chunks_exact(width).for_each(|row| add_assign(sums, row)),
        );
    }
    let (first, rest) = matrix.split_at(rows / 2 * width);
    let mut others = Pooled::new(sums.len());
    if worth_threads(matrix.len()) {
        let add_first = || pairwise(first, sums, block);
        rayon::join(add_first, || pairwise(rest, &mut others, block));
    } else {
        pairwise(first, sums, block);
        pairwise(rest, &mut others, block);
    }
    add_assign(sums, &others);
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
