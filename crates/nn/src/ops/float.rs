//! The element types of the fused operations, and access to the memory of CPU tensors.

use std::cell::Cell;
use std::thread::LocalKey;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, WithDType};

/// f32 and f64: what the kernels need to know about a number.
pub(super) trait Float: WithDType + Default {
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn is_nan(self) -> bool;
    /// `self` or 0, without a branch: the place of a maximum is not predictable.
    fn keep_if(self, condition: bool) -> Self;
    /// The scratch memory of this thread.
    fn scratch() -> &'static LocalKey<Cell<Vec<Self>>>;
}

macro_rules! impl_float {
    ($float:ident) => {
        impl Float for $float {
            fn exp(self) -> Self {
                $float::exp(self)
            }

            fn ln(self) -> Self {
                $float::ln(self)
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                $float::is_nan(self)
            }

            #[inline(always)]
            fn keep_if(self, condition: bool) -> Self {
                let mask = if condition { !0 } else { 0 };
                $float::from_bits(self.to_bits() & mask)
            }

            fn scratch() -> &'static LocalKey<Cell<Vec<Self>>> {
                thread_local!(static SCRATCH: Cell<Vec<$float>> = const { Cell::new(Vec::new()) });
                &SCRATCH
            }
        }
    };
}

impl_float!(f32);
impl_float!(f64);

/// Evaluates `$body` with `$T` standing for the Rust type of `$dtype`; a dtype that the operations
/// do not know is an error that names it and `$op`.
macro_rules! for_float {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $T = f64;
                $body
            }
            dtype => Err(candle_core::Error::UnsupportedDTypeForOp(dtype, $op).bt()),
        }
    };
}
pub(super) use for_float;

/// Lends `len` elements with unspecified contents to `f`.
///
/// The memory stays with the thread for the next call, as large as the largest call so far: the
/// kernels ask for the same few sizes in every step.
pub(super) fn with_scratch<T: Float, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    // Taken out, not borrowed: a nested call finds an empty vector and allocates its own.
    let mut scratch = T::scratch().take();
    if scratch.len() < len {
        scratch.resize(len, T::default());
    }
    let result = f(&mut scratch[..len]);
    T::scratch().set(scratch);
    result
}

/// The elements of a contiguous CPU storage.
pub(super) fn cpu_slice<'a, T: Float>(
    storage: &'a CpuStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(candle_core::Error::RequiresContiguous { op }.bt());
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}

/// Calls `f` with the elements of each tensor; all must be contiguous and on the CPU.
pub(super) fn with_slices<T: Float, R, const N: usize>(
    tensors: [&Tensor; N],
    op: &'static str,
    f: impl FnOnce([&[T]; N]) -> Result<R>,
) -> Result<R> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices = [&[][..]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let Storage::Cpu(storage) = &**storage else {
            candle_core::bail!("{op}: no backward for this device yet, only for the CPU")
        };
        *slice = cpu_slice(storage, layout, op)?;
    }
    f(slices)
}
