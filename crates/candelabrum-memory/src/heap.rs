//! A count of the heap: what the program has allocated now, and the most it has had.
//!
//! A program that wants the count wraps its allocator:
//!
//! ```
//! use std::alloc::System;
//!
//! use candelabrum_memory::heap::{self, CountedHeap};
//!
//! #[global_allocator]
//! static HEAP: CountedHeap<System> = CountedHeap(System);
//!
//! let before = heap::in_use().expect("the allocator counts");
//! let numbers = vec![1.0_f32; 1 << 20];
//! assert!(heap::in_use() >= Some(before + 4 * numbers.len()));
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that are allocated now.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The most of them since [`forget_peak`].
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The bytes that this process has allocated and not freed. `None` if its allocator does not count.
pub fn in_use() -> Option<usize> {
    // A program that runs has allocated something.
    Some(IN_USE.load(Relaxed)).filter(|&bytes| bytes > 0)
}

/// The most of [`in_use`] since the last [`forget_peak`]. `None` if the allocator does not count.
pub fn peak() -> Option<usize> {
    in_use().map(|now| PEAK.load(Relaxed).max(now))
}

/// Lets [`peak`] begin again with what is in use now.
pub fn forget_peak() {
    PEAK.store(IN_USE.load(Relaxed), Relaxed);
}

/// An allocator that counts what another one allocates. It costs two additions to one number for each allocation that
/// is freed, whatever its size.
#[derive(Debug, Default)]
pub struct CountedHeap<A>(pub A);

fn add(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Relaxed) + bytes;
    if now > PEAK.load(Relaxed) {
        PEAK.fetch_max(now, Relaxed);
    }
}

fn subtract(bytes: usize) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

// SAFETY: each method passes its arguments to the method of the same name of the allocator inside, and returns that
// one's answer. The count is apart from both.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountedHeap<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method.
        let memory = unsafe { self.0.alloc(layout) };
        if !memory.is_null() {
            add(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        let memory = unsafe { self.0.alloc_zeroed(layout) };
        if !memory.is_null() {
            add(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for `alloc`.
        unsafe { self.0.dealloc(memory, layout) };
        subtract(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as for `alloc`.
        let moved = unsafe { self.0.realloc(memory, layout, new_size) };
        if !moved.is_null() {
            add(new_size);
            subtract(layout.size());
        }
        moved
    }
}
