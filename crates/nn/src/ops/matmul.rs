//! Matrix products through the `gemm` crate: the only unsafe code of the operations.

use gemm::Parallelism;

use super::float::Float;

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
    /// Rows one after the other.
    pub(super) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transposed matrix, without moving an element.
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

/// What happens to the previous contents of the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dst {
    Overwrite,
    Add,
}

/// `out = a b` or `out += a b`, `out` row by row.
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
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner sizes of a matrix product");
    assert!(out.len() >= m * n, "destination of {} for {m} x {n}", out.len());
    assert!(a.data.len() >= m * k, "left operand of {} for {m} x {k}", a.data.len());
    assert!(b.data.len() >= k * n, "right operand of {} for {k} x {n}", b.data.len());
    let stride = |s: usize| isize::try_from(s).expect("a slice has at most isize::MAX elements");
    // SAFETY: a `Mat` is `rows x cols` packed in row or column order, so its largest offset is
    // `rows * cols - 1`, and the same holds for `out`; the asserts above compared these sizes
    // with the lengths of the slices. `out` is borrowed mutably, so nothing overlaps it, and all
    // its elements are initialised.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
            dst == Dst::Add,
            a.data.as_ptr(),
            stride(a.col_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.col_stride),
            stride(b.row_stride),
            T::one(),
            T::one(),
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// For one large product outside of any parallel loop: all threads of the current pool.
pub(super) fn all_threads() -> Parallelism {
    match rayon::current_num_threads() {
        1 => Parallelism::None,
        n => Parallelism::Rayon(n),
    }
}
