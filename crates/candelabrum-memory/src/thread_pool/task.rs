//! The loop that a thread pool works on: a borrowed closure in a slot that other threads read.

use std::cell::UnsafeCell;
use std::mem;

/// A closure that is called with the number of a part.
pub(super) type PartFn<'a> = &'a (dyn Fn(usize) + Sync);

/// A loop, as the workers see it.
#[derive(Clone, Copy)]
pub(super) struct LoopTask {
    work: PartFn<'static>,
    parts: usize,
}

impl LoopTask {
    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    pub(super) fn work_on(&self, part: usize) {
        (self.work)(part);
    }
}

/// The slot of a pool's present loop.
pub(super) struct TaskSlot(UnsafeCell<LoopTask>);

// SAFETY: `set` and `get` say when they may be called, so that no thread reads while another writes.
// A `LoopTask` is a shared reference to a closure that is `Sync`, and a number.
unsafe impl Sync for TaskSlot {}

impl Default for TaskSlot {
    fn default() -> Self {
        Self(UnsafeCell::new(LoopTask { work: &|_| (), parts: 0 }))
    }
}

impl TaskSlot {
    /// Stores a loop.
    ///
    /// # Safety
    /// No other thread may call a method of this slot meanwhile. A task that [`get`](Self::get) returned
    /// may be used only until the borrow of `work` ends.
    pub(super) unsafe fn set(&self, work: PartFn<'_>, parts: usize) {
        // SAFETY: only the lifetime changes. The caller promises that nobody uses the reference later.
        let work = unsafe { mem::transmute::<PartFn<'_>, PartFn<'static>>(work) };
        // SAFETY: the caller promises that no other thread reads or writes.
        unsafe { *self.0.get() = LoopTask { work, parts } };
    }

    /// The loop.
    ///
    /// # Safety
    /// No other thread may call [`set`](Self::set) meanwhile.
    pub(super) unsafe fn get(&self) -> LoopTask {
        // SAFETY: the caller promises that no other thread writes.
        unsafe { *self.0.get() }
    }
}
