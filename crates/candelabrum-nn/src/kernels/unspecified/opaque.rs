//! Memory of the allocator whose old contents count as values.

use std::arch::asm;

use super::super::float::Float;
use super::super::parallel::in_blocks;

/// No system has smaller pages.
const PAGE: usize = 4096;

/// A vector of `len` elements. The threads of the pool touch it, so that each has a part of the pages of new memory.
pub(super) fn vector<T: Float>(len: usize) -> Vec<T> {
    let mut values: Vec<T> = Vec::with_capacity(len);
    // A page that the allocator has offered to the system may change until it is written.
    in_blocks(&mut values.spare_capacity_mut()[..len], |_, places| {
        for place in places.iter_mut().step_by(PAGE / size_of::<T>()) {
            place.write(T::default());
        }
        // The vector need not begin with a page.
        if let Some(last) = places.last_mut() {
            last.write(T::default());
        }
    });
    // SAFETY: the assembly has no instruction.
    unsafe { asm!("/* {} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags)) };
    // SAFETY: the compiler must take the assembly for code that gets the address and writes all elements, so they are
    // initialised, and no page changes any more. The types of `Float` are f32 and f64, for which all bits are values.
    unsafe { values.set_len(len) };
    values
}
