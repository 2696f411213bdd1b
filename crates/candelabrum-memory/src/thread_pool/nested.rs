//! Whether a thread works on a part of a loop. Loops in the part then run on this thread alone.

use std::cell::Cell;

thread_local! {
    static IS_NESTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a loop of this thread would be nested in another one.
pub(super) fn is_nested() -> bool {
    IS_NESTED.get()
}

pub(super) fn set(is_nested: bool) {
    IS_NESTED.set(is_nested);
}
