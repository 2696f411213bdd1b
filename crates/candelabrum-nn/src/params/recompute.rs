//! Which blocks of a model are computed again in the backward pass.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Which [`Blocks`](crate::layers::Blocks) of a model are computed again in the backward pass. The others keep what
/// their backward passes read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Recompute {
    /// No block.
    #[default]
    None,
    /// Every second block: the first, the third and so on.
    Half,
    /// All blocks: the least memory.
    All,
}

impl Recompute {
    /// Whether it has chosen block `number`, counted from 0.
    #[must_use]
    pub fn has(self, number: usize) -> bool {
        match self {
            Self::None => false,
            Self::Half => number.is_multiple_of(2),
            Self::All => true,
        }
    }
}

/// The choice of a store.
#[derive(Debug, Default)]
pub(super) struct Choice {
    blocks: AtomicU8,
    /// Whether a model has blocks for it.
    has_blocks: AtomicBool,
}

impl Choice {
    pub(super) fn set(&self, blocks: Recompute) {
        self.blocks.store(blocks as u8, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Recompute {
        const CHOICES: [Recompute; 3] = [Recompute::None, Recompute::Half, Recompute::All];
        CHOICES[usize::from(self.blocks.load(Ordering::Relaxed))]
    }

    pub(super) fn note_blocks(&self) {
        self.has_blocks.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_blocks(&self) -> bool {
        self.has_blocks.load(Ordering::Relaxed)
    }
}
