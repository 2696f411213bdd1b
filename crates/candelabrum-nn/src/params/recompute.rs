//! Which blocks of a model are computed again in the backward pass.

/// Which [`Blocks`](crate::layers::Blocks) of a model are computed again in the backward pass. The others keep what
/// their backward passes read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
