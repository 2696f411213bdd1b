//! The element types of the fused operations, and access to the memory of CPU tensors.

use candle_core::{CpuStorage, Layout, Result, WithDType};

use super::gemm::VectorLanes;
use super::math;
use super::transpose::{self, Square};
use crate::kernels::scratch::Poolable;

/// f32 and f64, with the functions that the kernels need.
pub(crate) trait Float: WithDType + Poolable + VectorLanes {
    /// In f32 this function and the next three are those of [`math`], made for
    /// [`simd`](candelabrum_memory::simd::simd).
    fn exp(self) -> Self;
    /// `e^x` for an `x` up to 87, less exact than [`exp`](Self::exp) and faster.
    fn exp_of_score(self) -> Self;
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// `Phi(x)` of the standard normal distribution, and `e^(-x^2 / 2)`.
    fn normal(self) -> (Self, Self);
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn powf(self, exponent: Self) -> Self;
    fn is_nan(self) -> bool;
    /// `self` or 0, without a branch, because the place of a maximum cannot be predicted.
    fn keep_if(self, condition: bool) -> Self;
    fn widen(self) -> f64;
    /// Rounded.
    fn narrow(value: f64) -> Self;
    /// The numbers, if they are f32.
    fn f32s(values: &[Self]) -> Option<&[f32]>;
    /// The numbers, if they are f32.
    fn f32s_mut(values: &mut [Self]) -> Option<&mut [f32]>;
    /// f32 numbers as numbers of this type, if it is f32.
    fn of_f32s(values: &mut [f32]) -> Option<&mut [Self]>;
    /// The place of the numbers, if they are f32.
    fn f32s_at(values: *mut Self) -> Option<*mut f32>;
    fn transposed(square: Square<Self>) -> Square<Self>;
}

macro_rules! impl_float {
    ($float:ident, $functions:path: $($function:ident)*, $if_f32:path, $transposed:path) => {
        impl Float for $float {
            $(
                #[inline(always)]
                fn $function(self) -> Self {
                    use $functions as functions;
                    functions::$function(self)
                }
            )*

            #[inline(always)]
            fn normal(self) -> (Self, Self) {
                use $functions as functions;
                functions::normal(self)
            }

            fn ln(self) -> Self {
                $float::ln(self)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                $float::sqrt(self)
            }

            fn powf(self, exponent: Self) -> Self {
                $float::powf(self, exponent)
            }

            #[inline(always)]
            fn widen(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn narrow(value: f64) -> Self {
                value as $float
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

            #[inline(always)]
            fn f32s(values: &[Self]) -> Option<&[f32]> {
                $if_f32(values)
            }

            #[inline(always)]
            fn f32s_mut(values: &mut [Self]) -> Option<&mut [f32]> {
                $if_f32(values)
            }

            #[inline(always)]
            fn of_f32s(values: &mut [f32]) -> Option<&mut [Self]> {
                $if_f32(values)
            }

            #[inline(always)]
            fn f32s_at(values: *mut Self) -> Option<*mut f32> {
                $if_f32(values)
            }

            #[inline(always)]
            fn transposed(square: Square<Self>) -> Square<Self> {
                $transposed(square)
            }
        }
    };
}

impl_float!(f32, math: exp exp_of_score tanh sigmoid, Some, transpose::transposed_f32s);
impl_float!(f64, in_f64: exp exp_of_score tanh sigmoid, none, transpose::transposed);

/// f64 numbers are not f32.
#[inline(always)]
fn none<F64, F32>(_: F64) -> Option<F32> {
    None
}

/// The functions of [`math`] in f64, for checks. They are not optimised for speed.
mod in_f64 {
    pub(crate) fn exp(x: f64) -> f64 {
        x.exp()
    }

    pub(crate) use exp as exp_of_score;

    pub(crate) fn tanh(x: f64) -> f64 {
        x.tanh()
    }

    pub(crate) fn sigmoid(x: f64) -> f64 {
        let e = (-x.abs()).exp();
        (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
    }

    pub(crate) fn normal(x: f64) -> (f64, f64) {
        (0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2), (-0.5 * x * x).exp())
    }
}

/// Evaluates `$body` with `$T` standing for the Rust type of `$dtype`. If the operations do not
/// support the dtype, the result is an error that names the dtype and `$op`.
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
pub(crate) use for_float;

/// The elements of a contiguous CPU storage.
pub(crate) fn cpu_slice<'a, T: Float>(
    storage: &'a CpuStorage,
    layout: &Layout,
    op: &'static str,
) -> Result<&'a [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(candle_core::Error::RequiresContiguous { op }.bt());
    };
    Ok(&T::cpu_storage_as_slice(storage)?[start..end])
}
