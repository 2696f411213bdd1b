//! Arithmetic of reductions: several slices of equal length become one.
//!
//! Values are combined in the order of the slices, which callers give in rank order: the result
//! does not depend on who computes it or when. Half precision accumulates in f32.

use half::{bf16, f16};

use super::{ElementType, Half, ReduceOp};

/// Elements per block: three such blocks of f32 and a part fit in a first-level cache.
const BLOCK: usize = 1024;

/// Writes the reduction of all `parts` (byte slices of equal length, of `element`s) into each of
/// them.
pub(crate) fn reduce_into_all(element: ElementType, op: ReduceOp, parts: &mut [&mut [u8]]) {
    match element {
        ElementType::F32 => reduce_typed::<f32>(op, parts),
        ElementType::F16 => reduce_typed::<f16>(op, parts),
        ElementType::Bf16 => reduce_typed::<bf16>(op, parts),
        ElementType::I32 => reduce_typed::<i32>(op, parts),
        ElementType::U8 => reduce_typed::<u8>(op, parts),
        ElementType::F64 => reduce_typed::<f64>(op, parts),
        ElementType::I64 => reduce_typed::<i64>(op, parts),
    }
}

/// An element and the type that its sums are kept in. Conversions are by slices, because the
/// processor's instructions for half precision are.
trait Reducible: bytemuck::Pod {
    type Acc: Copy + Default;
    fn widen(from: &[Self], to: &mut [Self::Acc]);
    fn narrow(from: &[Self::Acc], to: &mut [Self]);
    fn combine(op: ReduceOp, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn divide(acc: Self::Acc, count: usize) -> Self::Acc;

    /// `acc = combine(acc, part)`; `wide` is room for a converted `part`.
    fn fold(
        acc: &mut [Self::Acc],
        part: &[Self],
        wide: &mut [Self::Acc],
        combine: impl Fn(Self::Acc, Self::Acc) -> Self::Acc,
    ) {
        Self::widen(part, wide);
        for (a, &x) in acc.iter_mut().zip(wide.iter()) {
            *a = combine(*a, x);
        }
    }
}

macro_rules! combine_floats {
    ($name:ident, $type:ident) => {
        fn $name(op: ReduceOp, a: $type, b: $type) -> $type {
            match op {
                ReduceOp::Sum | ReduceOp::Mean => a + b,
                ReduceOp::Product => a * b,
                // `min` forgets a NaN; a sum with a NaN in it is not a number and must stay so.
                ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => $type::NAN,
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
            }
        }
    };
}

combine_floats!(combine_f32, f32);
combine_floats!(combine_f64, f64);

macro_rules! half {
    ($type:ty) => {
        impl Reducible for $type {
            type Acc = f32;
            fn widen(from: &[Self], to: &mut [f32]) {
                Half::widen(from, to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                Half::narrow(from, to);
            }
            fn combine(op: ReduceOp, a: f32, b: f32) -> f32 {
                combine_f32(op, a, b)
            }
            fn divide(acc: f32, count: usize) -> f32 {
                acc / count as f32
            }
        }
    };
}

half!(f16);
half!(bf16);

/// Types whose sums are kept in themselves: nothing is converted.
macro_rules! itself {
    ($type:ty, $combine:expr, $divide:expr) => {
        impl Reducible for $type {
            type Acc = $type;
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                $combine(op, a, b)
            }
            fn divide(acc: Self, count: usize) -> Self {
                $divide(acc, count)
            }
            fn fold(
                acc: &mut [Self],
                part: &[Self],
                _wide: &mut [Self],
                combine: impl Fn(Self, Self) -> Self,
            ) {
                for (a, &x) in acc.iter_mut().zip(part) {
                    *a = combine(*a, x);
                }
            }
        }
    };
}

macro_rules! integer {
    ($type:ty) => {
        itself!(
            $type,
            |op, a: $type, b: $type| match op {
                ReduceOp::Sum | ReduceOp::Mean => a.wrapping_add(b),
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
            },
            // Never asked for: a mean of integers is refused when it is requested.
            |acc, _count| acc
        );
    };
}

itself!(f32, combine_f32, |acc, count| acc / count as f32);
itself!(f64, combine_f64, |acc, count| acc / count as f64);
integer!(i32);
integer!(u8);
integer!(i64);

fn reduce_typed<T: Reducible>(op: ReduceOp, parts: &mut [&mut [u8]]) {
    // A constant operation in each arm lets the compiler vectorise the loop it is used in.
    match op {
        ReduceOp::Sum => blocks::<T>(parts, |a, b| T::combine(ReduceOp::Sum, a, b), None),
        ReduceOp::Mean => {
            let count = parts.len();
            blocks::<T>(parts, |a, b| T::combine(ReduceOp::Sum, a, b), Some(count));
        }
        ReduceOp::Min => blocks::<T>(parts, |a, b| T::combine(ReduceOp::Min, a, b), None),
        ReduceOp::Max => blocks::<T>(parts, |a, b| T::combine(ReduceOp::Max, a, b), None),
        ReduceOp::Product => blocks::<T>(parts, |a, b| T::combine(ReduceOp::Product, a, b), None),
    }
}

fn blocks<T: Reducible>(
    parts: &mut [&mut [u8]],
    combine: impl Fn(T::Acc, T::Acc) -> T::Acc,
    divide_by: Option<usize>,
) {
    let mut parts: Vec<&mut [T]> =
        parts.iter_mut().map(|part| bytemuck::cast_slice_mut(part)).collect();
    let len = parts.first().map_or(0, |part| part.len());
    let mut acc = [T::Acc::default(); BLOCK];
    let mut wide = [T::Acc::default(); BLOCK];
    let mut out = [T::zeroed(); BLOCK];
    let mut start = 0;
    while start < len {
        let count = BLOCK.min(len - start);
        let range = start..start + count;
        let (acc, wide, out) = (&mut acc[..count], &mut wide[..count], &mut out[..count]);
        T::widen(&parts[0][range.clone()], acc);
        for part in &parts[1..] {
            T::fold(acc, &part[range.clone()], wide, &combine);
        }
        if let Some(count) = divide_by {
            acc.iter_mut().for_each(|a| *a = T::divide(*a, count));
        }
        T::narrow(acc, out);
        for part in &mut parts {
            part[range.clone()].copy_from_slice(out);
        }
        start += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Element;

    fn reduced<T: Element>(op: ReduceOp, parts: &[Vec<T>]) -> Vec<T> {
        let mut bytes: Vec<Vec<T>> = parts.to_vec();
        let mut views: Vec<&mut [u8]> =
            bytes.iter_mut().map(|p| bytemuck::cast_slice_mut(&mut p[..])).collect();
        reduce_into_all(T::TYPE, op, &mut views);
        for other in &bytes[1..] {
            assert_eq!(
                bytemuck::cast_slice::<T, u8>(other),
                bytemuck::cast_slice::<T, u8>(&bytes[0])
            );
        }
        bytes.swap_remove(0)
    }

    #[test]
    fn every_operation_by_hand() {
        let parts = [vec![1.0_f32, -4.0], vec![2.0, 8.0], vec![6.0, -1.0]];
        assert_eq!(reduced(ReduceOp::Sum, &parts), [9.0, 3.0]);
        assert_eq!(reduced(ReduceOp::Mean, &parts), [3.0, 1.0]);
        assert_eq!(reduced(ReduceOp::Min, &parts), [1.0, -4.0]);
        assert_eq!(reduced(ReduceOp::Max, &parts), [6.0, 8.0]);
        assert_eq!(reduced(ReduceOp::Sum, &[vec![250_u8], vec![10]]), [4]);
        assert_eq!(reduced(ReduceOp::Max, &[vec![-3_i32], vec![-7]]), [-3]);
    }

    #[test]
    fn half_precision_accumulates_in_f32() {
        // In f16, 2048 + 1 is 2048 again and the four ones would be lost.
        let one = vec![f16::from_f32(1.0)];
        let parts = [vec![f16::from_f32(2048.0)], one.clone(), one.clone(), one.clone(), one];
        assert_eq!(reduced(ReduceOp::Sum, &parts), [f16::from_f32(2052.0)]);
    }

    #[test]
    fn a_nan_stays_one_in_every_operation() {
        for op in ReduceOp::ALL {
            for parts in [[vec![f32::NAN], vec![1.0]], [vec![1.0], vec![f32::NAN]]] {
                assert!(reduced(op, &parts)[0].is_nan(), "{op:?}");
            }
        }
    }

    #[test]
    fn lengths_around_the_block_size_are_complete() {
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let a: Vec<i32> = (0..len as i32).collect();
            let b: Vec<i32> = a.iter().map(|x| x * 10).collect();
            let expected: Vec<i32> = a.iter().map(|x| x * 11).collect();
            assert_eq!(reduced(ReduceOp::Sum, &[a, b]), expected);
        }
    }
}
