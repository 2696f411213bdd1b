//! Requests for cache lines by x86-64's `prefetcht0`.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How far behind a number its memory is requested.
const BYTES: usize = 4096;

const LINE: usize = 64;

/// Requests the cache lines [`BYTES`] behind those of `numbers`.
#[inline(always)]
pub(super) fn request_behind<T>(numbers: &[T]) {
    let start = numbers.as_ptr().cast::<i8>();
    for offset in (0..size_of_val(numbers)).step_by(LINE) {
        // SAFETY: every x86-64 processor has SSE. A request reads nothing, and a request for memory that does not exist has
        // no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(BYTES + offset)) };
    }
}
