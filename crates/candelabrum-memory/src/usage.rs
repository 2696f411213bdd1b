//! How much of a device's memory is allocated: of a GPU by this process, and on the CPU on the heap.

use candle_core::Device;

use crate::{cuda, heap};

/// The bytes that are allocated for `device` now. `None` if nobody counts: see [`heap`].
pub fn in_use(device: &Device) -> Option<usize> {
    if device.is_cpu() { heap::in_use() } else { cuda::allocated(device).ok() }
}

/// The most of [`in_use`] since the last [`forget_peak`].
pub fn peak(device: &Device) -> Option<usize> {
    if device.is_cpu() { heap::peak() } else { cuda::most_allocated(device).ok() }
}

/// Lets [`peak`] begin again with what is allocated now.
pub fn forget_peak(device: &Device) {
    if device.is_cpu() {
        heap::forget_peak();
    } else {
        // Without a count there is no peak either.
        let _ = cuda::forget_most_allocated(device);
    }
}
