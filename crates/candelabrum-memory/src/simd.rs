//! Loops compiled for the vectors of this machine.
//!
//! The program is built for any x86-64 or aarch64 processor, so the compiler may use only the
//! oldest vector instructions. Inside of [`simd`] the compiler may use the instructions that the
//! processor has, as detected at run time. The bits of a result do not depend on that choice,
//! because the compiler neither fuses nor reorders floating-point operations.

use pulp::Arch;
pub use pulp::NullaryFnOnce;

/// Runs `f` as if the program had been built for this processor. Only code that is inlined into `f`
/// becomes faster: mark the closure and the functions that it calls `#[inline(always)]`.
///
/// The bound is `FnMut`, because with `FnOnce` the compiler does not inline a closure that could
/// run twice.
#[inline(always)]
pub fn simd<R>(f: impl FnMut() -> R) -> R {
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

/// [`simd`] for code that can run only once: a loop as a type, or a closure that moves a captured
/// value out.
#[inline(always)]
pub fn simd_once<F: NullaryFnOnce>(f: F) -> F::Output {
    Arch::new().dispatch(f)
}
