//! The arithmetic of reductions: several slices of equal length become one.
//!
//! Values are combined in the order of the slices, and callers pass the slices in rank order. So
//! the result depends neither on the rank that computes it nor on the time. Half precision is
//! accumulated in f32 and rounded once.

use std::mem;

use bytemuck::Pod;
use half::{bf16, f16};

use crate::finite::first_bad;
use crate::simd::simd;
use crate::{ElementType, Half};

/// The function that combines the values of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum, added in rank order. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks. For floats only.
    Mean,
    /// The smallest value. If one value is NaN, the result is NaN.
    Min,
    /// The largest value. If one value is NaN, the result is NaN.
    Max,
    /// The product, multiplied in rank order. Integers wrap.
    Product,
}

impl ReduceOp {
    /// All operations, by number.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The operation's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }

    /// The operation's number on the wire: its place in [`Self::ALL`].
    pub fn code(self) -> u8 {
        Self::ALL.iter().position(|&op| op == self).unwrap_or_default() as u8
    }

    /// The operation with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Elements per block: three such blocks of f32 and a part fit in a first-level cache.
const BLOCK: usize = 1024;

/// Runs `$body` with `$T` standing for the Rust type of `$element`.
macro_rules! with_type {
    ($element:expr, $T:ident => $body:expr) => {
        match $element {
            ElementType::F32 => with_type!(@ f32, $T, $body),
            ElementType::F16 => with_type!(@ f16, $T, $body),
            ElementType::Bf16 => with_type!(@ bf16, $T, $body),
            ElementType::I32 => with_type!(@ i32, $T, $body),
            ElementType::U8 => with_type!(@ u8, $T, $body),
            ElementType::F64 => with_type!(@ f64, $T, $body),
            ElementType::I64 => with_type!(@ i64, $T, $body),
        }
    };
    (@ $type:ty, $T:ident, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// Runs `$body` with the constant `$OP`, the number of the operation, so that a loop compiled for
/// one operation has no branch on the operation.
macro_rules! with_op {
    ($op:expr, $OP:ident => $body:expr) => {
        match $op {
            ReduceOp::Sum => with_op!(@ 0, $OP, $body),
            ReduceOp::Mean => with_op!(@ 1, $OP, $body),
            ReduceOp::Min => with_op!(@ 2, $OP, $body),
            ReduceOp::Max => with_op!(@ 3, $OP, $body),
            ReduceOp::Product => with_op!(@ 4, $OP, $body),
        }
    };
    (@ $number:literal, $OP:ident, $body:expr) => {{
        const $OP: usize = $number;
        $body
    }};
}

/// Writes the reduction of all `parts` (bytes of `element`s, of equal length) into each of them.
pub fn reduce_into_all(element: ElementType, op: ReduceOp, parts: &mut [&mut [u8]]) {
    with_type!(element, T => with_op!(op, OP => into_all::<T, OP>(parts)));
}

/// A number that is not finite, in one of the parts of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadNumber {
    /// The part, which is the rank in an all-reduce.
    pub part: usize,
    /// Its position in the part.
    pub position: usize,
}

/// Bytes of each part that are searched before they are reduced. The parts of two ranks then fit in a
/// first-level cache, and those of many in a second-level cache.
const SEARCHED: usize = 16 * 1024;

/// [`reduce_into_all`], which also returns the first f32 number of the lowest part that is not finite.
/// Each block of the parts is searched before it is reduced, while it is in the cache, so no part is
/// read from memory twice. Numbers of other types are not searched.
pub fn search_and_reduce_into_all(
    element: ElementType,
    op: ReduceOp,
    mut parts: Vec<&mut [u8]>,
) -> Option<BadNumber> {
    if element != ElementType::F32 {
        reduce_into_all(element, op, &mut parts);
        return None;
    }
    let len = parts.first().map_or(0, |part| part.len());
    let mut found: Option<BadNumber> = None;
    let mut blocks = Vec::with_capacity(parts.len());
    for start in (0..len).step_by(SEARCHED) {
        blocks.clear();
        for (part, values) in parts.iter_mut().enumerate() {
            let (block, rest) = mem::take(values).split_at_mut(SEARCHED.min(len - start));
            *values = rest;
            if let Some(position) = first_bad(bytemuck::cast_slice(block)) {
                let bad = BadNumber { part, position: start / size_of::<f32>() + position };
                found = Some(found.map_or(bad, |found| found.min(bad)));
            }
            blocks.push(block);
        }
        reduce_into_all(element, op, &mut blocks);
    }
    found
}

/// Writes the reduction of all `parts` into `out`, which is as long as each part.
pub fn reduce_into(element: ElementType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    with_type!(element, T => {
        let parts: Vec<&[T]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        let mut parts = Apart { parts: &parts, out: bytemuck::cast_slice_mut(out) };
        with_op!(op, OP => blocks::<T, OP>(&mut parts));
    });
}

/// Replaces `own`, which is part number `rank`, by its reduction with the `others`, which are the
/// remaining parts in order.
pub fn reduce_onto(
    element: ElementType,
    op: ReduceOp,
    rank: usize,
    own: &mut [u8],
    others: &[&[u8]],
) {
    with_type!(element, T => {
        let own: &mut [T] = bytemuck::cast_slice_mut(own);
        with_op!(op, OP => onto::<T, OP>(rank, own, others));
    });
}

/// Divides floats in place. Integers do not change.
pub fn divide(element: ElementType, values: &mut [u8], count: usize) {
    if element.is_float() {
        with_type!(element, T => divide_typed::<T>(bytemuck::cast_slice_mut(values), count));
    }
}

/// An element and the type of its sums. Conversions work on slices, because the processor's
/// instructions for half precision work on vectors.
trait Reducible: Pod {
    /// The type of the sums.
    type Acc: Copy + Default;
    /// Whether sums have the element's own type. Then nothing is converted, and a few parts are
    /// combined in one loop over all of them.
    const PLAIN: bool = false;
    /// The number as a sum. Called if the type is [plain](Self::PLAIN).
    fn keep(self) -> Self::Acc {
        Self::Acc::default()
    }
    /// The sum as a number. Called if the type is [plain](Self::PLAIN).
    fn give(acc: Self::Acc) -> Self {
        let mut out = [Self::zeroed()];
        Self::narrow(&[acc], &mut out);
        out[0]
    }
    fn widen(from: &[Self], to: &mut [Self::Acc]);
    fn narrow(from: &[Self::Acc], to: &mut [Self]);
    fn combine(op: ReduceOp, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn divide(acc: Self::Acc, count: usize) -> Self::Acc;

    /// `acc = combine(acc, part)`. `wide` is scratch memory for a converted `part`.
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
                // `min` drops a NaN, but the reduction of values with a NaN must be NaN.
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

/// Types whose sums have their own type: nothing is converted.
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
            // Never called: a mean of integers is refused when it is requested.
            |acc, _count| acc
        );
    };
}

itself!(f32, combine_f32, |acc, count| acc / count as f32);
itself!(f64, combine_f64, |acc, count| acc / count as f64);
integer!(i32);
integer!(u8);
integer!(i64);

/// The sum of `count` parts, divided by `count` if the operation is a mean.
#[inline(always)]
fn ended<T: Reducible, const OP: usize>(acc: T::Acc, count: usize) -> T::Acc {
    if matches!(ReduceOp::ALL[OP], ReduceOp::Mean) { T::divide(acc, count) } else { acc }
}

fn into_all<T: Reducible, const OP: usize>(parts: &mut [&mut [u8]]) {
    match parts {
        [a, b] if T::PLAIN => {
            let (a, b): (&mut [T], &mut [T]) =
                (bytemuck::cast_slice_mut(a), bytemuck::cast_slice_mut(b));
            simd(
                #[inline(always)]
                || two::<T, OP>(a, b),
            );
        }
        [a, b, c] if T::PLAIN => {
            let (a, b, c): (&mut [T], &mut [T], &mut [T]) = (
                bytemuck::cast_slice_mut(a),
                bytemuck::cast_slice_mut(b),
                bytemuck::cast_slice_mut(c),
            );
            simd(
                #[inline(always)]
                || three::<T, OP>(a, b, c),
            );
        }
        parts => {
            let mut parts: Vec<&mut [T]> =
                parts.iter_mut().map(|part| bytemuck::cast_slice_mut(part)).collect();
            blocks::<T, OP>(&mut InPlace(&mut parts));
        }
    }
}

/// Reads both parts once and writes the result to both.
#[inline(always)]
fn two<T: Reducible, const OP: usize>(a: &mut [T], b: &mut [T]) {
    for (a, b) in a.iter_mut().zip(b) {
        let x = of_two::<T, OP, true>(*a, *b);
        (*a, *b) = (x, x);
    }
}

/// Reads all three parts once and writes the result to all.
#[inline(always)]
fn three<T: Reducible, const OP: usize>(a: &mut [T], b: &mut [T], c: &mut [T]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        let x = T::combine(ReduceOp::ALL[OP], a.keep(), b.keep());
        let x = T::combine(ReduceOp::ALL[OP], x, c.keep());
        let x = T::give(ended::<T, OP>(x, 3));
        (*a, *b, *c) = (x, x, x);
    }
}

fn onto<T: Reducible, const OP: usize>(rank: usize, own: &mut [T], others: &[&[u8]]) {
    match others {
        [other] if T::PLAIN => {
            let other: &[T] = bytemuck::cast_slice(other);
            if rank == 0 {
                pair::<T, OP, true>(own, other);
            } else {
                pair::<T, OP, false>(own, other);
            }
        }
        others => {
            let others: Vec<&[T]> =
                others.iter().map(|other| bytemuck::cast_slice(other)).collect();
            blocks::<T, OP>(&mut Onto { rank, own, others: &others });
        }
    }
}

fn pair<T: Reducible, const OP: usize, const OWN_IS_FIRST: bool>(own: &mut [T], other: &[T]) {
    simd(
        #[inline(always)]
        || {
            for (own, &other) in own.iter_mut().zip(other) {
                *own = of_two::<T, OP, OWN_IS_FIRST>(*own, other);
            }
        },
    );
}

#[inline(always)]
fn of_two<T: Reducible, const OP: usize, const OWN_IS_FIRST: bool>(own: T, other: T) -> T {
    let (a, b) = if OWN_IS_FIRST { (own, other) } else { (other, own) };
    T::give(ended::<T, OP>(T::combine(ReduceOp::ALL[OP], a.keep(), b.keep()), 2))
}

fn divide_typed<T: Reducible>(values: &mut [T], count: usize) {
    let (mut wide, mut out) = ([T::Acc::default(); BLOCK], [T::zeroed(); BLOCK]);
    for block in values.chunks_mut(BLOCK) {
        let (wide, out) = (&mut wide[..block.len()], &mut out[..block.len()]);
        T::widen(block, wide);
        wide.iter_mut().for_each(|x| *x = T::divide(*x, count));
        T::narrow(wide, out);
        block.copy_from_slice(out);
    }
}

/// Slices of equal length to reduce, and the destination of the result.
trait Parts<T> {
    fn count(&self) -> usize;
    fn part(&self, index: usize) -> &[T];
    fn store(&mut self, start: usize, values: &[T]);
}

/// The result replaces every part.
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

/// The result is written to another slice.
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

/// The result replaces one part.
struct Onto<'a, T> {
    rank: usize,
    own: &'a mut [T],
    others: &'a [&'a [T]],
}

impl<T: Copy> Parts<T> for Onto<'_, T> {
    fn count(&self) -> usize {
        self.others.len() + 1
    }
    fn part(&self, index: usize) -> &[T] {
        match index.cmp(&self.rank) {
            std::cmp::Ordering::Less => self.others[index],
            std::cmp::Ordering::Equal => self.own,
            std::cmp::Ordering::Greater => self.others[index - 1],
        }
    }
    fn store(&mut self, start: usize, values: &[T]) {
        self.own[start..start + values.len()].copy_from_slice(values);
    }
}

/// Reduces any number of parts of any type, in blocks that fit the cache.
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
            T::fold(acc, part, wide, |a, b| T::combine(ReduceOp::ALL[OP], a, b));
        }
        acc.iter_mut().for_each(|a| *a = ended::<T, OP>(*a, parts.count()));
        T::narrow(acc, out);
        parts.store(start, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

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
    fn a_search_finds_the_first_bad_number_of_the_lowest_part_and_reduces_all() {
        let len = 3 * SEARCHED / 4 + 7;
        let good: Vec<Vec<f32>> =
            (0..3).map(|part| (0..len).map(|i| (part * len + i) as f32).collect()).collect();
        let places = [0, 1, SEARCHED / 4 - 1, SEARCHED / 4, len - 1];
        let search = |parts: &[Vec<f32>]| {
            let mut copies = parts.to_vec();
            let views =
                copies.iter_mut().map(|part| bytemuck::cast_slice_mut(&mut part[..])).collect();
            let found = search_and_reduce_into_all(ElementType::F32, ReduceOp::Mean, views);
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let expected = bits(&reduced(ReduceOp::Mean, parts));
            assert!(copies.iter().all(|copy| bits(copy) == expected));
            found
        };
        for count in [1, 2, 3] {
            assert_eq!(search(&good[..count]), None);
            for part in 0..count {
                for position in places {
                    let mut parts = good[..count].to_vec();
                    parts[part][position..].fill(f32::NEG_INFINITY);
                    // A higher part has a bad number before it.
                    parts[count - 1][0] = if part < count - 1 { f32::NAN } else { parts[part][0] };
                    assert_eq!(search(&parts), Some(BadNumber { part, position }));
                }
            }
        }
    }

    #[test]
    fn half_precision_accumulates_in_f32() {
        // In f16, 2048 + 1 is 2048 again, so the four ones would be lost.
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

    #[test]
    fn a_part_takes_the_result_alone() {
        fn check<T: Element>(count: usize, value: impl Fn(usize) -> T) {
            let part = |salt: usize| (0..1031).map(|i| value(i * 7 + salt)).collect::<Vec<_>>();
            let parts: Vec<Vec<T>> = (0..count).map(|i| part(3 + 47 * i)).collect();
            for op in ReduceOp::ALL {
                let expected = reduced(op, &parts);
                for rank in 0..count {
                    let mut own = parts[rank].clone();
                    let others = parts.iter().enumerate().filter(|(i, _)| *i != rank);
                    let others: Vec<&[u8]> =
                        others.map(|(_, part)| bytemuck::cast_slice(&part[..])).collect();
                    let bytes = bytemuck::cast_slice_mut(&mut own);
                    reduce_onto(T::TYPE, op, rank, bytes, &others);
                    assert_eq!(own, expected, "{op:?}, {rank} of {count}");
                }
            }
        }
        for count in 1..=4 {
            check(count, |x| x as f32 * 0.3);
            check(count, |x| bf16::from_f32(x as f32 * 0.3));
            check(count, |x| x as i64);
            check(count, |x| x as u8);
        }
    }
}
