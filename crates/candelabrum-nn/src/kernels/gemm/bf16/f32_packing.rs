//! Factors of numbers that are rounded to bf16 and stay in f32.

use std::ops::Range;

use super::line::{COLUMNS, LANES, LineForm, PackedPlace, PairLine};
use super::operand::{Operand, OperandLines};
use crate::kernels::transpose::{SQUARE, transposed_f32s};
use candelabrum_memory::simd::simd;

/// The forms of a left factor and of a right one.
pub(super) const FORMS: [LineForm; 2] = [LineForm::Rows, LineForm::Columns];

/// The nearest number with 8 significant bits. Of two, the one whose last bit is 0. A subnormal number becomes 0.
#[inline(always)]
pub(super) fn rounded(number: f32) -> f32 {
    let bits = number.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let is_subnormal = bits & 0x7f80_0000 == 0;
    let kept = if is_nan { bits | 0x0040_0000 } else { nearest };
    f32::from_bits(if is_subnormal { bits & 0x8000_0000 } else { kept })
}

/// Packs a part of a factor. `to` begins with a group of rows or columns. An odd depth is followed by zeros.
pub(super) fn pack(
    (from, form): (Operand<'_, f32>, LineForm),
    width: Range<usize>,
    depth: Range<usize>,
    to: &mut [PairLine],
    place: PackedPlace,
) {
    let (to, first) = (to.as_flattened_mut(), 2 * place.pair);
    simd(
        #[inline(always)]
        || {
            if form == LineForm::Rows {
                let (to, step) = (&mut to[first..], place.tile * LANES);
                let even = depth.len().next_multiple_of(2);
                return match from {
                    Operand::Along(from) => copied(from, (&width, &depth), (to, step), even),
                    Operand::Across(from) => turned(from, (&depth, &width), (to, step)),
                };
            }
            let starts = width.clone().step_by(COLUMNS);
            for (column, to) in starts.zip(to.chunks_mut((place.group * LANES).max(1))) {
                let columns = column..width.end.min(column + COLUMNS);
                let to = &mut to[first * COLUMNS..];
                match from {
                    Operand::Across(from) => {
                        copied(from, (&depth, &columns), (to, COLUMNS), COLUMNS);
                    }
                    Operand::Along(from) => turned(from, (&columns, &depth), (to, COLUMNS)),
                }
                if depth.len() % 2 == 1 {
                    to[depth.len() * COLUMNS..][..COLUMNS].fill(0.0);
                }
            }
        },
    );
}

/// Rounds some numbers of some lines to lines at distances of `step`, and fills each up to `filled` numbers with zeros.
#[inline(always)]
fn copied(
    from: OperandLines<'_, f32>,
    (lines, part): (&Range<usize>, &Range<usize>),
    (to, step): (&mut [f32], usize),
    filled: usize,
) {
    for (line, to) in lines.clone().zip(to.chunks_mut(step)) {
        let (numbers, rest) = to[..filled].split_at_mut(part.len());
        for (to, &number) in numbers.iter_mut().zip(from.part(line, part.start, part.len())) {
            *to = rounded(number);
        }
        rest.fill(0.0);
    }
}

/// Rounds and turns some numbers of some lines: number `i` of line `j` becomes number `j` of a line at `i * step`. An odd
/// number of lines is followed by zeros.
#[inline(always)]
fn turned(
    from: OperandLines<'_, f32>,
    (lines, part): (&Range<usize>, &Range<usize>),
    (to, step): (&mut [f32], usize),
) {
    let line = |number| from.part(number, part.start, part.len());
    let (squares, whole) = (lines.len() / SQUARE * SQUARE, part.len() / SQUARE * SQUARE);
    for first in (0..squares).step_by(SQUARE) {
        let some = [0, 1, 2, 3].map(|i| line(lines.start + first + i));
        let [a, b, c, d] = some.map(|line| line.as_chunks::<SQUARE>().0);
        for (number, (((&a, &b), &c), &d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
            for (i, numbers) in transposed_f32s([a, b, c, d]).into_iter().enumerate() {
                let place = (number * SQUARE + i) * step + first;
                to[place..place + SQUARE].copy_from_slice(&numbers.map(rounded));
            }
        }
        for (place, line) in some.into_iter().enumerate() {
            for (i, &number) in line.iter().enumerate().skip(whole) {
                to[i * step + first + place] = rounded(number);
            }
        }
    }
    for place in squares..lines.len().next_multiple_of(2) {
        let numbers = if place < lines.len() { line(lines.start + place) } else { &[] };
        for i in 0..part.len() {
            to[i * step + place] = numbers.get(i).map_or(0.0, |&number| rounded(number));
        }
    }
}
