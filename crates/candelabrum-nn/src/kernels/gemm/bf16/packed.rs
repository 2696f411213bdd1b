//! A factor in bf16, in the form in which the kernel reads it: a [`Line`] for each pair of steps of the depth.
//!
//! The lines of the same 16 rows or columns follow each other. Both factors have this form, so there is one
//! way of packing for both.

use std::ops::Range;

use super::instructions::Instructions;
use super::line::{LANES, Line};
use super::operand::Operand;
use crate::kernels::scratch::Pooled;

/// The lines from one group of 16 rows or columns to the next: an odd number, so that the groups do not
/// compete for the same places of the nearest cache.
fn pitch(pairs: usize) -> usize {
    pairs | 1
}

/// A packed factor.
pub(crate) struct Packed {
    memory: Pooled<f32>,
    /// The elements before the first line, which begins a line of the cache.
    offset: usize,
    width: usize,
    pairs: usize,
}

impl Packed {
    /// Space for a factor of `width` rows or columns and of this depth, with unspecified contents.
    pub(crate) fn new(width: usize, depth: usize) -> Self {
        let pairs = depth.div_ceil(2);
        let lines = width.div_ceil(LANES) * pitch(pairs);
        let memory = Pooled::<f32>::new((lines + 1) * LANES);
        // The offset is a matter of speed alone.
        let offset = memory.as_ptr().align_offset(size_of::<Line>()).min(LANES);
        Self { memory, offset, width, pairs }
    }

    /// Packs some rows or columns of a factor, and the steps `depth`. There must be space for so many.
    #[inline]
    pub(crate) fn pack(
        &mut self,
        instructions: Instructions,
        from: Operand<'_, f32>,
        width: Range<usize>,
        depth: Range<usize>,
    ) {
        self.resize(width.len(), depth.len());
        self.pack_part(instructions, from, width, depth, (0, 0));
    }

    /// Makes it a factor of so many rows or columns and of this depth, with unspecified contents. There
    /// must be space for it.
    pub(crate) fn resize(&mut self, width: usize, depth: usize) {
        (self.width, self.pairs) = (width, depth.div_ceil(2));
    }

    /// Packs a part of a factor: from row or column and from step `to`, which are a multiple of 16 and an
    /// even number. Where the part ends at an odd step, the factor does, too.
    #[inline]
    pub(crate) fn pack_part(
        &mut self,
        instructions: Instructions,
        from: Operand<'_, f32>,
        width: Range<usize>,
        depth: Range<usize>,
        to: (usize, usize),
    ) {
        let pitch = pitch(self.pairs);
        let first = to.0 / LANES * pitch + to.1 / 2;
        let lines = &mut self.lines_mut()[first..];
        instructions.pack(from, width, depth, lines, pitch);
    }

    /// The number of rows or columns.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Half the depth, rounded up.
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    /// Some lines of group number `group` of 16 rows or columns.
    #[inline(always)]
    pub(super) fn group(&self, group: usize, pairs: Range<usize>) -> &[Line] {
        let (lines, _) = self.memory[self.offset..].as_chunks();
        &lines[group * pitch(self.pairs)..][pairs]
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        let (lines, _) = self.memory[self.offset..].as_chunks_mut();
        &mut lines[..self.width.div_ceil(LANES) * pitch(self.pairs)]
    }
}
