//! The loop that a team works on: a borrowed closure in a place that other threads read.

use std::cell::UnsafeCell;

/// A closure that is called with the number of a part.
pub(super) type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// A loop, as the members of a team see it.
#[derive(Clone, Copy)]
pub(super) struct Job {
    work: Work<'static>,
    parts: usize,
}

impl Job {
    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    pub(super) fn work_on(&self, part: usize) {
        (self.work)(part);
    }
}

/// The place of a team's present loop.
pub(super) struct Place(UnsafeCell<Job>);

// SAFETY: `set` and `get` say when they may be called, so that no thread reads while another writes.
// A `Job` is a shared reference to a closure that is `Sync`, and a number.
unsafe impl Sync for Place {}

impl Place {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(Job { work: &|_| (), parts: 0 }))
    }

    /// Stores a loop.
    ///
    /// # Safety
    /// No other thread may call a method of this place meanwhile. A job that [`get`](Self::get) returned
    /// may be used only until the borrow of `work` ends.
    pub(super) unsafe fn set(&self, work: Work<'_>, parts: usize) {
        // SAFETY: only the lifetime changes. The caller promises that nobody uses the reference later.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        // SAFETY: the caller promises that no other thread reads or writes.
        unsafe { *self.0.get() = Job { work, parts } };
    }

    /// The loop.
    ///
    /// # Safety
    /// No other thread may call [`set`](Self::set) meanwhile.
    pub(super) unsafe fn get(&self) -> Job {
        // SAFETY: the caller promises that no other thread writes.
        unsafe { *self.0.get() }
    }
}
