//! A square of numbers that is transposed at a time.

/// The side of a square.
pub(in crate::ops) const SQUARE: usize = 4;

pub(in crate::ops) type Square<T> = [[T; SQUARE]; SQUARE];

/// The transposed square.
#[inline(always)]
pub(in crate::ops) fn transposed<T: Copy>([a, b, c, d]: Square<T>) -> Square<T> {
    [0, 1, 2, 3].map(
        #[inline(always)]
        |i| [a[i], b[i], c[i], d[i]],
    )
}
