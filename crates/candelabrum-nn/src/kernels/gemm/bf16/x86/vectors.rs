//! Vectors of 16 numbers in f32 or 16 pairs in bf16, for a processor with AVX-512.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _MM_HINT_ET0, _mm_prefetch, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16, _mm512_setzero_ps, _mm512_shuffle_i32x4,
    _mm512_storeu_ps, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};
use std::mem;

use super::super::line::LANES;

/// The pairs of the numbers of two vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
pub(super) fn paired(low: __m512, high: __m512) -> __m512 {
    // Number `i` of the first vector, then number `i` of the second one.
    const ORDER: [i16; 2 * LANES] = {
        let mut order = [0; 2 * LANES];
        let mut i = 0;
        while i < LANES {
            (order[2 * i], order[2 * i + 1]) = (i as i16, (LANES + i) as i16);
            i += 1;
        }
        order
    };
    // SAFETY: 64 bytes of integers become a vector of 64 bytes. All bits are valid.
    let order: __m512i = unsafe { mem::transmute(ORDER) };
    let both = _mm512_castps_si512(rounded(low, high));
    _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both))
}

/// The numbers of two vectors, rounded to bf16: those of `low`, and behind them those of `high`.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(super) fn rounded(low: __m512, high: __m512) -> __m512 {
    let both = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 64 bytes for which all bits are valid.
    unsafe { mem::transmute::<__m512bh, __m512>(both) }
}

/// The columns of 16 × 16 elements of 32 bits: those of pairs of rows are brought together, then those of
/// 4, 8 and 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transposed(rows: [__m512; LANES]) -> [__m512; LANES] {
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let zero = _mm512_castps_si512(_mm512_setzero_ps());
    let (mut from, mut to) = ([zero; LANES], [zero; LANES]);
    for (from, row) in from.iter_mut().zip(rows) {
        *from = _mm512_castps_si512(row);
    }
    for i in (0..LANES).step_by(2) {
        to[i] = _mm512_unpacklo_epi32(from[i], from[i + 1]);
        to[i + 1] = _mm512_unpackhi_epi32(from[i], from[i + 1]);
    }
    // `from[i + j]`: column `j` of each lane of 4 columns, of the rows `i..i + 4`.
    for i in (0..LANES).step_by(4) {
        from[i] = _mm512_unpacklo_epi64(to[i], to[i + 2]);
        from[i + 1] = _mm512_unpackhi_epi64(to[i], to[i + 2]);
        from[i + 2] = _mm512_unpacklo_epi64(to[i + 1], to[i + 3]);
        from[i + 3] = _mm512_unpackhi_epi64(to[i + 1], to[i + 3]);
    }
    for j in 0..4 {
        let above = (from[j], from[4 + j]);
        let below = (from[8 + j], from[12 + j]);
        let even_above = _mm512_shuffle_i32x4::<EVEN>(above.0, above.1);
        let even_below = _mm512_shuffle_i32x4::<EVEN>(below.0, below.1);
        let odd_above = _mm512_shuffle_i32x4::<ODD>(above.0, above.1);
        let odd_below = _mm512_shuffle_i32x4::<ODD>(below.0, below.1);
        to[j] = _mm512_shuffle_i32x4::<EVEN>(even_above, even_below);
        to[4 + j] = _mm512_shuffle_i32x4::<EVEN>(odd_above, odd_below);
        to[8 + j] = _mm512_shuffle_i32x4::<ODD>(even_above, even_below);
        to[12 + j] = _mm512_shuffle_i32x4::<ODD>(odd_above, odd_below);
    }
    let mut columns = rows;
    for (column, to) in columns.iter_mut().zip(to) {
        *column = _mm512_castsi512_ps(to);
    }
    columns
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn pairs_of(bits: __m512) -> __m512bh {
    // SAFETY: both types are 64 bytes for which all bits are valid.
    unsafe { mem::transmute::<__m512, __m512bh>(bits) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: a vector has `LANES` numbers.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store(to: &mut [f32; LANES], vector: __m512) {
    // SAFETY: a vector has `LANES` numbers.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) }
}

/// Up to 16 numbers, and zeros behind them.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_some(from: &[f32]) -> __m512 {
    // SAFETY: the mask has a bit only for numbers of the slice. No other memory is accessed.
    unsafe { _mm512_maskz_loadu_ps(mask(from.len()), from.as_ptr()) }
}

/// Stores as many numbers as there are places.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_some(to: &mut [f32], vector: __m512) {
    // SAFETY: the mask has a bit only for numbers of the slice. No other memory is accessed.
    unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask(to.len()), vector) }
}

/// A bit for each of the first `len` lanes.
#[inline(always)]
fn mask(len: usize) -> __mmask16 {
    if len < LANES { (1 << len) - 1 } else { __mmask16::MAX }
}

/// Stores the lanes from `first` on.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_from(to: &mut [f32; LANES], first: usize, vector: __m512) {
    // SAFETY: a vector has `LANES` numbers, and no other memory is accessed.
    unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), !mask(first), vector) }
}

/// Fetches the line of the cache with the first number, to write it.
#[inline]
pub(super) fn prefetch(numbers: &[f32]) {
    // SAFETY: every address may be fetched.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(numbers.as_ptr().cast()) };
}
