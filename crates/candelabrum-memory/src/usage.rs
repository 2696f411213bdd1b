//! How much of a device's memory is allocated: of a GPU by this process, and on the CPU on the heap. And what the
//! system says of the process.

use std::fs;

use candle_core::Device;

use crate::{cuda, heap};

/// An amount of memory of this process by the system's name: `VmHWM` is the most that was in use at one time, in bytes.
/// `None` where the system does not tell.
pub fn of_process(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

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
