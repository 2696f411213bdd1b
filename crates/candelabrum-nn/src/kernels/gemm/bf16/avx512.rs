//! AVX512-BF16: packing, and the tile of a product in registers.
//!
//! `vdpbf16ps` multiplies two vectors of 16 pairs, and adds both products of each pair to 16 sums in f32.
//! A tile has 8 rows and 1 to 3 vectors of columns. Each step loads the vectors of a line of the right
//! factor, and broadcasts the pairs of 8 rows of a line of the left one.
//!
//! **Invariant** [`Instructions`] has a value only on a processor with AVX512F, AVX512BW and AVX512-BF16,
//! the instructions of the functions of this file.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, __mmask16, _mm512_add_ps, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_permutexvar_epi16, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_shuffle_i32x4, _mm512_storeu_ps, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};
use std::mem;
use std::ops::Range;

use super::finish::Finish;
use super::line::{HALF, LANES, Line};
use super::operand::{Lines, Operand};
use crate::kernels::mat_mut::MatMut;

/// The evidence that this processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions(());

/// Groups of 16 rows or columns that are packed at a time, so that what they read of a line is long.
const TOGETHER: usize = 6;

impl Instructions {
    pub(crate) const NAME: &'static str = "AVX512-BF16";

    /// `None` if the processor does not have them.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        present.then_some(Self(()))
    }

    /// Packs rows or columns `width` and steps `depth` of a factor. The groups of 16 rows or columns are
    /// `pitch` lines apart.
    #[inline]
    pub(super) fn pack(
        self,
        from: Operand<'_, f32>,
        width: Range<usize>,
        depth: Range<usize>,
        to: &mut [Line],
        pitch: usize,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { pack(from, width, depth, to, pitch) }
    }

    /// One tile: every second element of `left` has the pairs of its 8 rows. `out` has as many rows and
    /// columns as exist of the tile.
    #[inline]
    pub(super) fn tile<const VECTORS: usize>(
        self,
        left: &[[f32; HALF]],
        right: [&[Line]; VECTORS],
        out: MatMut<'_, f32>,
        finish: Finish,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { tile(left, right, out, finish) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack(
    from: Operand<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [Line],
    pitch: usize,
) {
    match from {
        Operand::Along(from) => pack_along(from, width, depth, to, pitch),
        Operand::Across(from) => pack_across(from, width, depth, to, pitch),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_across(
    from: Lines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [Line],
    pitch: usize,
) {
    let starts = width.clone().step_by(TOGETHER * LANES);
    for (first, to) in starts.zip(to.chunks_mut((TOGETHER * pitch).max(1))) {
        let len = (width.end - first).min(TOGETHER * LANES);
        pack_some_across(from, (first, len), depth.clone(), to, pitch);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_some_across(
    from: Lines<'_, f32>,
    (first, len): (usize, usize),
    depth: Range<usize>,
    to: &mut [Line],
    pitch: usize,
) {
    let pairs = depth.len().div_ceil(2);
    let zeros = [0.0; TOGETHER * LANES];
    for pair in 0..pairs {
        let step = depth.start + 2 * pair;
        let low = from.part(step, first, len);
        let high =
            if step + 1 < depth.end { from.part(step + 1, first, len) } else { &zeros[..len] };
        let (lows, low_rest) = low.as_chunks();
        let (highs, high_rest) = high.as_chunks();
        let mut places = to.iter_mut().skip(pair).step_by(pitch);
        for ((low, high), place) in lows.iter().zip(highs).zip(&mut places) {
            store(place, paired(load(low), load(high)));
        }
        if let (false, Some(place)) = (low_rest.is_empty(), places.next()) {
            store(place, paired(load_some(low_rest), load_some(high_rest)));
        }
    }
}

/// The pairs of the numbers of two vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline]
fn paired(low: __m512, high: __m512) -> __m512 {
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
fn rounded(low: __m512, high: __m512) -> __m512 {
    let both = _mm512_cvtne2ps_pbh(high, low);
    // SAFETY: both types are 64 bytes for which all bits are valid.
    unsafe { mem::transmute::<__m512bh, __m512>(both) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_along(
    from: Lines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [Line],
    pitch: usize,
) {
    let pairs = depth.len().div_ceil(2);
    let starts = width.clone().step_by(LANES);
    for (first, group) in starts.zip(to.chunks_mut(pitch.max(1))) {
        let lines = (width.end - first).min(LANES);
        for (number, to) in group[..pairs].chunks_mut(LANES).enumerate() {
            let step = depth.start + 2 * LANES * number;
            let len = (depth.end - step).min(2 * LANES);
            let mut rows = [_mm512_setzero_ps(); LANES];
            if (lines, len) == (LANES, 2 * LANES) {
                for (i, row) in rows.iter_mut().enumerate() {
                    if let [low, high] = from.part(first + i, step, len).as_chunks().0 {
                        *row = rounded(load(low), load(high));
                    }
                }
            } else {
                for (i, row) in rows.iter_mut().enumerate().take(lines) {
                    let (low, high) = from.part(first + i, step, len).split_at(len.min(LANES));
                    *row = rounded(load_some(low), load_some(high));
                }
            }
            for (place, column) in to.iter_mut().zip(transposed(rows)) {
                store(place, column);
            }
        }
    }
}

/// The columns of 16 × 16 elements of 32 bits: those of pairs of rows are brought together, then those of
/// 4, 8 and 16 rows.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512; LANES]) -> [__m512; LANES] {
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

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tile<const VECTORS: usize>(
    left: &[[f32; HALF]],
    right: [&[Line]; VECTORS],
    mut out: MatMut<'_, f32>,
    Finish { scale, add }: Finish,
) {
    // Lengths that the compiler knows, so that it checks none of them in the loop.
    let pairs = right[0].len();
    let left = &left[..(2 * pairs).saturating_sub(1)];
    let mut lines = right;
    for line in &mut lines {
        *line = &line[..pairs];
    }
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; HALF];
    for k in 0..pairs {
        let mut vectors = [_mm512_setzero_ps(); VECTORS];
        for (vector, line) in vectors.iter_mut().zip(lines) {
            *vector = load(&line[k]);
        }
        for (sums, &pair) in sums.iter_mut().zip(&left[2 * k]) {
            let pair = pairs_of(_mm512_set1_ps(pair));
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = _mm512_dpbf16_ps(*sum, pair, pairs_of(vector));
            }
        }
    }
    let scale = _mm512_set1_ps(scale);
    // A whole tile has loops of constant length, so the sums stay in registers.
    if out.rows() == HALF && out.cols() == VECTORS * LANES {
        for (row, sums) in sums.iter().enumerate() {
            let (places, _) = out.row(row).as_chunks_mut();
            let Ok(places) = <&mut [_; VECTORS]>::try_from(places) else { continue };
            for (place, &sum) in places.iter_mut().zip(sums) {
                let product = _mm512_mul_ps(sum, scale);
                let total = if add { _mm512_add_ps(load(place), product) } else { product };
                store(place, total);
            }
        }
        return;
    }
    for (row, sums) in sums.into_iter().enumerate().take(out.rows()) {
        for (out, sum) in out.row(row).chunks_mut(LANES).zip(sums) {
            let product = _mm512_mul_ps(sum, scale);
            let total = if add { _mm512_add_ps(load_some(out), product) } else { product };
            store_some(out, total);
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn pairs_of(bits: __m512) -> __m512bh {
    // SAFETY: both types are 64 bytes for which all bits are valid.
    unsafe { mem::transmute::<__m512, __m512bh>(bits) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: a vector has `LANES` numbers.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(to: &mut [f32; LANES], vector: __m512) {
    // SAFETY: a vector has `LANES` numbers.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) }
}

/// Up to 16 numbers, and zeros behind them.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_some(from: &[f32]) -> __m512 {
    // SAFETY: the mask has a bit only for numbers of the slice. No other memory is accessed.
    unsafe { _mm512_maskz_loadu_ps(mask(from.len()), from.as_ptr()) }
}

/// Stores as many numbers as there are places.
#[target_feature(enable = "avx512f")]
#[inline]
fn store_some(to: &mut [f32], vector: __m512) {
    // SAFETY: the mask has a bit only for numbers of the slice. No other memory is accessed.
    unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask(to.len()), vector) }
}

/// A bit for each of the first `len` lanes.
#[inline(always)]
fn mask(len: usize) -> __mmask16 {
    if len < LANES { (1 << len) - 1 } else { __mmask16::MAX }
}
