//! The transposed copy of a matrix.

use super::float::Float;

/// The side of a square that is transposed at a time.
const SQUARE: usize = 4;

/// Writes the transposed matrix of some rows of `from` to `to`, or adds it if `ADD`, in squares whose
/// elements are moved by shuffles between registers.
#[inline(always)]
pub(super) fn transpose<T: Float, const ADD: bool>(
    from: &[T],
    step: usize,
    (rows, columns): (usize, usize),
    to: &mut [T],
    to_step: usize,
) {
    for row in (0..rows).step_by(SQUARE) {
        for column in (0..columns).step_by(SQUARE) {
            let (height, width) = (SQUARE.min(rows - row), SQUARE.min(columns - column));
            let (from, to) = (&from[row * step + column..], &mut to[column * to_step + row..]);
            if (height, width) == (SQUARE, SQUARE) {
                transpose_square::<T, ADD>(from, step, to, to_step);
            } else {
                for i in 0..height {
                    for j in 0..width {
                        put::<T, ADD>(&mut to[j * to_step + i], from[i * step + j]);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn transpose_square<T: Float, const ADD: bool>(
    from: &[T],
    step: usize,
    to: &mut [T],
    to_step: usize,
) {
    let mut square = [[T::zero(); SQUARE]; SQUARE];
    for (i, row) in square.iter_mut().enumerate() {
        row.copy_from_slice(&from[i * step..][..SQUARE]);
    }
    let [a, b, c, d] = square;
    for j in 0..SQUARE {
        let to = &mut to[j * to_step..][..SQUARE];
        for (to, value) in to.iter_mut().zip([a[j], b[j], c[j], d[j]]) {
            put::<T, ADD>(to, value);
        }
    }
}

/// Replaces a number, or adds to it if `ADD`.
#[inline(always)]
pub(super) fn put<T: Float, const ADD: bool>(place: &mut T, value: T) {
    if ADD {
        *place += value;
    } else {
        *place = value;
    }
}
