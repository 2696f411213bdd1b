//! Matrix products through the `gemm` crate, or of our own where that is faster. The unsafe code here is the
//! call of `gemm`.

use std::cell::Cell;
use std::ops::Range;

use candelabrum_memory::thread_pool;
use gemm::Parallelism;

use super::float::Float;
use super::gemm::bf16::{self, LeftOperand, Operand, OperandLines, PackedFactor, Starts};
use super::gemm::{ProductSize, few_rows_apply, product_of_few_rows};
use super::mat_mut::{MatMut, MatrixPart};
use super::product_precision;
use super::thread_switch::with_switch;

/// With fewer rows or columns, rounding the other factor to bf16 costs more than it saves.
pub(crate) const FEWEST: usize = 8;

/// From this number of multiplications on, some microseconds, the threads share a product.
const WORTH_THREADS: usize = 1 << 18;

thread_local! {
    static INDEPENDENT_ROWS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, where every product of f32 or f64 numbers of a linear layer on the CPU that this thread calls gives each
/// row of its result bits that depend on this row of the input alone, and not on the number of rows.
///
/// Products choose the order of their sums by the number of rows, because that is faster. Within `f` they do not, so a
/// token that is computed alone has the bits that it has among others. Products of many rows take longer there.
pub fn with_independent_rows<R>(f: impl FnOnce() -> R) -> R {
    with_switch(&INDEPENDENT_ROWS, f)
}

/// A matrix in a slice: element `(i, j)` lies at `i * row_stride + j * col_stride`.
#[derive(Clone, Copy)]
pub(crate) struct StridedMatrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> StridedMatrix<'a, T> {
    /// A matrix whose rows lie one after the other.
    pub(crate) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// A matrix whose rows begin `row_stride` elements apart: some columns of a wider one.
    pub(crate) fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// The number of rows.
    pub(crate) fn rows_len(&self) -> usize {
        self.rows
    }

    /// Some rows of this matrix.
    fn rows(self, range: Range<usize>) -> Self {
        self.t().columns(range).t()
    }

    /// Some columns of this matrix.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
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
    pub(crate) fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

impl<'a, T: Float> StridedMatrix<'a, T> {
    /// The matrix as a left factor to be packed, if its rows or columns are consecutive.
    fn operand(self) -> Option<Operand<'a, T>> {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        if col_stride == 1 || cols == 1 {
            return Some(Operand::Along(OperandLines { data, starts: Starts::Every(row_stride) }));
        }
        let across = row_stride == 1 || rows == 1;
        across.then_some(Operand::Across(OperandLines { data, starts: Starts::Every(col_stride) }))
    }
}

/// Whether the destination's previous contents count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Overwrite,
    Add,
}

/// `out = a b` or `out += a b`. `out` is stored row by row.
///
/// # Panics
///
/// If the inner sizes differ or a slice is shorter than its matrix.
pub(crate) fn matmul<T: Float>(
    out: &mut [T],
    dst: Destination,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) {
    let (m, n) = (a.rows, b.cols);
    assert!(out.len() >= m * n, "destination of {} for {m} x {n}", out.len());
    matmul_into(MatMut::new(&mut out[..m * n], m, n), dst, a, b);
}

/// `out = a b` or `out += a b`, for an `out` whose rows may be parts of longer rows.
///
/// # Panics
///
/// If sizes differ or a slice is shorter than its matrix.
pub(crate) fn matmul_into<T: Float>(
    mut out: MatMut<'_, T>,
    dst: Destination,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) {
    if INDEPENDENT_ROWS.get() || !multiply_in_bf16(&mut out, dst, a, b) {
        matmul_unrounded(out, dst, a, b);
    }
}

/// As [`matmul_into`], but the factors are never rounded to bf16.
pub(crate) fn matmul_unrounded<T: Float>(
    out: MatMut<'_, T>,
    dst: Destination,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) {
    let (m, k, n) = sizes(&out, a, b);
    let threads = threads_for(m * k * n);
    let size = ProductSize { rows: m, depth: k, columns: n };
    if (a.col_stride, a.row_stride, b.row_stride) == (1, k, 1)
        && (INDEPENDENT_ROWS.get() && m * k > 0 || few_rows_apply::<T>(size, b.col_stride))
    {
        let (left, right) = (&a.data[..m * k], (b.data, b.col_stride));
        return product_of_few_rows(out, dst == Destination::Add, left, right, threads > 1);
    }
    let Some(part) = part((m, k, n), threads) else { return multiply(out, dst, a, b) };
    out.for_each_part(part, |out, row, column| {
        let a = a.rows(row..row + out.rows());
        let b = b.columns(column..column + out.cols());
        multiply(out, dst, a, b);
    });
}

/// The part for each of some threads of a product with `m` rows, `n` columns and the inner size `k`.
///
/// The threads divide the longer side of the result, because each of them reads the whole operand that
/// belongs to the other side. None if one thread computes the product.
fn part((m, k, n): (usize, usize, usize), threads: usize) -> Option<MatrixPart> {
    // The kernel computes tiles of 8 rows and 3 vectors of columns.
    let rows = length_of_part((m, n), k, 8, threads).map(MatrixPart::Rows);
    let columns = length_of_part((n, m), k, 48, threads).map(MatrixPart::Columns);
    if m > n { rows.or(columns) } else { columns.or(rows) }
}

/// Some tiles of the side `len`, so that no more parts than `threads` cover it. None if one part does.
///
/// The `gemm` crate (0.19) adds up the terms of an element in an order that depends on the inner size only,
/// unless the result is small: up to 256 elements, or up to 64 by 64 with an inner size above 512. So no
/// part is that small, and the parts have the same bits as the whole.
fn length_of_part(
    (len, other): (usize, usize),
    k: usize,
    tile: usize,
    threads: usize,
) -> Option<usize> {
    let keeps_order =
        |len: usize| len * other > 256 && other > 1 && (k <= 512 || len > 64 || other > 64);
    (2..=threads).rev().find_map(|parts| {
        let part = len.div_ceil(parts).next_multiple_of(tile);
        let last = len - (len - 1) / part * part;
        (part < len && last > 1 && keeps_order(last)).then_some(part)
    })
}

/// The rows of a product, its inner size, and its columns.
///
/// # Panics
///
/// If sizes differ or a slice is shorter than its matrix.
fn sizes<T: Float>(
    out: &MatMut<'_, T>,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) -> (usize, usize, usize) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "inner sizes of a matrix product");
    assert_eq!((out.rows(), out.cols()), (m, n), "destination of a matrix product");
    assert!(a.data.len() >= a.reach(), "left operand of {} for {m} x {k}", a.data.len());
    assert!(b.data.len() >= b.reach(), "right operand of {} for {k} x {n}", b.data.len());
    (m, k, n)
}

/// The product on this thread.
fn multiply<T: Float>(
    mut out: MatMut<'_, T>,
    dst: Destination,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) {
    let (m, k, n) = sizes(&out, a, b);
    let stride = |s: usize| isize::try_from(s).expect("a slice has at most isize::MAX elements");
    // SAFETY: the largest offset of an operand is one below its `reach`, which `sizes` has compared with
    // the length of its slice. `out` has `m` rows of `n` elements that nothing else refers to while it is
    // borrowed (the invariant of `MatMut`), and all are initialised.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(out.row_stride()),
            dst == Destination::Add,
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
            Parallelism::None,
        );
    }
}

/// Computes the product with factors in bf16, if that is [set](crate::ops::set_product_precision), possible and
/// worth it.
fn multiply_in_bf16<T: Float>(
    out: &mut MatMut<'_, T>,
    dst: Destination,
    a: StridedMatrix<'_, T>,
    b: StridedMatrix<'_, T>,
) -> bool {
    let Some(instructions) = product_precision::bf16::<T>() else { return false };
    let (m, k, n) = sizes(out, a, b);
    if m.min(n) < FEWEST {
        return false;
    }
    let left = a.operand().and_then(Operand::as_f32s);
    let right = b.t().operand().and_then(Operand::as_f32s);
    let (Some(left), Some(right), Some(out)) = (left, right, out.as_f32s()) else { return false };
    bf16::multiply(
        instructions,
        LeftOperand::Lies(left),
        right,
        k,
        out,
        dst == Destination::Add,
        threads_for(m * n * k),
    );
    true
}

/// A left factor of several products. If they are computed in bf16, it is packed once for all of them.
pub(crate) struct LeftFactor<'a, T> {
    matrix: StridedMatrix<'a, T>,
    packed: Option<PackedFactor>,
}

impl<'a, T: Float> LeftFactor<'a, T> {
    /// The left factor of products with `columns` columns.
    pub(crate) fn new(matrix: StridedMatrix<'a, T>, columns: usize) -> Self {
        let (rows, depth) = (matrix.rows, matrix.cols);
        let fits = rows.min(columns) >= FEWEST && depth <= bf16::DEPTH;
        let packed = product_precision::bf16::<T>().filter(|_| fits).and_then(|instructions| {
            let from = matrix.operand().and_then(Operand::as_f32s)?;
            let mut packed = PackedFactor::left(instructions, rows, depth);
            packed.pack(from, 0..rows, 0..depth);
            Some(packed)
        });
        Self { matrix, packed }
    }

    /// [`matmul`] with this left factor: the same bits.
    ///
    /// # Panics
    ///
    /// Those of [`matmul`].
    pub(crate) fn times(&self, b: StridedMatrix<'_, T>, out: &mut [T], dst: Destination) {
        let Self { matrix, packed } = self;
        let (m, k, n) = (matrix.rows, matrix.cols, b.cols);
        assert_eq!(k, b.rows, "inner sizes of a matrix product");
        let right = b.t().operand().and_then(Operand::as_f32s);
        let numbers = T::f32s_mut(&mut out[..m * n]);
        if let (Some(packed), Some(right), Some(out)) = (packed, right, numbers) {
            let (left, out) = (LeftOperand::Packed(packed), MatMut::new(out, m, n));
            let (add, threads) = (dst == Destination::Add, threads_for(m * n * k));
            bf16::multiply(packed.instructions(), left, right, k, out, add, threads);
        } else {
            matmul(out, dst, *matrix, b);
        }
    }
}

/// The largest right factor that is packed whole, in elements: 4 MiB.
const LARGEST_PACKED: usize = 1 << 21;

/// The rows of a left factor that are packed at a time, so that they stay in the second-level cache.
const PACKED_ROWS: usize = 128;

/// A right factor of several products in bf16, packed once for all of them.
pub(crate) struct PackedRight(PackedFactor);

impl PackedRight {
    /// The right factor of products with so many rows. `None` if these are not [set](crate::ops::set_product_precision)
    /// to be in bf16, or not worth it, or if the packed factor would be large.
    pub(crate) fn new<T: Float>(matrix: StridedMatrix<'_, T>, rows: usize) -> Option<Self> {
        let (depth, columns) = (matrix.rows, matrix.cols);
        let fits = rows.min(columns) >= FEWEST && depth * columns <= LARGEST_PACKED;
        if INDEPENDENT_ROWS.get() || !fits { None } else { Self::always(matrix) }
    }

    /// As [`new`](Self::new), however few rows there are.
    pub(crate) fn always<T: Float>(matrix: StridedMatrix<'_, T>) -> Option<Self> {
        let instructions = product_precision::bf16::<T>()?;
        let (depth, columns) = (matrix.rows, matrix.cols);
        if depth == 0 {
            return None; // No tile has sums of nothing.
        }
        let from = matrix.t().operand().and_then(Operand::as_f32s)?;
        let mut packed = PackedFactor::right(instructions, columns, depth);
        packed.pack(from, 0..columns, 0..depth);
        Some(Self(packed))
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.depth()
    }

    pub(crate) fn columns(&self) -> usize {
        self.0.width()
    }

    /// [`matmul_into`] with this right factor: the same bits.
    ///
    /// # Panics
    ///
    /// If sizes differ or a slice is shorter than its matrix.
    pub(crate) fn product<T: Float>(
        &self,
        a: StridedMatrix<'_, T>,
        mut out: MatMut<'_, T>,
        dst: Destination,
    ) {
        let Self(packed) = self;
        let (depth, columns) = (packed.depth(), packed.width());
        assert_eq!(a.cols, depth, "inner sizes of a matrix product");
        assert_eq!((out.rows(), out.cols()), (a.rows, columns), "destination of a matrix product");
        let from = a.operand().and_then(Operand::as_f32s).expect("a left factor of f32 by rows");
        let out = out.as_f32s().expect("a result in f32");
        let threads = threads_for(a.rows * depth * columns);
        let rows = a.rows.div_ceil(threads).next_multiple_of(32).min(PACKED_ROWS);
        out.for_each_part(MatrixPart::Rows(rows), |out, first, _| {
            let mut left = PackedFactor::left(packed.instructions(), out.rows(), depth);
            left.pack(from, first..first + out.rows(), 0..depth);
            bf16::product((&left, 0), packed, out, dst == Destination::Add);
        });
    }
}

/// A right factor of several products. If they are computed in bf16, it is packed once for all of them.
pub(crate) struct RightFactor<'a, T> {
    matrix: StridedMatrix<'a, T>,
    packed: Option<PackedRight>,
}

impl<'a, T: Float> RightFactor<'a, T> {
    /// The right factor of products with so many rows in all.
    pub(crate) fn new(matrix: StridedMatrix<'a, T>, rows: usize) -> Self {
        Self { matrix, packed: PackedRight::new(matrix, rows) }
    }

    /// Whether products of few rows take no longer than those of many.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// [`matmul`] with this right factor: the same bits.
    ///
    /// # Panics
    ///
    /// Those of [`matmul`].
    pub(crate) fn product(&self, a: StridedMatrix<'_, T>, out: &mut [T], dst: Destination) {
        match &self.packed {
            Some(packed) => {
                let size = (a.rows, packed.columns());
                packed.product(a, MatMut::new(&mut out[..size.0 * size.1], size.0, size.1), dst);
            }
            None => matmul(out, dst, a, self.matrix),
        }
    }
}

/// The threads that share a product of so many multiplications.
fn threads_for(multiplications: usize) -> usize {
    if multiplications > WORTH_THREADS { thread_pool::threads() } else { 1 }
}

/// `out = left right`, or `out += left right` if `add`, with factors in bf16, if that is
/// [set](crate::ops::set_product_precision) and possible. `out` is a slice, and the distance between its rows.
/// On this thread.
pub(crate) fn product_in_bf16<T: Float>(
    left: Operand<'_, T>,
    right: Operand<'_, T>,
    ProductSize { rows, depth, columns }: ProductSize,
    (out, step): (&mut [T], usize),
    add: bool,
) -> bool {
    let Some(instructions) = product_precision::bf16::<T>() else { return false };
    let mut out = MatMut::strided(out, rows, columns, step);
    let (left, right) = (left.as_f32s(), right.as_f32s());
    let (Some(left), Some(right), Some(out)) = (left, right, out.as_f32s()) else { return false };
    bf16::multiply(instructions, LeftOperand::Lies(left), right, depth, out, add, 1);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::gemm::on_each_instruction_set;
    use super::*;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 31 + seed) * 7919 % 1009) as f32 / 1009.0 - 0.5).collect()
    }

    /// Compares a product on one thread with that on 2 and on 5.
    fn check((m, k, n): (usize, usize, usize), turned: [bool; 2], dst: Destination) {
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let a =
            if turned[0] { StridedMatrix::new(&a, k, m).t() } else { StridedMatrix::new(&a, m, k) };
        let b =
            if turned[1] { StridedMatrix::new(&b, n, k).t() } else { StridedMatrix::new(&b, k, n) };
        let product = |threads| {
            let mut out = numbers(m * n, 3);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(|| matmul(&mut out, dst, a, b));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let one = product(1);
        for threads in [2, 5] {
            let several = product(threads);
            let differ = one.iter().zip(&several).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{m} x {k} x {n}: {:?}", part((m, k, n), threads));
        }
    }

    #[test]
    fn inner_sizes_with_kernels_of_their_own_have_the_same_bits_too() {
        let sizes = [
            (700, 1, 700),
            (700, 2, 700),
            (70, 600, 2000),
            (2000, 600, 70),
            (64, 2000, 64),
            (300, 1024, 64),
        ];
        on_each_instruction_set(|| {
            for sizes in sizes {
                for turned in [[false, false], [true, false], [false, true]] {
                    check(sizes, turned, Destination::Overwrite);
                }
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_product_has_the_same_bits_on_any_number_of_threads(
            m in 1usize..400,
            k in 1usize..700,
            n in 1usize..400,
            turned in any::<[bool; 2]>(),
            add in any::<bool>(),
        ) {
            let dst = if add { Destination::Add } else { Destination::Overwrite };
            on_each_instruction_set(|| check((m, k, n), turned, dst));
        }
    }
}
