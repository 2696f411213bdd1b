//! Squares of f32 numbers by the shuffles of SSE. The compiler makes 16 loads and 16 stores of the plain
//! function, which take twice as long.
//!
//! # Invariant
//! Every x86-64 processor has SSE.

use std::arch::x86_64::{__m128, _mm_movehl_ps, _mm_movelh_ps, _mm_unpackhi_ps, _mm_unpacklo_ps};

use pulp::bytemuck::cast;

use super::square::Square;

/// The transposed square.
#[inline(always)]
pub(crate) fn transposed(square: Square<f32>) -> Square<f32> {
    // SAFETY: the invariant of the module.
    unsafe { by_shuffles(square) }
}

#[inline]
#[target_feature(enable = "sse")]
fn by_shuffles(square: Square<f32>) -> Square<f32> {
    let [a, b, c, d]: [__m128; 4] = cast(square);
    let (left_ab, left_cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
    let (right_ab, right_cd) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
    cast([
        _mm_movelh_ps(left_ab, left_cd),
        _mm_movehl_ps(left_cd, left_ab),
        _mm_movelh_ps(right_ab, right_cd),
        _mm_movehl_ps(right_cd, right_ab),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::square;
    use super::*;

    #[test]
    fn shuffles_transpose() {
        let square = [0.0, 4.0, 8.0, 12.0].map(|x| [x, x + 1.0, x + 2.0, x + 3.0]);
        assert_eq!(transposed(square), square::transposed(square));
        assert_eq!(transposed(square)[1], [1.0, 5.0, 9.0, 13.0]);
    }
}
