//! Which options a program has read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a program has read an option. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadMark(Arc<AtomicBool>);

impl ReadMark {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The options that a program must read itself.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadMarks {
    pub(super) augment: ReadMark,
    pub(super) data: ReadMark,
}
