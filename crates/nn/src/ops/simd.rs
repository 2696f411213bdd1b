//! Loops compiled for the vectors of this machine.
//!
//! The program is built for any x86-64 or aarch64, so the compiler may use only the oldest vectors.
//! Inside of [`simd`] it may use those that the processor is found to have at run time. The bits of
//! a result do not depend on it, as the compiler neither fuses nor reorders floating-point
//! operations.

use pulp::{Arch, NullaryFnOnce};

/// Runs `f` as if the program had been built for this processor. Only code that is inlined into `f`
/// gains: mark what it calls, and a closure itself, `#[inline(always)]`.
///
/// `FnMut`, not `FnOnce`: the compiler calls a closure that could be called again through a function
/// of its own where `FnOnce` is asked for, and does not inline that one.
#[inline(always)]
pub(super) fn simd<R>(f: impl FnMut() -> R) -> R {
    Arch::new().dispatch(Closure(f))
}

struct Closure<F>(F);

impl<R, F: FnMut() -> R> NullaryFnOnce for Closure<F> {
    type Output = R;

    #[inline(always)]
    fn call(mut self) -> R {
        (self.0)()
    }
}

/// The same for what can run once only: a loop that is a type of its own, or a closure that gives away
/// what it has captured.
#[inline(always)]
pub(super) fn simd_once<F: NullaryFnOnce>(f: F) -> F::Output {
    Arch::new().dispatch(f)
}
