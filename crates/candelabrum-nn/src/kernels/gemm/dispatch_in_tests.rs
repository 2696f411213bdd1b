//! As `dispatch.rs`, but a test can ask for an older instruction set than the newest one.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use pulp::{Arch, Scalar, WithSimd};

const NEWEST: u8 = 0;
const NO_VECTORS: u8 = 1;
const AVX2: u8 = 2;

/// The instruction set of all threads. Other tests that run meanwhile compute with it, too. One that
/// compares bits must therefore run [`on_each_instruction_set`].
static CHOICE: AtomicU8 = AtomicU8::new(NEWEST);
static CHOOSING: Mutex<()> = Mutex::new(());

pub(crate) fn dispatch<O: WithSimd>(op: O) -> O::Output {
    match CHOICE.load(Ordering::Relaxed) {
        NO_VECTORS => op.with_simd(Scalar),
        #[cfg(target_arch = "x86_64")]
        AVX2 => match pulp::x86::V3::try_new() {
            Some(avx2) => pulp::Simd::vectorize(avx2, op),
            None => Arch::new().dispatch(op),
        },
        _ => Arch::new().dispatch(op),
    }
}

/// Calls `f` once for each instruction set, which does not change meanwhile.
pub(crate) fn on_each_instruction_set(f: impl Fn()) {
    let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    for choice in [NO_VECTORS, AVX2, NEWEST] {
        CHOICE.store(choice, Ordering::Relaxed);
        f();
    }
}
