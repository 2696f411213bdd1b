//! The block of a model in which a parameter is at home: the only one that has used it.

use std::cell::Cell;

/// The home of a parameter that nobody has used yet.
const NOWHERE: usize = 0;

/// The home of a parameter that was used outside of blocks, or in several.
const EVERYWHERE: usize = usize::MAX;

thread_local! {
    /// The block whose pass this thread computes: its number, counted from 1.
    static CURRENT: Cell<usize> = const { Cell::new(NOWHERE) };
}

/// The home of a parameter after a use on this thread.
pub(super) fn home_after(home: usize) -> usize {
    match (home, CURRENT.get()) {
        (NOWHERE, NOWHERE) => EVERYWHERE,
        (NOWHERE, current) => current,
        (home, current) if home == current => home,
        _ => EVERYWHERE,
    }
}

/// The number of the block of a home, counted from 0.
pub(super) fn block_of(home: usize) -> Option<usize> {
    (home != NOWHERE && home != EVERYWHERE).then(|| home - 1)
}

/// Says that this thread computes a block from now on. Returns what it has computed before, for [`leave`].
pub(super) fn enter(block: usize) -> usize {
    CURRENT.replace(block + 1)
}

/// Says that this thread computes what it has computed `before` the block.
pub(super) fn leave(before: usize) {
    CURRENT.set(before);
}
