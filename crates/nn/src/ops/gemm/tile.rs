//! The kernel of a matrix product: a tile of the result in registers.
//!
//! A tile has some rows of the left operand and some vectors of columns of the right one. Each step
//! of the inner dimension loads the vectors of one row of the right operand, and multiplies them by
//! one element of each row of the left operand. The right operand is read where it lies: consecutive
//! columns must be consecutive in memory, and its rows may have any distance. The left operand may
//! lie by rows or by columns. So neither operand is packed.

use pulp::Simd;

use super::lanes::Lanes;

/// The left operand of a product.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Left<'a, T> {
    pub(in crate::ops) data: &'a [T],
    /// The distance between two rows, or between two columns if `by_columns`.
    pub(in crate::ops) step: usize,
    /// Whether the elements of a column are consecutive, instead of those of a row.
    pub(in crate::ops) by_columns: bool,
}

/// The right operand, or the result, of a product: the elements of a row are consecutive.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Rows<D> {
    pub(in crate::ops) data: D,
    /// The distance between two rows.
    pub(in crate::ops) step: usize,
}

/// The sizes of a product: (rows × depth) by (depth × columns).
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Size {
    pub(in crate::ops) rows: usize,
    pub(in crate::ops) depth: usize,
    pub(in crate::ops) columns: usize,
}

/// The rows of a tile and the vectors of its columns, for the registers of `S`.
pub(in crate::ops) const fn has_many_registers<S: Simd>() -> bool {
    S::REGISTER_COUNT >= 32
}

/// The number of rows to which a left operand by columns, and a result, must be filled up.
pub(in crate::ops) fn rows_of_a_tile<S: Simd>() -> usize {
    if has_many_registers::<S>() { 8 } else { 6 }
}

/// `out = left right`, or `out += left right` if `add`.
///
/// Whole vectors are read and written: the rows of `right` and of `out` must have as many elements
/// behind their last column as fill a vector. Where `left` lies by columns, and in `out`, there must be
/// as many rows as fill a [tile](rows_of_a_tile). What is written there has no meaning.
#[inline(always)]
pub(in crate::ops) fn product<T: Lanes, S: Simd>(
    simd: S,
    size: Size,
    left: Left<'_, T>,
    right: Rows<&[T]>,
    out: &mut Rows<&mut [T]>,
    add: bool,
) {
    if has_many_registers::<S>() {
        product_by::<T, S, 8, 3>(simd, size, left, right, out, add);
    } else {
        product_by::<T, S, 6, 2>(simd, size, left, right, out, add);
    }
}

#[inline(always)]
fn product_by<T: Lanes, S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    size: Size,
    left: Left<'_, T>,
    right: Rows<&[T]>,
    out: &mut Rows<&mut [T]>,
    add: bool,
) {
    let lanes = T::lanes::<S>();
    for row in (0..size.rows).step_by(ROWS) {
        for column in (0..size.columns).step_by(VECTORS * lanes) {
            let vectors = (size.columns - column).div_ceil(lanes);
            let right = Rows { data: &right.data[column..], step: right.step };
            let part = Part { row, column, rows: size.rows - row, depth: size.depth, add };
            match vectors {
                1 => part.tile::<T, S, ROWS, 1>(simd, left, right, out),
                2 if VECTORS > 2 => part.tile::<T, S, ROWS, 2>(simd, left, right, out),
                _ => part.tile::<T, S, ROWS, VECTORS>(simd, left, right, out),
            }
        }
    }
}

/// One tile of a product.
#[derive(Clone, Copy)]
struct Part {
    /// The first row of the left operand, and the number of rows from there on.
    row: usize,
    rows: usize,
    /// The first column of the result.
    column: usize,
    depth: usize,
    add: bool,
}

impl Part {
    #[inline(always)]
    fn tile<T: Lanes, S: Simd, const ROWS: usize, const VECTORS: usize>(
        self,
        simd: S,
        left: Left<'_, T>,
        right: Rows<&[T]>,
        out: &mut Rows<&mut [T]>,
    ) {
        let Self { row, rows, column, depth, add } = self;
        let sums = if left.by_columns {
            let columns = ByColumns { data: &left.data[row..], step: left.step };
            sums::<T, S, _, ROWS, VECTORS>(simd, depth, &columns, right)
        } else {
            // A tile that reaches over the last row computes this row again.
            let mut lines: [&[T]; ROWS] = [&[]; ROWS];
            for (i, line) in lines.iter_mut().enumerate() {
                *line = &left.data[(row + i.min(rows - 1)) * left.step..][..depth];
            }
            sums::<T, S, _, ROWS, VECTORS>(simd, depth, &ByRows(lines), right)
        };
        for (i, sums) in sums.into_iter().enumerate() {
            let out = &mut out.data[(row + i) * out.step + column..];
            let out = &mut T::vectors_mut::<S>(out)[..VECTORS];
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if add { T::plus(simd, *out, sum) } else { sum };
            }
        }
    }
}

/// `ROWS` rows of a left operand.
trait Columns<T, const ROWS: usize> {
    /// Something with the elements of column `k`.
    type Column: Copy;

    fn column(&self, k: usize) -> Self::Column;
    fn element(&self, column: Self::Column, row: usize) -> T;
}

struct ByColumns<'a, T> {
    data: &'a [T],
    step: usize,
}

impl<'a, T: Copy, const ROWS: usize> Columns<T, ROWS> for ByColumns<'a, T> {
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

impl<T: Copy, const ROWS: usize> Columns<T, ROWS> for ByRows<'_, T, ROWS> {
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
fn sums<T: Lanes, S: Simd, C: Columns<T, ROWS>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    depth: usize,
    left: &C,
    right: Rows<&[T]>,
) -> [[T::Vector<S>; VECTORS]; ROWS] {
    let mut sums = [[T::zero_vector(simd); VECTORS]; ROWS];
    for k in 0..depth {
        let column = left.column(k);
        let right = &T::vectors::<S>(&right.data[k * right.step..])[..VECTORS];
        for (i, sums) in sums.iter_mut().enumerate() {
            let element = T::splat(simd, left.element(column, i));
            for (sum, &right) in sums.iter_mut().zip(right) {
                *sum = T::times_plus(simd, element, right, *sum);
            }
        }
    }
    sums
}
