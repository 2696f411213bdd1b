//! An allocator that takes note of large allocations.
//!
//! ```
//! use candelabrum_testkit::LargeAllocations;
//!
//! #[global_allocator]
//! static ALLOCATOR: LargeAllocations = LargeAllocations::above(4096);
//!
//! let sizes = ALLOCATOR.during(|| drop(vec![1_u8; 5000]));
//! assert_eq!(sizes, [5000]);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most allocations that are noted at a time.
const ROOM: usize = 1024;

/// The system's allocator, which notes every allocation above a size, of any thread, while it is
/// asked to.
#[derive(Debug)]
pub struct LargeAllocations {
    limit: usize,
    noting: AtomicBool,
    count: AtomicUsize,
    sizes: [AtomicUsize; ROOM],
}

impl LargeAllocations {
    /// Notes allocations of more than `limit` bytes.
    pub const fn above(limit: usize) -> Self {
        Self {
            limit,
            noting: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            sizes: [const { AtomicUsize::new(0) }; ROOM],
        }
    }

    /// The sizes in bytes of the large allocations while `work` runs, in their order.
    ///
    /// # Panics
    /// If there are more than a thousand.
    pub fn during(&self, work: impl FnOnce()) -> Vec<usize> {
        self.count.store(0, Ordering::SeqCst);
        self.noting.store(true, Ordering::SeqCst);
        work();
        self.noting.store(false, Ordering::SeqCst);
        let count = self.count.load(Ordering::SeqCst);
        assert!(count <= ROOM, "{count} large allocations");
        self.sizes[..count].iter().map(|size| size.load(Ordering::SeqCst)).collect()
    }

    fn note(&self, size: usize) {
        if size > self.limit && self.noting.load(Ordering::Relaxed) {
            let number = self.count.fetch_add(1, Ordering::SeqCst);
            if let Some(place) = self.sizes.get(number) {
                place.store(size, Ordering::SeqCst);
            }
        }
    }
}

// SAFETY: every call goes to the system's allocator as it is; taking note allocates nothing.
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
