//! An allocator that records large allocations, except those of a given caller.
//!
//! ```
//! use candelabrum_testkit::LargeAllocations;
//!
//! #[global_allocator]
//! static ALLOCATOR: LargeAllocations = LargeAllocations::above(4096, "no_such_crate::");
//!
//! let large = ALLOCATOR.during(|| drop(vec![1_u8; 5000]));
//! assert_eq!((large.sizes, large.excused), (vec![5000], 0));
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The largest number of allocations that can be recorded.
const ROOM: usize = 1024;

thread_local! {
    /// Whether this thread is recording an allocation. The recording allocates, too.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator. During [`Self::during`] it records every allocation above a size, of any
/// thread.
#[derive(Debug)]
pub struct LargeAllocations {
    limit: usize,
    excused_by: &'static str,
    noting: AtomicBool,
    excused: AtomicUsize,
    count: AtomicUsize,
    sizes: [AtomicUsize; ROOM],
}

/// The recorded allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAllocations {
    /// The sizes in bytes, in their order, without the excused ones.
    pub sizes: Vec<usize>,
    /// The number of excused allocations.
    pub excused: usize,
}

impl LargeAllocations {
    /// Records allocations of more than `limit` bytes. Those inside calls of a function whose path
    /// contains `excused_by` are excused: only their number is recorded.
    pub const fn above(limit: usize, excused_by: &'static str) -> Self {
        Self {
            limit,
            excused_by,
            noting: AtomicBool::new(false),
            excused: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            sizes: [const { AtomicUsize::new(0) }; ROOM],
        }
    }

    /// The large allocations while `work` runs.
    ///
    /// # Panics
    /// If there are more than 1,024.
    pub fn during(&self, work: impl FnOnce()) -> RecordedAllocations {
        self.excused.store(0, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
        self.noting.store(true, Ordering::SeqCst);
        work();
        self.noting.store(false, Ordering::SeqCst);
        let count = self.count.load(Ordering::SeqCst);
        assert!(count <= ROOM, "{count} large allocations");
        let sizes = self.sizes[..count].iter().map(|size| size.load(Ordering::SeqCst));
        RecordedAllocations { sizes: sizes.collect(), excused: self.excused.load(Ordering::SeqCst) }
    }

    fn note(&self, size: usize) {
        if size <= self.limit || !self.noting.load(Ordering::Relaxed) || BUSY.get() {
            return;
        }
        BUSY.set(true);
        let callers = Backtrace::force_capture().to_string();
        BUSY.set(false);
        if callers.contains(self.excused_by) {
            self.excused.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if let Some(place) = self.sizes.get(number) {
            place.store(size, Ordering::SeqCst);
        }
    }
}

// SAFETY: every call is passed to the system's allocator unchanged. The recording itself does not
// recurse, because `BUSY` excludes its own allocations.
unsafe impl GlobalAlloc for LargeAllocations {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller keeps `alloc`'s promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.note(layout.size());
        // SAFETY: the caller keeps `alloc_zeroed`'s promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s promises, and all memory came from the system.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.note(new_size);
        // SAFETY: the caller keeps `realloc`'s promises, and all memory came from the system.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
