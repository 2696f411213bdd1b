//! Recycled memory for lines.

use super::line::{LANES, PairLine};
use crate::kernels::scratch::Pooled;

/// Lines that begin with a line of the cache.
pub(super) struct LineMemory {
    memory: Pooled<f32>,
    /// The elements before the first line.
    offset: usize,
}

impl LineMemory {
    /// So many lines with unspecified contents.
    pub(super) fn new(lines: usize) -> Self {
        let memory = Pooled::<f32>::new((lines + 1) * LANES);
        // The lines of a tile are read several times as fast from there. The result is the same anywhere.
        let offset = memory.as_ptr().align_offset(size_of::<PairLine>()).min(LANES);
        Self { memory, offset }
    }

    pub(super) fn none() -> Self {
        Self { memory: Pooled::none(), offset: 0 }
    }

    #[inline(always)]
    pub(super) fn lines(&self) -> &[PairLine] {
        self.memory[self.offset..].as_chunks().0
    }

    #[inline(always)]
    pub(super) fn lines_mut(&mut self) -> &mut [PairLine] {
        self.memory[self.offset..].as_chunks_mut().0
    }
}
