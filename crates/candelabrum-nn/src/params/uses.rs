//! Who has used a parameter: the block of the model to which the parameter belongs, and whether somebody outside of this
//! block has a tensor of it. A block owns what it alone reads. A use outside of all blocks, such as a penalty on weights in
//! the loss, or a look at a norm, claims nothing, but the values must stay for it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The block of a parameter that no block has used, and of a use outside of blocks.
const NONE: usize = 0;

/// The block of a parameter that several blocks have used.
const SEVERAL: usize = usize::MAX;

thread_local! {
    /// The block whose pass this thread computes: its number, counted from 1.
    static CURRENT: Cell<usize> = const { Cell::new(NONE) };
}

/// The uses of a parameter as a tensor. Clones of a parameter share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ParamUses(Arc<UseState>);

#[derive(Debug, Default)]
struct UseState {
    block: AtomicUsize,
    /// Whether it was used outside of its block since its values have changed.
    is_elsewhere: AtomicBool,
    /// Whether it was used since the last [`ParamUses::forget`].
    is_used: AtomicBool,
}

impl ParamUses {
    /// Notes a use on this thread.
    pub(super) fn note(&self) {
        self.0.is_used.store(true, Ordering::Relaxed);
        match (self.0.block.load(Ordering::Relaxed), CURRENT.get()) {
            (block, current) if block == current && block != NONE => {}
            (NONE, current) if current != NONE => self.0.block.store(current, Ordering::Relaxed),
            (_, current) => {
                self.0.is_elsewhere.store(true, Ordering::Relaxed);
                if current != NONE {
                    self.0.block.store(SEVERAL, Ordering::Relaxed);
                }
            }
        }
    }

    /// The number of the block that alone has used the parameter, counted from 0.
    pub(super) fn block(&self) -> Option<usize> {
        let block = self.0.block.load(Ordering::Relaxed);
        (block != NONE && block != SEVERAL).then(|| block - 1)
    }

    /// Whether a tensor of the present values may be in use outside of the block.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.0.is_elsewhere.load(Ordering::Relaxed)
    }

    /// Notes that somebody outside of the block may use a tensor of the present values.
    pub(super) fn note_elsewhere(&self) {
        self.0.is_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Says that the values have changed, so that nobody needs the old ones.
    pub(super) fn note_change(&self) {
        self.0.is_elsewhere.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_used(&self) -> bool {
        self.0.is_used.load(Ordering::Relaxed)
    }

    /// Lets [`is_used`](Self::is_used) speak of later uses alone.
    pub(super) fn forget(&self) {
        self.0.is_used.store(false, Ordering::Relaxed);
    }
}

/// Says that this thread computes a block from now on. Returns what it has computed before, for [`leave`].
pub(super) fn enter(block: usize) -> usize {
    CURRENT.replace(block + 1)
}

/// Says that this thread computes what it has computed `before` the block.
pub(super) fn leave(before: usize) {
    CURRENT.set(before);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_owns_what_no_other_block_uses() {
        let in_block = |number: usize, uses: &ParamUses| {
            let before = enter(number);
            uses.note();
            leave(before);
        };
        let uses = ParamUses::default();
        uses.note();
        assert_eq!((uses.block(), uses.is_elsewhere()), (None, true));
        in_block(3, &uses);
        uses.note_change();
        in_block(3, &uses);
        assert_eq!((uses.block(), uses.is_elsewhere()), (Some(3), false));
        uses.note();
        assert_eq!((uses.block(), uses.is_elsewhere()), (Some(3), true));
        in_block(0, &uses);
        in_block(3, &uses);
        assert_eq!((uses.block(), uses.is_elsewhere()), (None, true));
    }
}
