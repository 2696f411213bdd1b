//! The element types of the fused operations, and access to the memory of CPU tensors.

use std::cell::RefCell;

use candle_core::{CpuStorage, Layout, Result, TensorId, WithDType};

use super::fused::{Pool, PoolKey, Pooled, Values};
use crate::gradients::{self, Place};

/// f32 and f64: what the kernels need to know about a number.
pub(super) trait Float: WithDType + Default {
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn is_nan(self) -> bool;
    /// `self` or 0, without a branch: the place of a maximum is not predictable.
    fn keep_if(self, condition: bool) -> Self;
    fn tanh(self) -> Self;
    fn sqrt(self) -> Self;
    /// The memory of this thread.
    fn pool() -> &'static PoolKey<Self>;
    fn into_values(values: Pooled<Self>) -> Values;
    /// The values, if they are of this type.
    fn of_values(values: Values) -> Option<Pooled<Self>>;
    /// The values, if they are of this type.
    fn values(values: &Values) -> Option<&[Self]>;
    /// Calls `f` with the places of the variables in the flat gradients of this backward pass.
    fn with_places<R>(
        variables: &[Option<TensorId>],
        f: impl FnOnce(Vec<Option<Place<'_, Self>>>) -> R,
    ) -> R;
}

macro_rules! impl_float {
    ($float:ident, $variant:ident, $with_places:path) => {
        impl Float for $float {
            fn exp(self) -> Self {
                $float::exp(self)
            }

            fn ln(self) -> Self {
                $float::ln(self)
            }

            fn tanh(self) -> Self {
                $float::tanh(self)
            }

            fn sqrt(self) -> Self {
                $float::sqrt(self)
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

            fn pool() -> &'static PoolKey<Self> {
                thread_local!(
                    static POOL: RefCell<Pool<$float>> = const { RefCell::new(Pool::new()) };
                );
                &POOL
            }

            fn into_values(values: Pooled<Self>) -> Values {
                Values::$variant(values)
            }

            fn of_values(values: Values) -> Option<Pooled<Self>> {
                if let Values::$variant(values) = values { Some(values) } else { None }
            }

            fn values(values: &Values) -> Option<&[Self]> {
                if let Values::$variant(values) = values { Some(values) } else { None }
            }

            fn with_places<R>(
                variables: &[Option<TensorId>],
                f: impl FnOnce(Vec<Option<Place<'_, Self>>>) -> R,
            ) -> R {
                $with_places(variables, f)
            }
        }
    };
}

impl_float!(f32, F32, gradients::with_places);
impl_float!(f64, F64, no_places);

/// Only f32 parameters are trained.
fn no_places<R>(
    variables: &[Option<TensorId>],
    f: impl FnOnce(Vec<Option<Place<'_, f64>>>) -> R,
) -> R {
    f(variables.iter().map(|_| None).collect())
}

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
