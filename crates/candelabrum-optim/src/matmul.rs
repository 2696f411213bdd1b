//! Products of small and medium matrices on the host.
//!
//! Each number of a product is one sum over the depth, from its first term to its last, whatever the
//! number of threads or the vectors of the machine. So all ranks compute the same bits from the same
//! factors. The right factor is copied once into *panels* of 16 columns: a tile of 6 rows and 16
//! columns is then summed in registers, from memory that is read in order.

use candelabrum_memory::thread_pool;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// The columns of a panel and of a tile.
const COLUMNS: usize = 16;

/// The rows of a tile: its sums take at most 12 of the 16 registers of AVX2.
const ROWS: usize = 6;

/// The rows that one thread computes at a time, a multiple of [`ROWS`].
const ROWS_OF_A_PART: usize = 8 * ROWS;

/// The multiplications of a product, or as much other work, below which one thread is as fast as several: some tens of
/// microseconds.
const SMALL: usize = 1 << 20;

/// A right factor of shape (depth, columns) in panels. The last panel is filled up with zeros.
pub(crate) struct RightPanels {
    /// By panel, then by depth.
    numbers: Vec<[f32; COLUMNS]>,
    depth: usize,
    columns: usize,
}

impl RightPanels {
    /// Of a matrix of shape (depth, columns).
    pub(crate) fn from_matrix(matrix: &[f32], depth: usize, columns: usize) -> Self {
        Self::new(depth, columns, |panel, numbers| {
            let first = panel * COLUMNS;
            let len = COLUMNS.min(columns - first);
            for (row, to) in matrix.chunks_exact(columns).zip(numbers) {
                to[..len].copy_from_slice(&row[first..first + len]);
            }
        })
    }

    /// Of the transpose of a matrix of shape (columns, depth).
    pub(crate) fn from_transposed(matrix: &[f32], columns: usize, depth: usize) -> Self {
        Self::new(depth, columns, |panel, numbers| {
            let rows = matrix.chunks_exact(depth).skip(panel * COLUMNS).take(COLUMNS);
            for (column, row) in rows.enumerate() {
                for (to, &number) in numbers.iter_mut().zip(row) {
                    to[column] = number;
                }
            }
        })
    }

    fn new(
        depth: usize,
        columns: usize,
        fill: impl Fn(usize, &mut [[f32; COLUMNS]]) + Sync,
    ) -> Self {
        let mut numbers = vec![[0.0; COLUMNS]; depth * columns.div_ceil(COLUMNS)];
        if !numbers.is_empty() {
            let panels = numbers.par_chunks_mut(depth).enumerate();
            for_each(16 * depth * columns, panels, |(panel, numbers)| fill(panel, numbers));
        }
        Self { numbers, depth, columns }
    }
}

/// Writes to `out`, of shape (rows, columns), what `finish` makes of the place and the product
/// `left` · `right`, where `left` has the shape (rows, depth).
pub(crate) fn multiply(
    left: &[f32],
    right: &RightPanels,
    out: &mut [f32],
    finish: impl Fn(usize, f32) -> f32 + Sync,
) {
    let &RightPanels { ref numbers, depth, columns } = right;
    if numbers.is_empty() {
        return;
    }
    let lefts = left.par_chunks(ROWS_OF_A_PART * depth);
    let outs = out.par_chunks_mut(ROWS_OF_A_PART * columns);
    let parts = lefts.zip(outs).enumerate();
    for_each(left.len() * columns, parts, |(part, (left, out))| {
        let first = part * ROWS_OF_A_PART * columns;
        let finish = |place, sum| finish(first + place, sum);
        Arch::new().dispatch(ProductPart { left, right, out, finish });
    });
}

/// [`thread_pool::for_each`], on this thread alone where there is little to do.
fn for_each<I: IndexedParallelIterator>(work: usize, items: I, f: impl Fn(I::Item) + Sync) {
    if work < SMALL {
        thread_pool::for_each_serially(items, f);
    } else {
        thread_pool::for_each(items, f);
    }
}

/// [`multiply`] for some rows.
struct ProductPart<'a, F> {
    left: &'a [f32],
    right: &'a RightPanels,
    out: &'a mut [f32],
    finish: F,
}

impl<F: Fn(usize, f32) -> f32> WithSimd for ProductPart<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { left, right, out, finish } = self;
        multiply_part(simd, left, right, out, finish);
    }
}

#[inline(always)]
fn multiply_part<S: Simd>(
    simd: S,
    left: &[f32],
    right: &RightPanels,
    out: &mut [f32],
    finish: impl Fn(usize, f32) -> f32,
) {
    let &RightPanels { ref numbers, depth, columns } = right;
    // The rows of a tile, with its column for each depth. Rows that `left` does not have are 0.
    let mut rows = vec![[0.0; ROWS]; depth];
    let tiles = left.chunks(ROWS * depth).zip(out.chunks_mut(ROWS * columns));
    for (tile, (left, out)) in tiles.enumerate() {
        for (row, numbers) in left.chunks_exact(depth).enumerate() {
            for (to, &number) in rows.iter_mut().zip(numbers) {
                to[row] = number;
            }
        }
        for (panel, numbers) in numbers.chunks_exact(depth).enumerate() {
            let mut sums = [[0.0; COLUMNS]; ROWS];
            Tile { rows: &rows, panel: numbers, sums: &mut sums }.with_simd(simd);
            let column = panel * COLUMNS;
            let len = COLUMNS.min(columns - column);
            for (row, (out, sums)) in out.chunks_exact_mut(columns).zip(&sums).enumerate() {
                let place = (tile * ROWS + row) * columns + column;
                for (at, (to, &sum)) in out[column..column + len].iter_mut().zip(sums).enumerate() {
                    *to = finish(place + at, sum);
                }
            }
        }
    }
}

/// A tile of a product: its sums stay in registers.
struct Tile<'a> {
    rows: &'a [[f32; ROWS]],
    panel: &'a [[f32; COLUMNS]],
    sums: &'a mut [[f32; COLUMNS]; ROWS],
}

impl WithSimd for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match size_of::<S::f32s>() / size_of::<f32>() {
            16 => self.sum::<S, 1>(simd),
            8 => self.sum::<S, 2>(simd),
            4 => self.sum::<S, 4>(simd),
            _ => self.sum::<S, 16>(simd),
        }
    }
}

impl Tile<'_> {
    /// `VECTORS` of this processor have the columns of a tile. A product is rounded before it is added, because a fused
    /// addition would have other bits on processors that have none.
    #[inline(always)]
    fn sum<S: Simd, const VECTORS: usize>(self, simd: S) {
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        for (row, numbers) in self.rows.iter().zip(self.panel) {
            let (numbers, _) = S::as_simd_f32s(numbers);
            let Some(numbers) = numbers.first_chunk::<VECTORS>() else { return };
            for (sums, &factor) in sums.iter_mut().zip(row) {
                let factor = simd.splat_f32s(factor);
                for (sum, &number) in sums.iter_mut().zip(numbers) {
                    *sum = simd.add_f32s(*sum, simd.mul_f32s(factor, number));
                }
            }
        }
        for (to, sums) in self.sums.iter_mut().zip(sums) {
            let (to, _) = S::as_mut_simd_f32s(to);
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = sum;
            }
        }
    }
}

/// The transpose of a matrix of shape (rows, columns).
pub(crate) fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const BLOCK: usize = 16;
    let mut out = vec![0.0; matrix.len()];
    if out.is_empty() {
        return out;
    }
    let blocks = out.par_chunks_mut(BLOCK * rows).enumerate();
    for_each(16 * matrix.len(), blocks, |(block, out)| {
        for (row, numbers) in matrix.chunks_exact(columns).enumerate() {
            for (column, &number) in numbers[block * BLOCK..].iter().take(BLOCK).enumerate() {
                out[column * rows + row] = number;
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.0 - 1.0).collect()
    }

    /// The sum of each place from the first term to the last.
    fn product(left: &[f32], right: &[f32], [rows, depth, columns]: [usize; 3]) -> Vec<f32> {
        let mut out = vec![0.0; rows * columns];
        for (place, out) in out.iter_mut().enumerate() {
            let (row, column) = (place / columns, place % columns);
            for k in 0..depth {
                *out += left[row * depth + k] * right[k * columns + column];
            }
        }
        out
    }

    #[test]
    fn products_have_the_bits_of_plain_sums_on_any_number_of_threads() {
        for sizes in [[1, 1, 1], [6, 3, 16], [7, 5, 17], [100, 33, 50], [3, 200, 1], [49, 1, 31]] {
            let [rows, depth, columns] = sizes;
            let (left, right) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
            let expected = product(&left, &right, sizes);
            for threads in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let of = |panels: RightPanels| {
                    let mut out = vec![f32::NAN; rows * columns];
                    multiply(&left, &panels, &mut out, |_, sum| sum);
                    out
                };
                pool.install(|| {
                    assert_eq!(
                        of(RightPanels::from_matrix(&right, depth, columns)),
                        expected,
                        "{sizes:?}"
                    );
                    let turned = transposed(&right, depth, columns);
                    let panels = RightPanels::from_transposed(&turned, columns, depth);
                    assert_eq!(of(panels), expected, "{sizes:?}");
                });
            }
        }
    }

    #[test]
    fn the_place_of_a_number_is_that_in_the_whole_product() {
        let (rows, depth, columns) = (60, 2, 19);
        let (left, right) = (vec![1.0; rows * depth], vec![0.5; depth * columns]);
        let mut out = vec![0.0; rows * columns];
        let panels = RightPanels::from_matrix(&right, depth, columns);
        multiply(&left, &panels, &mut out, |place, sum| place as f32 + sum);
        assert!(out.iter().enumerate().all(|(place, &x)| x == place as f32 + 1.0));
    }

    #[test]
    fn matrices_without_elements_have_no_product() {
        multiply(&[], &RightPanels::from_matrix(&[], 0, 3), &mut [], |_, sum| sum);
        assert!(transposed(&[], 0, 4).is_empty());
    }
}
