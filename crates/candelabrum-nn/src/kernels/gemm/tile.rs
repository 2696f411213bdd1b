//! The kernel of a matrix product: a tile of the result in registers.
//!
//! A tile has some rows of the left operand and some vectors of columns of the right one. Each step
//! of the inner dimension loads the vectors of one row of the right operand, and multiplies them by
//! one element of each row of the left operand. The right operand is read where it lies: consecutive
//! columns must be consecutive in memory, and its rows may have any distance. The left operand may
//! lie by rows or by columns. So neither operand is packed.
//!
//! # Size of a tile
//!
//! The sums of a tile stay in registers, beside the vectors of the right operand's row and one broadcast
//! element of the left operand. With 32 registers (AVX-512) a tile is 8 rows × 3 vectors: 24 sums, 3 vectors
//! and the element need 28. With 16 registers (AVX2) it is 6 rows × 2 vectors, which need 15. Such a tile does
//! 24 (12) multiplications for every 11 (8) loads, so loads do not limit it. The rule is that of Van Zee and
//! van de Geijn, *BLIS: A Framework for Rapidly Instantiating BLAS Functionality* (ACM TOMS 41, 2015).

use pulp::Simd;

use super::lanes::VectorLanes;

/// The left operand of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftMatrix<'a, T> {
    /// The elements of a row are consecutive. `step` is the distance between two rows.
    Rows { data: &'a [T], step: usize },
    /// The elements of a column are consecutive. `step` is the distance between two columns.
    Columns { data: &'a [T], step: usize },
    /// The elements of a row are consecutive, and each row has a first element of its own.
    Runs(RowRuns<'a, T>),
}

/// Rows of consecutive elements, each with a first element of its own. Rows may overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowRuns<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) starts: &'a [usize],
}

/// Rows of consecutive elements at equal distances: a right operand, or the result, of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixRows<D> {
    pub(crate) data: D,
    /// The distance between two rows.
    pub(crate) step: usize,
}

/// The right operand of a product: the elements of a row are consecutive.
pub(crate) trait RightMatrix<T>: Copy {
    /// `len` elements of row `k`, from `column` on.
    fn part(&self, k: usize, column: usize, len: usize) -> &[T];
}

impl<T> RightMatrix<T> for MatrixRows<&[T]> {
    #[inline(always)]
    fn part(&self, k: usize, column: usize, len: usize) -> &[T] {
        let start = k * self.step + column;
        &self.data[start..start + len]
    }
}

impl<T: Copy> RightMatrix<T> for RowRuns<'_, T> {
    #[inline(always)]
    fn part(&self, k: usize, column: usize, len: usize) -> &[T] {
        let start = self.starts[k] + column;
        &self.data[start..start + len]
    }
}

/// The sizes of a product: (rows × depth) by (depth × columns). None of them is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductSize {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
}

/// Whether `S` has registers for a tile of 8 rows and 3 vectors. With fewer it has 6 rows and 2 vectors.
const fn has_many_registers<S: Simd>() -> bool {
    S::REGISTER_COUNT >= 32
}

/// The rows of the highest tile of all instruction sets.
pub(crate) const MOST_ROWS: usize = 8;

/// The number of rows to which a left operand by columns must be filled up.
pub(crate) fn rows_of_a_tile<S: Simd>() -> usize {
    if has_many_registers::<S>() { 8 } else { 6 }
}

/// `out = left right`, or `out += left right` if `add`.
///
/// Whole vectors are read and written: the rows of `right` and of `out` must have as many elements
/// behind their last column as fill a vector. What is written there has no meaning. In
/// [`LeftMatrix::Columns`] there must be as many rows as fill a [tile](rows_of_a_tile).
#[inline(always)]
pub(crate) fn product<T: VectorLanes, S: Simd, R: RightMatrix<T>>(
    simd: S,
    size: ProductSize,
    left: LeftMatrix<'_, T>,
    right: R,
    out: &mut MatrixRows<&mut [T]>,
    add: bool,
) {
    if has_many_registers::<S>() {
        product_by::<T, S, R, 8, 4, 3>(simd, size, left, right, out, add);
    } else {
        product_by::<T, S, R, 6, 3, 2>(simd, size, left, right, out, add);
    }
}

/// Tiles of `ROWS` rows. Where no more than `FEW` are left, one of `FEW` rows.
#[inline(always)]
fn product_by<
    T: VectorLanes,
    S: Simd,
    R: RightMatrix<T>,
    const ROWS: usize,
    const FEW: usize,
    const VECTORS: usize,
>(
    simd: S,
    size: ProductSize,
    left: LeftMatrix<'_, T>,
    right: R,
    out: &mut MatrixRows<&mut [T]>,
    add: bool,
) {
    let lanes = T::lanes::<S>();
    for row in (0..size.rows).step_by(ROWS) {
        let mut column = 0;
        while column < size.columns {
            let part = TilePart { row, column, rows: size.rows - row, depth: size.depth, add };
            // Two tiles of two vectors are faster than one of three and one of one.
            let vectors = match (size.columns - column).div_ceil(lanes) {
                4 => 2,
                vectors => vectors.min(VECTORS),
            };
            match (vectors, part.rows <= FEW) {
                (1, false) => part.tile::<T, S, R, ROWS, 1>(simd, left, right, out),
                (2, false) => part.tile::<T, S, R, ROWS, 2>(simd, left, right, out),
                (_, false) => part.tile::<T, S, R, ROWS, VECTORS>(simd, left, right, out),
                (1, true) => part.tile::<T, S, R, FEW, 1>(simd, left, right, out),
                (2, true) => part.tile::<T, S, R, FEW, 2>(simd, left, right, out),
                (_, true) => part.tile::<T, S, R, FEW, VECTORS>(simd, left, right, out),
            }
            column += vectors * lanes;
        }
    }
}

/// One tile of a product.
#[derive(Clone, Copy)]
struct TilePart {
    /// The first row of the left operand, and the number of rows from there on.
    row: usize,
    rows: usize,
    /// The first column of the result.
    column: usize,
    depth: usize,
    add: bool,
}

impl TilePart {
    #[inline(always)]
    fn tile<T: VectorLanes, S: Simd, R: RightMatrix<T>, const ROWS: usize, const VECTORS: usize>(
        self,
        simd: S,
        left: LeftMatrix<'_, T>,
        right: R,
        out: &mut MatrixRows<&mut [T]>,
    ) {
        let Self { row, rows, column, depth, add } = self;
        // A tile that reaches over the last row computes this row again.
        let row_of = |i: usize| row + i.min(rows - 1);
        let mut lines: [&[T]; ROWS] = [&[]; ROWS];
        match left {
            LeftMatrix::Rows { data, step } => {
                for (i, line) in lines.iter_mut().enumerate() {
                    *line = &data[row_of(i) * step..][..depth];
                }
            }
            LeftMatrix::Runs(RowRuns { data, starts }) => {
                for (i, line) in lines.iter_mut().enumerate() {
                    *line = &data[starts[row_of(i)]..][..depth];
                }
            }
            LeftMatrix::Columns { .. } => {}
        }
        let sums = match left {
            LeftMatrix::Columns { data, step } => {
                let columns = ByColumns { data: &data[row..], step };
                sums::<T, S, _, R, ROWS, VECTORS>(simd, depth, &columns, right, column)
            }
            _ => sums::<T, S, _, R, ROWS, VECTORS>(simd, depth, &ByRows(lines), right, column),
        };
        for (i, sums) in sums.into_iter().enumerate().take(rows) {
            let out = &mut out.data[(row + i) * out.step + column..];
            let out = &mut T::vectors_mut::<S>(out)[..VECTORS];
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if add { T::plus(simd, *out, sum) } else { sum };
            }
        }
    }
}

/// `ROWS` rows of a left operand.
trait LeftRows<T, const ROWS: usize> {
    /// Something with the elements of column `k`.
    type Column: Copy;

    fn column(&self, k: usize) -> Self::Column;
    fn element(&self, column: Self::Column, row: usize) -> T;
}

struct ByColumns<'a, T> {
    data: &'a [T],
    step: usize,
}

impl<'a, T: Copy, const ROWS: usize> LeftRows<T, ROWS> for ByColumns<'a, T> {
    type Column = &'a [T];

    #[inline(always)]
    fn column(&self, k: usize) -> &'a [T] {
        // One check of the length for all rows.
        &self.data[k * self.step..][..ROWS]
    }

    #[inline(always)]
    fn element(&self, column: &'a [T], row: usize) -> T {
        column[row]
    }
}

struct ByRows<'a, T, const ROWS: usize>([&'a [T]; ROWS]);

impl<T: Copy, const ROWS: usize> LeftRows<T, ROWS> for ByRows<'_, T, ROWS> {
    type Column = usize;

    #[inline(always)]
    fn column(&self, k: usize) -> usize {
        k
    }

    #[inline(always)]
    fn element(&self, k: usize, row: usize) -> T {
        self.0[row][k]
    }
}

#[inline(always)]
fn sums<T, S, C, R, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    depth: usize,
    left: &C,
    right: R,
    column: usize,
) -> [[T::Vector<S>; VECTORS]; ROWS]
where
    T: VectorLanes,
    S: Simd,
    C: LeftRows<T, ROWS>,
    R: RightMatrix<T>,
{
    let mut sums = [[T::zero_vector(simd); VECTORS]; ROWS];
    for k in 0..depth {
        let elements = left.column(k);
        let right = right.part(k, column, VECTORS * T::lanes::<S>());
        let right = &T::vectors::<S>(right)[..VECTORS];
        for (i, sums) in sums.iter_mut().enumerate() {
            let element = T::splat(simd, left.element(elements, i));
            for (sum, &right) in sums.iter_mut().zip(right) {
                *sum = T::times_plus(simd, element, right, *sum);
            }
        }
    }
    sums
}
