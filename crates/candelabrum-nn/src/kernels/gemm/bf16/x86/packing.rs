//! AVX-512: a factor is rounded and packed in one pass.

use std::arch::x86_64::_mm512_setzero_ps;
use std::ops::Range;

use super::super::line::{LANES, LineForm, PackedPlace, PairLine};
use super::super::operand::{Operand, OperandLines};
use super::vectors::{load, load_some, paired, rounded, store, store_from, transposed};

/// Groups of 16 rows or columns that are packed at a time, so that what they read of a line is long.
const TOGETHER: usize = 6;

/// Packs rows or columns `width` and steps `depth` of a factor. `to` begins with a group of 16 rows or columns.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn pack(
    (from, form): (Operand<'_, f32>, LineForm),
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
    place: PackedPlace,
) {
    let PackedPlace { group, pair, .. } = place;
    match (from, form) {
        (Operand::Along(from), LineForm::Depth) => {
            lines_along(from, width, depth, &mut to[pair..], group);
        }
        (Operand::Across(from), LineForm::Depth) => {
            lines_across(from, width, depth, &mut to[pair..], group);
        }
        (Operand::Along(from), LineForm::Width) => tiles_along(from, width, depth, to, place),
        (Operand::Across(from), LineForm::Width) => tiles_across(from, width, depth, to, place),
        (_, LineForm::Rows | LineForm::Columns) => unreachable!("a form for products in f32"),
    }
}

/// Rounds rows to the rows of tiles. They begin with a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tiles_along(
    from: OperandLines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
    place: PackedPlace,
) {
    assert!(place.pair.is_multiple_of(LANES), "a part of rows that begins within a tile");
    for (number, first) in width.clone().step_by(LANES).enumerate() {
        let start = number * place.group + place.pair / LANES * place.tile;
        let rows = if depth.is_empty() { 0 } else { LANES.min(width.end - first) };
        for row in 0..rows {
            let numbers = from.part(first + row, depth.start, depth.len());
            let (steps, rest) = numbers.as_chunks::<{ 2 * LANES }>();
            let mut lines = to[start + row..].iter_mut().step_by(place.tile);
            for (numbers, line) in steps.iter().zip(&mut lines) {
                if let [low, high] = numbers.as_chunks().0 {
                    store(line, rounded(load(low), load(high)));
                }
            }
            if let (false, Some(line)) = (rest.is_empty(), lines.next()) {
                let (low, high) = rest.split_at(rest.len().min(LANES));
                store(line, rounded(load_some(low), load_some(high)));
            }
        }
    }
}

/// Turns the pairs of steps to the rows of tiles. Behind them, rows and pairs of tiles become 0.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn tiles_across(
    from: OperandLines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
    place: PackedPlace,
) {
    let end = place.pair + depth.len().div_ceil(2);
    let groups = width.len().div_ceil(LANES);
    for some in (0..groups).step_by(TOGETHER) {
        for tile in place.pair / LANES..end.div_ceil(LANES) {
            let pairs = (LANES * tile).max(place.pair)..(LANES * (tile + 1)).min(end);
            for group in some..groups.min(some + TOGETHER) {
                let first = width.start + group * LANES;
                let len = LANES.min(width.end - first);
                let mut columns = [_mm512_setzero_ps(); LANES];
                for pair in pairs.clone() {
                    let step = depth.start + 2 * (pair - place.pair);
                    let line = |step| match step < depth.end {
                        true => load_some(from.part(step, first, len)),
                        false => _mm512_setzero_ps(),
                    };
                    columns[pair % LANES] = paired(line(step), line(step + 1));
                }
                let lines = &mut to[group * place.group + tile * place.tile..][..LANES];
                for (row, line) in transposed(columns).into_iter().zip(lines) {
                    store_from(line, pairs.start % LANES, row);
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lines_across(
    from: OperandLines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
    pitch: usize,
) {
    let starts = width.clone().step_by(TOGETHER * LANES);
    for (first, to) in starts.zip(to.chunks_mut((TOGETHER * pitch).max(1))) {
        let len = (width.end - first).min(TOGETHER * LANES);
        some_lines_across(from, (first, len), depth.clone(), to, pitch);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn some_lines_across(
    from: OperandLines<'_, f32>,
    (first, len): (usize, usize),
    depth: Range<usize>,
    to: &mut [PairLine],
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

#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn lines_along(
    from: OperandLines<'_, f32>,
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
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
