//! A right operand for many products: its columns in panels, each of which lies together.

use rayon::prelude::*;

use super::dispatch::dispatch;
use super::product::Product;
use super::tile::{LeftMatrix, MOST_ROWS, MatrixRows, ProductSize};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;
use candelabrum_memory::simd::simd;

/// The columns of a panel: whole tiles on every instruction set. If the columns lay in long rows instead,
/// the rows of a tile would lie at the same place of several pages, and drive each other out of the
/// nearest cache.
pub(crate) const WIDTH: usize = 48;

/// A matrix (depth x columns) in panels of [`WIDTH`] columns. What is behind the last column is 0.
pub(crate) struct Panels<T: Float> {
    data: Pooled<T>,
    depth: usize,
    columns: usize,
}

impl<T: Float> Panels<T> {
    /// The matrix whose rows lie one after the other.
    pub(crate) fn of_rows(values: &[T], depth: usize) -> Self {
        let columns = values.len() / depth;
        Self::new(depth, columns, |first, width, panel| {
            for (to, from) in panel.chunks_exact_mut(WIDTH).zip(values.chunks_exact(columns)) {
                to[..width].copy_from_slice(&from[first..first + width]);
            }
        })
    }

    /// The matrix whose columns lie one after the other.
    pub(crate) fn of_columns(values: &[T], depth: usize) -> Self {
        Self::new(depth, values.len() / depth, |first, width, panel| {
            let size = (width, depth);
            transpose::<T, false>(&values[first * depth..], depth, size, panel, WIDTH);
        })
    }

    /// `fill` writes a panel: gets its first column, its columns, and its place.
    fn new(depth: usize, columns: usize, fill: impl Fn(usize, usize, &mut [T]) + Sync) -> Self {
        let mut data = Pooled::new(columns.div_ceil(WIDTH) * WIDTH * depth);
        let panels = data.par_chunks_mut(WIDTH * depth).enumerate();
        for_each(worth_threads(depth * columns), panels, |(number, panel)| {
            let first = number * WIDTH;
            let width = WIDTH.min(columns - first);
            if width < WIDTH {
                panel.fill(T::zero());
            }
            simd(
                #[inline(always)]
                || fill(first, width, panel),
            );
        });
        Self { data, depth, columns }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The panels. Each has `depth` rows of [`WIDTH`] columns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[T]> {
        self.data.chunks_exact(WIDTH * self.depth)
    }

    /// A distance between the rows of a result that has room for whole panels. No power of two, as
    /// [`WIDTH`] says.
    pub(crate) fn step(&self) -> usize {
        self.columns.next_multiple_of(WIDTH) + 16
    }

    /// The size of the memory for a result of `rows` rows: whole tiles are written.
    pub(crate) fn size(&self, rows: usize) -> usize {
        (rows + MOST_ROWS) * self.step()
    }

    /// Adds the product of `rows` rows of `left`, at distances of `distance`, to `out`, whose rows have the
    /// distance [`step`](Self::step), and which has the size [`size`](Self::size).
    pub(crate) fn add_product(&self, rows: usize, (left, distance): (&[T], usize), out: &mut [T]) {
        let (depth, step) = (self.depth, self.step());
        for (number, panel) in self.iter().enumerate() {
            let first = number * WIDTH;
            dispatch(Product {
                size: ProductSize { rows, depth, columns: WIDTH.min(self.columns - first) },
                left: LeftMatrix::Rows { data: left, step: distance },
                right: MatrixRows { data: panel, step: WIDTH },
                out: MatrixRows { data: &mut out[first..], step },
                add: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::dispatch::on_each_instruction_set;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn panels_give_the_sums_of_products(
            rows in 1usize..20,
            depth in 1usize..70,
            columns in 1usize..120,
            gap in 0usize..3,
        ) {
            let distance = depth + gap;
            // Whole numbers, whose sums are exact.
            let number = |i: usize| (i * 7919 % 17) as f32 - 8.0;
            let left: Vec<f32> = (0..rows * distance - gap).map(number).collect();
            let right: Vec<f32> = (1000..1000 + depth * columns).map(number).collect();
            let turned: Vec<f32> =
                (0..columns * depth).map(|i| right[i % depth * columns + i / depth]).collect();
            on_each_instruction_set(|| {
                let panels =
                    [Panels::of_rows(&right, depth), Panels::of_columns(&turned, depth)];
                for panels in panels {
                    let step = panels.step();
                    let mut out = vec![3.0; panels.size(rows)];
                    panels.add_product(rows, (&left, distance), &mut out);
                    for (row, left) in left.chunks(distance).enumerate() {
                        for column in 0..columns {
                            let terms =
                                left[..depth].iter().enumerate().map(|(k, x)| x * right[k * columns + column]);
                            assert_eq!(out[row * step + column], 3.0 + terms.sum::<f32>());
                        }
                    }
                }
            });
        }
    }
}
