//! The transposed copy of a matrix.

#[cfg(not(target_arch = "x86_64"))]
#[path = "plain.rs"]
mod f32s;
#[cfg(target_arch = "x86_64")]
#[path = "sse.rs"]
mod f32s;
mod square;

use super::float::Float;

pub(crate) use self::f32s::transposed as transposed_f32s;
pub(crate) use self::square::{SQUARE, Square, transposed};

/// Writes the transposed matrix of some rows of `from` to `to`, or adds it if `ADD`, in squares whose
/// elements are moved by shuffles between registers.
#[inline(always)]
pub(crate) fn transpose<T: Float, const ADD: bool>(
    from: &[T],
    step: usize,
    (rows, columns): (usize, usize),
    to: &mut [T],
    to_step: usize,
) {
    let (whole_rows, whole_columns) = (rows / SQUARE * SQUARE, columns / SQUARE * SQUARE);
    for row in (0..whole_rows).step_by(SQUARE) {
        let line = |i: usize| from[(row + i) * step..][..columns].as_chunks::<SQUARE>().0;
        let (a, b, c, d) = (line(0), line(1), line(2), line(3));
        let squares = a.iter().zip(b).zip(c.iter().zip(d)).enumerate();
        for (number, ((&a, &b), (&c, &d))) in squares {
            let to = &mut to[number * SQUARE * to_step + row..];
            for (j, values) in T::transposed([a, b, c, d]).into_iter().enumerate() {
                let to = &mut to[j * to_step..][..SQUARE];
                for (to, value) in to.iter_mut().zip(values) {
                    put::<T, ADD>(to, value);
                }
            }
        }
    }
    for row in 0..rows {
        let first = if row < whole_rows { whole_columns } else { 0 };
        for column in first..columns {
            put::<T, ADD>(&mut to[column * to_step + row], from[row * step + column]);
        }
    }
}

/// Replaces a number, or adds to it if `ADD`.
#[inline(always)]
pub(crate) fn put<T: Float, const ADD: bool>(place: &mut T, value: T) {
    if ADD {
        *place += value;
    } else {
        *place = value;
    }
}
