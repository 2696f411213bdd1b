//! A product of matrices in f32, whose factors are rounded to bf16 while they are packed.

use super::instruction_set::InstructionSet;
use super::line::LANES;
use super::operand::Operand;
use super::packed::PackedFactor;
use super::product::product;
use crate::kernels::mat_mut::{MatMut, MatrixPart};

/// Rows, columns and steps of the depth that are packed at a time. The packed rows, 1 MiB at most, stay in
/// the second-level cache.
const ROWS: usize = 512;
const COLUMNS: usize = 1024;
pub(crate) const DEPTH: usize = 1024;

/// The left factor of a product.
#[derive(Clone, Copy)]
pub(crate) enum LeftOperand<'a> {
    /// It is packed block by block.
    Lies(Operand<'a, f32>),
    /// All of its rows and its whole depth, which is at most [`DEPTH`], have been packed: for several products
    /// with the same factor.
    Packed(&'a PackedFactor),
}

/// `out = left right`, or `out += left right` if `add`, with sums over `depth`. Shared by so many
/// threads.
///
/// Each element is summed in the same order whatever the number of threads is, and whether `left` is packed.
pub(crate) fn multiply(
    instructions: InstructionSet,
    left: LeftOperand<'_>,
    right: Operand<'_, f32>,
    depth: usize,
    out: MatMut<'_, f32>,
    add: bool,
    threads: usize,
) {
    let (rows, columns) = (out.rows(), out.cols());
    let share = rows.max(columns).div_ceil(threads.max(1)).next_multiple_of(3 * LANES);
    let part = if rows >= columns { MatrixPart::Rows(share) } else { MatrixPart::Columns(share) };
    out.for_each_part(part, |mut out, row, column| {
        if depth == 0 {
            return empty(&mut out, add);
        }
        ThreadPart { instructions, left, right, row, column, depth }.multiply(out, add);
    });
}

/// Sums of nothing.
fn empty(out: &mut MatMut<'_, f32>, add: bool) {
    if !add {
        (0..out.rows()).for_each(|row| out.row(row).fill(0.0));
    }
}

/// The share of a thread: the rows and columns of the result from these on.
struct ThreadPart<'a> {
    instructions: InstructionSet,
    left: LeftOperand<'a>,
    right: Operand<'a, f32>,
    row: usize,
    column: usize,
    depth: usize,
}

impl ThreadPart<'_> {
    fn multiply(self, mut out: MatMut<'_, f32>, add: bool) {
        let Self { instructions, left, right, row, column, depth } = self;
        let (rows, columns) = (out.rows(), out.cols());
        let mut block = match left {
            LeftOperand::Lies(_) => {
                PackedFactor::left(instructions, rows.min(ROWS), depth.min(DEPTH))
            }
            LeftOperand::Packed(_) => PackedFactor::left(instructions, 0, 0),
        };
        let mut packed_right =
            PackedFactor::right(instructions, columns.min(COLUMNS), depth.min(DEPTH));
        for start in (0..depth).step_by(DEPTH) {
            let steps = start..depth.min(start + DEPTH);
            let add = add || start > 0;
            for start in (0..columns).step_by(COLUMNS) {
                let some = start..columns.min(start + COLUMNS);
                let from = column + some.start..column + some.end;
                packed_right.pack(right, from, steps.clone());
                for start in (0..rows).step_by(ROWS) {
                    let rows = start..rows.min(start + ROWS);
                    let from = row + rows.start..row + rows.end;
                    let left = match left {
                        LeftOperand::Packed(packed) => (packed, from.start),
                        LeftOperand::Lies(left) => {
                            block.pack(left, from, steps.clone());
                            (&block, 0)
                        }
                    };
                    let out = out.part(rows, some.clone());
                    product(left, &packed_right, out, add);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::operand::{OperandLines, Starts};
    use super::super::plain::{nearest, product_of_rounded};
    use super::*;

    /// A product, and how its factors lie.
    #[derive(Clone, Debug)]
    struct Case {
        rows: usize,
        depth: usize,
        columns: usize,
        left_along: bool,
        right_along: bool,
        add: bool,
        seed: usize,
    }

    /// A factor with a distance between its lines that no element has, and the places of its lines.
    struct Factor {
        data: Vec<f32>,
        starts: Vec<usize>,
        along: bool,
    }

    impl Factor {
        fn new(values: &[f32], (width, depth): (usize, usize), along: bool) -> Self {
            let (lines, len) = if along { (width, depth) } else { (depth, width) };
            let mut data = vec![f32::NAN; lines * (len + 3)];
            for (number, line) in data.chunks_mut(len + 3).enumerate() {
                for (i, place) in line[..len].iter_mut().enumerate() {
                    let (row, step) = if along { (number, i) } else { (i, number) };
                    *place = values[row * depth + step];
                }
            }
            Self { data, starts: (0..lines).map(|line| line * (len + 3)).collect(), along }
        }

        fn operand(&self, starts: bool) -> Operand<'_, f32> {
            let distance = self.starts.get(1).copied().unwrap_or(0);
            let starts = if starts { Starts::At(&self.starts) } else { Starts::Every(distance) };
            let lines = OperandLines { data: &self.data, starts };
            if self.along { Operand::Along(lines) } else { Operand::Across(lines) }
        }
    }

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i + seed) * 7919 % 1013) as f32 / 500.0 - 1.0).collect()
    }

    impl Case {
        /// Compares the kernel with the sums of products of rounded numbers, on 1, 2 and 5 threads.
        fn check(&self, instructions: InstructionSet) {
            let &Self { rows, depth, columns, add, seed, .. } = self;
            let (left, right) = (numbers(rows * depth, seed), numbers(columns * depth, seed + 5));
            let expected = product_of_rounded(&left, &right, depth, add);
            let left = Factor::new(&left, (rows, depth), self.left_along);
            let right = Factor::new(&right, (columns, depth), self.right_along);
            let step = columns + 2;
            let product = |threads, starts, packed| {
                let mut out = vec![1.5; rows * step];
                let into = MatMut::strided(&mut out, rows, columns, step);
                let (left, right) = (left.operand(starts), right.operand(starts));
                let mut whole = PackedFactor::left(instructions, rows, depth);
                let left = if packed {
                    whole.pack(left, 0..rows, 0..depth);
                    LeftOperand::Packed(&whole)
                } else {
                    LeftOperand::Lies(left)
                };
                multiply(instructions, left, right, depth, into, add, threads);
                out
            };
            let out = product(1, false, false);
            for (row, expected) in out.chunks(step).zip(expected.chunks(columns)) {
                for (&actual, &expected) in row.iter().zip(expected) {
                    let error = (f64::from(actual) - expected).abs();
                    assert!(error <= 1e-5 * (1.0 + depth as f64), "{actual}, {expected}: {self:?}");
                }
                assert!(row[columns..].iter().all(|&x| x == 1.5), "written behind a row: {self:?}");
            }
            for threads in [1, 2, 5] {
                let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                for packed in [false, depth <= DEPTH] {
                    let again = bits(product(threads, true, packed));
                    assert_eq!(again, bits(out.clone()), "{threads}: {self:?}");
                }
            }
        }
    }

    fn case() -> impl Strategy<Value = Case> {
        let sizes = (1usize..70, 1usize..80, 1usize..120);
        let ways = (any::<bool>(), any::<bool>(), 0usize..1000);
        (sizes, any::<bool>(), ways).prop_map(|((rows, depth, columns), add, ways)| Case {
            rows,
            depth,
            columns,
            left_along: ways.0,
            right_along: ways.1,
            add,
            seed: ways.2,
        })
    }

    /// Calls `f` with all instructions of this processor, and says which are missing.
    fn on_all_instructions(test: &str, f: impl Fn(InstructionSet)) {
        let all = InstructionSet::all();
        if all.len() < 3 {
            eprintln!("{test}: by {all:?} alone, as this processor has no other instructions");
        }
        all.into_iter().for_each(f);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_product_is_that_of_rounded_numbers(case in case()) {
            on_all_instructions("a product of rounded numbers", |instructions| case.check(instructions));
        }
    }

    #[test]
    fn sizes_beyond_each_block_are_multiplied() {
        for (rows, depth, columns) in
            [(ROWS + 9, 33, 17), (17, 33, COLUMNS + 49), (9, DEPTH + 385, 20), (5, 0, 7)]
        {
            for (left_along, right_along) in [(true, false), (false, true)] {
                let add = left_along;
                let case = Case { rows, depth, columns, left_along, right_along, add, seed: 3 };
                on_all_instructions("sizes beyond each block", |all| case.check(all));
            }
        }
    }

    #[test]
    fn infinities_and_nan_are_kept() {
        on_all_instructions("infinities and NaN", keeps_infinities_and_nan);
    }

    fn keeps_infinities_and_nan(instructions: InstructionSet) {
        for along in [false, true] {
            let (rows, depth, columns) = (17, 35, 50);
            let (mut left, right) = (vec![1.0; rows * depth], vec![2.0; columns * depth]);
            left[34] = f32::NAN;
            left[depth + 33] = f32::INFINITY;
            left[2 * depth] = f32::from_bits(0xff80_0001); // a signalling NaN
            let left = Factor::new(&left, (rows, depth), along);
            let right = Factor::new(&right, (columns, depth), along);
            let mut out = vec![0.0; rows * columns];
            let into = MatMut::new(&mut out, rows, columns);
            let (left, right) = (LeftOperand::Lies(left.operand(false)), right.operand(false));
            multiply(instructions, left, right, depth, into, false, 1);
            for (row, out) in out.chunks(columns).enumerate() {
                assert!(out.iter().all(|x| match row {
                    0 | 2 => x.is_nan(),
                    1 => *x == f32::INFINITY,
                    _ => *x == 70.0,
                }));
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_nearest_ties_to_even() {
        let one = 1.0f32;
        let unit = 2f32.powi(-7);
        for (number, expected) in [
            (one, one),
            (one + unit / 2.0, one),
            (one + unit / 2.0 + f32::EPSILON, one + unit),
            (one + 1.5 * unit, one + 2.0 * unit),
            (-one - 0.75 * unit, -one - unit),
        ] {
            assert_eq!(nearest(number), expected, "{number}");
            on_all_instructions("rounding", |instructions| {
                let mut out = [0.0];
                let lines = |data| Operand::Along(OperandLines { data, starts: Starts::Every(1) });
                let into = MatMut::new(&mut out, 1, 1);
                let number_alone = [number];
                let left = LeftOperand::Lies(lines(&number_alone));
                multiply(instructions, left, lines(&[1.0]), 1, into, false, 1);
                assert_eq!(out, [expected], "{number}");
            });
        }
    }
}
