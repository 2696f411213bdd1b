//! A square of numbers that is transposed at a time.

/// The side of a square.
pub(crate) const SQUARE: usize = 4;

pub(crate) type Square<T> = [[T; SQUARE]; SQUARE];

/// The transposed square.
#[inline(always)]
pub(crate) fn transposed<T: Copy>([a, b, c, d]: Square<T>) -> Square<T> {
    [0, 1, 2, 3].map(
        #[inline(always)]
        |i| [a[i], b[i], c[i], d[i]],
    )
}
