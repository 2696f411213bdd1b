//! A factor in bf16, in the form in which the kernel reads it: [`PairLine`]s of pairs.
//!
//! The lines of the same 16 rows or columns follow each other. Both factors have this form, so there is one
//! way of packing for both, but for the tiles of AMX the left one has a line for each row.

use std::ops::Range;

use super::instruction_set::InstructionSet;
use super::line::{COLUMNS, LANES, LineForm, PackedPlace, PairLine};
use super::line_memory::LineMemory;
use super::operand::Operand;

/// A packed factor.
pub(crate) struct PackedFactor {
    instructions: InstructionSet,
    form: LineForm,
    memory: LineMemory,
    width: usize,
    depth: usize,
}

impl PackedFactor {
    /// Space for a left factor of `width` rows and of this depth, with unspecified contents.
    pub(crate) fn left(instructions: InstructionSet, width: usize, depth: usize) -> Self {
        Self::new(instructions, instructions.forms()[0], width, depth)
    }

    /// Space for a right factor of `width` columns and of this depth, with unspecified contents.
    pub(crate) fn right(instructions: InstructionSet, width: usize, depth: usize) -> Self {
        Self::new(instructions, instructions.forms()[1], width, depth)
    }

    fn new(instructions: InstructionSet, form: LineForm, width: usize, depth: usize) -> Self {
        let packed = Self { instructions, form, memory: LineMemory::none(), width, depth };
        Self { memory: LineMemory::new(packed.lines()), ..packed }
    }

    /// Packs some rows or columns of a factor, and the steps `depth`. There must be space for so many.
    #[inline]
    pub(crate) fn pack(
        &mut self,
        from: Operand<'_, f32>,
        width: Range<usize>,
        depth: Range<usize>,
    ) {
        self.resize(width.len(), depth.len());
        self.pack_part(from, width, depth, (0, 0));
    }

    /// Makes some steps of a right factor zero. They begin and end with a pair.
    pub(crate) fn zero_steps(&mut self, steps: Range<usize>) {
        let (pairs, pitch) = (steps.start / 2..steps.end.div_ceil(2), self.pitch());
        for group in self.lines_mut().chunks_mut(pitch) {
            group[pairs.clone()].as_flattened_mut().fill(0.0);
        }
    }

    /// Makes it a factor of so many rows or columns and of this depth, with unspecified contents. There
    /// must be space for it.
    pub(crate) fn resize(&mut self, width: usize, depth: usize) {
        (self.width, self.depth) = (width, depth);
    }

    /// Packs a part of a factor: from row or column and from step `to`, which are a multiple of 16 (of 48 for a right
    /// factor) and an even number. Where the part ends at an odd step, the factor does, too. The parts of the same rows
    /// or columns are packed in the order of the depth.
    #[inline]
    pub(crate) fn pack_part(
        &mut self,
        from: Operand<'_, f32>,
        width: Range<usize>,
        depth: Range<usize>,
        to: (usize, usize),
    ) {
        let (instructions, form, pairs, padded) =
            (self.instructions, self.form, self.pairs(), self.padded());
        let (pitch, pair) = (self.pitch(), to.1 / 2);
        let tile = if form == LineForm::Rows { self.lines_of_a_row() } else { LANES };
        let place = PackedPlace { group: pitch, tile, pair };
        let end = pair + depth.len().div_ceil(2);
        let groups = width.len().div_ceil(form.group());
        let lines = &mut self.lines_mut()[to.0 / form.group() * pitch..];
        instructions.pack((from, form), width, depth, lines, place);
        // Behind the last pair a tile has zeros. Lines of rows have them already.
        if form == LineForm::Depth && end == pairs && pairs < padded {
            for group in lines.chunks_mut(pitch).take(groups) {
                group[pairs..padded].as_flattened_mut().fill(0.0);
            }
        }
    }

    pub(crate) fn instructions(&self) -> InstructionSet {
        self.instructions
    }

    /// The number of rows or columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Half the depth, rounded up.
    pub(super) fn pairs(&self) -> usize {
        self.depth.div_ceil(2)
    }

    /// The rows from number `row` on, in the form of rows, and the elements from one to the next.
    pub(super) fn rows(&self, row: usize) -> (&[f32], usize) {
        let lines = self.lines_of_a_row();
        (self.memory.lines()[row * lines..].as_flattened(), lines * LANES)
    }

    /// Some lines of group number `group` of rows or columns.
    #[inline(always)]
    pub(super) fn group(&self, group: usize, lines: Range<usize>) -> &[PairLine] {
        &self.memory.lines()[group * self.pitch()..][lines]
    }

    /// The pairs with those behind the last one, which fill a tile.
    fn padded(&self) -> usize {
        match self.instructions {
            InstructionSet::Amx(_) => self.pairs().next_multiple_of(LANES),
            InstructionSet::Avx512(_) | InstructionSet::F32 => self.pairs(),
        }
    }

    /// The lines from one group of rows or columns to the next: an odd number, so that the groups do not
    /// compete for the same places of the nearest cache.
    fn pitch(&self) -> usize {
        match self.form {
            LineForm::Depth | LineForm::Width => self.padded() | 1,
            LineForm::Rows => LANES * self.lines_of_a_row(),
            LineForm::Columns => (2 * self.pairs() * COLUMNS / LANES) | 1,
        }
    }

    /// The lines of a row in the form of rows: an odd number, for the same reason.
    fn lines_of_a_row(&self) -> usize {
        (2 * self.pairs()).div_ceil(LANES) | 1
    }

    fn lines(&self) -> usize {
        self.width.div_ceil(self.form.group()) * self.pitch()
    }

    fn lines_mut(&mut self) -> &mut [PairLine] {
        let lines = self.lines();
        &mut self.memory.lines_mut()[..lines]
    }
}
