//! An object of one of NVIDIA's libraries, and its end.

use std::fmt::Debug;

/// An object of a library, and the library's function that destroys it.
pub(super) struct Descriptor<T: Copy, E: Debug>(
    pub(super) T,
    pub(super) unsafe fn(T) -> Result<(), E>,
);

impl<T: Copy, E: Debug> Drop for Descriptor<T, E> {
    fn drop(&mut self) {
        // SAFETY: the library made the object, and nothing else destroys it.
        let destroyed = unsafe { (self.1)(self.0) };
        debug_assert!(destroyed.is_ok(), "the library knows the descriptor: {destroyed:?}");
    }
}
