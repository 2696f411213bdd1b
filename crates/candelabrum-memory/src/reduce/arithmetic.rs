//! The types of elements in a reduction, and the arithmetic of their accumulation.

use bytemuck::Pod;
use half::{bf16, f16};

use super::op::ReduceOp;
use crate::Half;

/// A type in which values are accumulated.
pub(super) trait Accumulator: Pod {
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! floats {
    ($($type:ident)*) => { $(
        impl Accumulator for $type {
            #[inline(always)]
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => a + b,
                    ReduceOp::Product => a * b,
                    // `min` drops a NaN, but the reduction of values with a NaN must be NaN.
                    ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => Self::NAN,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                }
            }

            #[inline(always)]
            fn divide(self, count: usize) -> Self {
                self / count as Self
            }
        }
    )* };
}

macro_rules! integers {
    ($($type:ident)*) => { $(
        impl Accumulator for $type {
            #[inline(always)]
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => a.wrapping_add(b),
                    ReduceOp::Product => a.wrapping_mul(b),
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                }
            }

            /// Never called: a mean of integers is refused when it is requested.
            #[inline(always)]
            fn divide(self, _count: usize) -> Self {
                self
            }
        }
    )* };
}

floats!(f32 f64);
integers!(i32 u8 i64);

/// A type of elements. Conversions work on slices, because the processor's instructions for half
/// precision work on vectors.
pub(super) trait Reducible: Pod {
    /// The type in which elements are accumulated.
    type Acc: Accumulator;

    /// Whether `Acc` is this type, so that nothing is converted.
    const IS_ACC: bool;

    fn widen(from: &[Self], to: &mut [Self::Acc]);

    fn narrow(from: &[Self::Acc], to: &mut [Self]);

    /// `acc = combine(acc, part)`. `wide` is scratch memory for a converted `part`.
    #[inline(always)]
    fn fold(op: ReduceOp, acc: &mut [Self::Acc], part: &[Self], wide: &mut [Self::Acc]) {
        Self::widen(part, wide);
        for (a, &x) in acc.iter_mut().zip(wide.iter()) {
            *a = Self::Acc::combine(op, *a, x);
        }
    }
}

impl<T: Accumulator> Reducible for T {
    type Acc = T;

    const IS_ACC: bool = true;

    fn widen(from: &[T], to: &mut [T]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[T], to: &mut [T]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn fold(op: ReduceOp, acc: &mut [T], part: &[T], _wide: &mut [T]) {
        for (a, &x) in acc.iter_mut().zip(part) {
            *a = T::combine(op, *a, x);
        }
    }
}

/// Half precision is accumulated in f32.
macro_rules! halves {
    ($($type:ident)*) => { $(
        impl Reducible for $type {
            type Acc = f32;

            const IS_ACC: bool = false;

            fn widen(from: &[Self], to: &mut [f32]) {
                Half::widen(from, to);
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                Half::narrow(from, to);
            }
        }
    )* };
}

halves!(f16 bf16);
