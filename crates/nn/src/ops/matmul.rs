//! Matrix products through the `gemm` crate. The only other unsafe code of the operations is that of
//! [`MatMut`].

use std::ops::Range;

use gemm::Parallelism;

use super::float::Float;
use super::gemm::Size;
use super::gemm::bf16::{self, Finish, Lines, Operand, Starts};
use super::mat_mut::MatMut;
use super::product_precision;

/// With fewer rows or columns, rounding the other factor to bf16 costs more than it saves.
const FEWEST: usize = 8;

/// Products of fewer multiplications stay on one thread.
const WORTH_THREADS: usize = 48 * 48 * 256;

/// A matrix in a slice: element `(i, j)` lies at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy)]
pub(super) struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// A matrix whose rows lie one after the other.
    pub(super) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// A matrix whose rows begin `row_stride` elements apart: some columns of a wider one.
    pub(super) fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// Some columns of this matrix.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        assert!(range.end <= self.cols, "columns {range:?} of {}", self.cols);
        let data = &self.data[range.start * self.col_stride..];
        Self { data, cols: range.len(), ..self }
    }

    /// One more than the offset of the last element.
    fn reach(&self) -> usize {
        match (self.rows, self.cols) {
            (0, _) | (_, 0) => 0,
            (rows, cols) => (rows - 1) * self.row_stride + (cols - 1) * self.col_stride + 1,
        }
    }

    /// The transposed matrix. No element is moved.
    pub(super) fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

impl<'a, T: Float> Mat<'a, T> {
    /// The matrix as a left factor to be packed, if its rows or columns are consecutive.
    fn operand(self) -> Option<Operand<'a, T>> {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        if col_stride == 1 || cols == 1 {
            return Some(Operand::Along(Lines { data, starts: Starts::Every(row_stride) }));
        }
        let across = row_stride == 1 || rows == 1;
        across.then_some(Operand::Across(Lines { data, starts: Starts::Every(col_stride) }))
    }
}

/// Whether the destination's previous contents count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dst {
    Overwrite,
    Add,
}

/// `out = a b` or `out += a b`. `out` is stored row by row.
///
/// # Panics
///
/// If the inner sizes differ or a slice is shorter than its matrix.
pub(super) fn matmul<T: Float>(
    out: &mut [T],
    dst: Dst,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    parallelism: Parallelism,
) {
    let (m, n) = (a.rows, b.cols);
    assert!(out.len() >= m * n, "destination of {} for {m} x {n}", out.len());
    multiply(MatMut::new(&mut out[..m * n], m, n), dst, T::one(), a, b, parallelism);
}

/// `out = scale a b` or `out += scale a b`, for an `out` whose rows may be parts of longer rows. On
/// this thread.
///
/// # Panics
///
/// If sizes differ or a slice is shorter than its matrix.
pub(super) fn matmul_into<T: Float>(
    out: MatMut<'_, T>,
    dst: Dst,
    scale: T,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
) {
    multiply(out, dst, scale, a, b, Parallelism::None);
}

fn multiply<T: Float>(
    mut out: MatMut<'_, T>,
    dst: Dst,
    scale: T,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    parallelism: Parallelism,
) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner sizes of a matrix product");
    assert_eq!((out.rows(), out.cols()), (m, n), "destination of a matrix product");
    assert!(a.data.len() >= a.reach(), "left operand of {} for {m} x {k}", a.data.len());
    assert!(b.data.len() >= b.reach(), "right operand of {} for {k} x {n}", b.data.len());
    if multiply_in_bf16(&mut out, dst, scale, a, b, &parallelism) {
        return;
    }
    let stride = |s: usize| isize::try_from(s).expect("a slice has at most isize::MAX elements");
    // SAFETY: the largest offset of an operand is one below its `reach`, which the asserts above
    // compared with the length of its slice. `out` has `m` rows of `n` elements that nothing else
    // refers to while it is borrowed (the invariant of `MatMut`), and all are initialised.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(out.row_stride()),
            dst == Dst::Add,
            a.data.as_ptr(),
            stride(a.col_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.col_stride),
            stride(b.row_stride),
            T::one(),
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Computes the product with factors in bf16, if that is [set](super::set_product_precision), possible and
/// worth it.
fn multiply_in_bf16<T: Float>(
    out: &mut MatMut<'_, T>,
    dst: Dst,
    scale: T,
    a: Mat<'_, T>,
    b: Mat<'_, T>,
    parallelism: &Parallelism,
) -> bool {
    let Some(instructions) = product_precision::bf16::<T>() else { return false };
    let (m, k, n) = (a.rows, a.cols, b.cols);
    if m.min(n) < FEWEST {
        return false;
    }
    let left = a.operand().and_then(Operand::as_f32s);
    let right = b.t().operand().and_then(Operand::as_f32s);
    let (Some(left), Some(right), Some(out)) = (left, right, out.as_f32s()) else { return false };
    let threads = match *parallelism {
        Parallelism::Rayon(threads) if m * n * k >= WORTH_THREADS => threads,
        _ => 1,
    };
    let finish = Finish { scale: scale.widen() as f32, add: dst == Dst::Add };
    bf16::multiply(instructions, left, right, k, out, finish, threads);
    true
}

/// `out = left right`, or `out += left right` if `add`, with factors in bf16, if that is
/// [set](super::set_product_precision) and possible. `out` is a slice, and the distance between its rows.
/// On this thread.
pub(super) fn product_in_bf16<T: Float>(
    left: Operand<'_, T>,
    right: Operand<'_, T>,
    Size { rows, depth, columns }: Size,
    (out, step): (&mut [T], usize),
    add: bool,
) -> bool {
    let Some(instructions) = product_precision::bf16::<T>() else { return false };
    let mut out = MatMut::strided(out, rows, columns, step);
    let (left, right) = (left.as_f32s(), right.as_f32s());
    let (Some(left), Some(right), Some(out)) = (left, right, out.as_f32s()) else { return false };
    bf16::multiply(instructions, left, right, depth, out, Finish { scale: 1.0, add }, 1);
    true
}

/// For one large product outside of all parallel loops: all threads of the current pool.
pub(super) fn all_threads() -> Parallelism {
    match rayon::current_num_threads() {
        1 => Parallelism::None,
        n => Parallelism::Rayon(n),
    }
}
