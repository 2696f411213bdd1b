//! AVX512-BF16: the tile of a product in registers.
//!
//! `vdpbf16ps` multiplies two vectors of 16 pairs, and adds both products of each pair to 16 sums in f32.
//! A tile has 8 rows and 1 to 3 vectors of columns. Each step loads the vectors of a line of the right
//! factor, and broadcasts the pairs of 8 rows of a line of the left one.

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_set1_ps, _mm512_setzero_ps,
};

use super::super::line::{HALF, LANES, PairLine};
use super::super::runs::SIDE;
use super::vectors::{load, load_some, pairs_of, store, store_some, transposed};
use crate::kernels::mat_mut::MatMut;

/// One tile: every second element of `left` has the pairs of its 8 rows. `out` has as many rows and
/// columns as exist of the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn tile<const VECTORS: usize>(
    left: &[[f32; HALF]],
    right: [&[PairLine]; VECTORS],
    mut out: MatMut<'_, f32>,
    add: bool,
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
    // A whole tile has loops of constant length, so the sums stay in registers.
    if out.rows() == HALF && out.cols() == VECTORS * LANES {
        for (row, sums) in sums.iter().enumerate() {
            let (places, _) = out.row(row).as_chunks_mut();
            let Ok(places) = <&mut [_; VECTORS]>::try_from(places) else { continue };
            for (place, &sum) in places.iter_mut().zip(sums) {
                let total = if add { _mm512_add_ps(load(place), sum) } else { sum };
                store(place, total);
            }
        }
        return;
    }
    for (row, sums) in sums.into_iter().enumerate().take(out.rows()) {
        for (out, sum) in out.row(row).chunks_mut(LANES).zip(sums) {
            put_some(out, sum, add);
        }
    }
}

/// Writes or adds as many sums as there are places.
#[target_feature(enable = "avx512f")]
#[inline]
fn put_some(out: &mut [f32], sums: __m512, add: bool) {
    store_some(out, if add { _mm512_add_ps(load_some(out), sums) } else { sums });
}

/// Writes or adds sums to a result with as many rows and columns as exist.
#[target_feature(enable = "avx512f")]
pub(super) fn store_tile(sums: &[[f32; SIDE]; SIDE], mut out: MatMut<'_, f32>, add: bool) {
    for (row, sums) in sums.iter().enumerate().take(out.rows()) {
        for (out, sums) in out.row(row).chunks_mut(LANES).zip(sums.as_chunks().0) {
            put_some(out, load(sums), add);
        }
    }
}

/// Writes transposed sums to a result with as many rows and columns as exist.
#[target_feature(enable = "avx512f")]
pub(super) fn store_turned(sums: &[[f32; SIDE]; SIDE], mut out: MatMut<'_, f32>) {
    let columns = out.cols().div_ceil(LANES);
    for first in (0..out.rows()).step_by(LANES) {
        for (number, square) in sums.as_chunks::<LANES>().0.iter().enumerate().take(columns) {
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (row, sums) in rows.iter_mut().zip(square) {
                *row = load(&sums.as_chunks().0[first / LANES]);
            }
            let turned = transposed(rows).into_iter().enumerate().take(out.rows() - first);
            for (row, numbers) in turned {
                let to = out.row(first + row).chunks_mut(LANES).nth(number);
                to.into_iter().for_each(|to| put_some(to, numbers, false));
            }
        }
    }
}
