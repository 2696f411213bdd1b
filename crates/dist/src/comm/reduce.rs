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
        ElementType::F32 => in_place::<f32>(op, parts),
        ElementType::F16 => in_place::<f16>(op, parts),
        ElementType::Bf16 => in_place::<bf16>(op, parts),
        ElementType::I32 => in_place::<i32>(op, parts),
        ElementType::U8 => in_place::<u8>(op, parts),
        ElementType::F64 => in_place::<f64>(op, parts),
        ElementType::I64 => in_place::<i64>(op, parts),
    }
}

/// Writes the reduction of all `parts` into `out`, which is as long as each of them.
pub(crate) fn reduce_into(element: ElementType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    match element {
        ElementType::F32 => apart::<f32>(op, parts, out),
        ElementType::F16 => apart::<f16>(op, parts, out),
        ElementType::Bf16 => apart::<bf16>(op, parts, out),
        ElementType::I32 => apart::<i32>(op, parts, out),
        ElementType::U8 => apart::<u8>(op, parts, out),
        ElementType::F64 => apart::<f64>(op, parts, out),
        ElementType::I64 => apart::<i64>(op, parts, out),
    }
}

/// Divides floats in place; other elements stay as they are.
pub(crate) fn divide(element: ElementType, values: &mut [u8], count: usize) {
    match element {
        ElementType::F32 => divide_typed::<f32>(values, count),
        ElementType::F16 => divide_typed::<f16>(values, count),
        ElementType::Bf16 => divide_typed::<bf16>(values, count),
        ElementType::F64 => divide_typed::<f64>(values, count),
        ElementType::I32 | ElementType::U8 | ElementType::I64 => {}
    }
}

/// An element and the type that its sums are kept in. Conversions are by slices, because the
/// processor's instructions for half precision are.
pub(super) trait Reducible: bytemuck::Pod {
    type Acc: Copy + Default;
    /// Whether sums are kept in the element itself: nothing is converted, and a sum of few parts is
    /// made in one loop over them.
    const PLAIN: bool = false;
    /// The same number; called where the element is [plain](Self::PLAIN).
    fn keep(self) -> Self::Acc {
        Self::Acc::default()
    }
    /// The same number; called where the element is [plain](Self::PLAIN).
    fn give(acc: Self::Acc) -> Self {
        let mut out = [Self::zeroed()];
        Self::narrow(&[acc], &mut out);
        out[0]
    }
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
        #[inline(always)]
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
            const PLAIN: bool = true;
            #[inline(always)]
            fn keep(self) -> Self {
                self
            }
            #[inline(always)]
            fn give(acc: Self) -> Self {
                acc
            }
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            #[inline(always)]
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                $combine(op, a, b)
            }
            #[inline(always)]
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

/// Operations by number, as constants: in a loop for one operation the compiler sees through it.
pub(super) const OPS: [ReduceOp; 5] = ReduceOp::ALL;

pub(super) fn in_place<T: Reducible>(op: ReduceOp, parts: &mut [&mut [u8]]) {
    match op {
        ReduceOp::Sum => in_place_by::<T, 0>(parts),
        ReduceOp::Mean => in_place_by::<T, 1>(parts),
        ReduceOp::Min => in_place_by::<T, 2>(parts),
        ReduceOp::Max => in_place_by::<T, 3>(parts),
        ReduceOp::Product => in_place_by::<T, 4>(parts),
    }
}

fn in_place_by<T: Reducible, const OP: usize>(parts: &mut [&mut [u8]]) {
    match parts {
        [a, b] if T::PLAIN => {
            let (a, b): (&mut [T], &mut [T]) = (cast_mut(a), cast_mut(b));
            simd(
                #[inline(always)]
                || two::<T, OP>(a, b),
            );
        }
        [a, b, c] if T::PLAIN => {
            let (a, b, c): (&mut [T], &mut [T], &mut [T]) = (cast_mut(a), cast_mut(b), cast_mut(c));
            simd(
                #[inline(always)]
                || three::<T, OP>(a, b, c),
            );
        }
        parts => {
            let mut parts: Vec<&mut [T]> = parts.iter_mut().map(|part| cast_mut(part)).collect();
            blocks::<T, OP>(&mut InPlace(&mut parts));
        }
    }
}

fn apart<T: Reducible>(op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    let parts: Vec<&[T]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
    let mut all = Apart { parts: &parts, out: cast_mut(out) };
    match op {
        ReduceOp::Sum => blocks::<T, 0>(&mut all),
        ReduceOp::Mean => blocks::<T, 1>(&mut all),
        ReduceOp::Min => blocks::<T, 2>(&mut all),
        ReduceOp::Max => blocks::<T, 3>(&mut all),
        ReduceOp::Product => blocks::<T, 4>(&mut all),
    }
}

fn divide_typed<T: Reducible>(values: &mut [u8], count: usize) {
    let values: &mut [T] = cast_mut(values);
    let (mut wide, mut out) = ([T::Acc::default(); BLOCK], [T::zeroed(); BLOCK]);
    for block in values.chunks_mut(BLOCK) {
        let (wide, out) = (&mut wide[..block.len()], &mut out[..block.len()]);
        T::widen(block, wide);
        wide.iter_mut().for_each(|x| *x = T::divide(*x, count));
        T::narrow(wide, out);
        block.copy_from_slice(out);
    }
}

pub(super) fn cast_mut<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(bytes)
}

/// What the sum of `count` becomes.
#[inline(always)]
pub(super) fn ended<T: Reducible, const OP: usize>(acc: T::Acc, count: usize) -> T::Acc {
    if matches!(OPS[OP], ReduceOp::Mean) { T::divide(acc, count) } else { acc }
}

/// Reads both parts once and writes the result to both.
#[inline(always)]
fn two<T: Reducible, const OP: usize>(a: &mut [T], b: &mut [T]) {
    for (a, b) in a.iter_mut().zip(b) {
        let x = T::combine(OPS[OP], a.keep(), b.keep());
        let x = T::give(ended::<T, OP>(x, 2));
        (*a, *b) = (x, x);
    }
}

/// The same for three.
#[inline(always)]
fn three<T: Reducible, const OP: usize>(a: &mut [T], b: &mut [T], c: &mut [T]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        let x = T::combine(OPS[OP], a.keep(), b.keep());
        let x = T::combine(OPS[OP], x, c.keep());
        let x = T::give(ended::<T, OP>(x, 3));
        (*a, *b, *c) = (x, x, x);
    }
}

/// Slices of equal length that are reduced, and where the result goes.
trait Parts<T> {
    fn count(&self) -> usize;
    fn part(&self, index: usize) -> &[T];
    fn store(&mut self, start: usize, values: &[T]);
}

struct InPlace<'a, 'b, T>(&'a mut [&'b mut [T]]);

impl<T: Copy> Parts<T> for InPlace<'_, '_, T> {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn part(&self, index: usize) -> &[T] {
        self.0[index]
    }
    fn store(&mut self, start: usize, values: &[T]) {
        for part in self.0.iter_mut() {
            part[start..start + values.len()].copy_from_slice(values);
        }
    }
}

struct Apart<'a, T> {
    parts: &'a [&'a [T]],
    out: &'a mut [T],
}

impl<T: Copy> Parts<T> for Apart<'_, T> {
    fn count(&self) -> usize {
        self.parts.len()
    }
    fn part(&self, index: usize) -> &[T] {
        self.parts[index]
    }
    fn store(&mut self, start: usize, values: &[T]) {
        self.out[start..start + values.len()].copy_from_slice(values);
    }
}

/// Any number of parts of any type, a block of a cache's size at a time.
fn blocks<T: Reducible, const OP: usize>(parts: &mut impl Parts<T>) {
    let len = if parts.count() == 0 { 0 } else { parts.part(0).len() };
    let mut acc = [T::Acc::default(); BLOCK];
    let mut wide = [T::Acc::default(); BLOCK];
    let mut out = [T::zeroed(); BLOCK];
    for start in (0..len).step_by(BLOCK) {
        let count = BLOCK.min(len - start);
        let range = start..start + count;
        let (acc, wide, out) = (&mut acc[..count], &mut wide[..count], &mut out[..count]);
        T::widen(&parts.part(0)[range.clone()], acc);
        for part in 1..parts.count() {
            let part = &parts.part(part)[range.clone()];
            T::fold(acc, part, wide, |a, b| T::combine(OPS[OP], a, b));
        }
        acc.iter_mut().for_each(|a| *a = ended::<T, OP>(*a, parts.count()));
        T::narrow(acc, out);
        parts.store(start, out);
    }
}

/// Runs `f` with the vectors that this machine has; see `ops/simd.rs` in the crate `nn`.
#[inline(always)]
pub(super) fn simd(f: impl FnMut()) {
    struct Closure<F>(F);
    impl<F: FnMut()> pulp::NullaryFnOnce for Closure<F> {
        type Output = ();
        #[inline(always)]
        fn call(mut self) {
            (self.0)();
        }
    }
    pulp::Arch::new().dispatch(Closure(f));
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
