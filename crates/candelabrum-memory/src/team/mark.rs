//! The mark of a thread that works on a part of a loop.

use std::cell::Cell;

thread_local! {
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread works on a part of a loop.
pub(super) fn works_on_a_part() -> bool {
    WORKS.get()
}

pub(super) fn set(works: bool) {
    WORKS.set(works);
}
