//! Loops compiled for the vectors of this machine.
//!
//! The program is built for any x86-64 or aarch64, so the compiler may use only the oldest vectors.
//! Inside of [`simd`] it may use those that the processor is found to have at run time.

/// Runs `f` as if the program had been built for this processor. Only code that is inlined into `f`
/// gains: mark what it calls `#[inline(always)]`. The bits of a result do not depend on it, as the
/// compiler neither fuses nor reorders floating-point operations.
#[inline(always)]
pub(super) fn simd<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}
