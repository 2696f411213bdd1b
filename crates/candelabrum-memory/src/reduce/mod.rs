//! The arithmetic of reductions: several slices of equal length become one.
//!
//! Values are combined in the order of the slices, and callers pass the slices in rank order. So
//! the result depends neither on the rank that computes it nor on the time. Half precision is
//! accumulated in f32 and rounded once.

mod arithmetic;
mod loops;
mod op;

use std::mem;

use half::{bf16, f16};

use crate::ElementType;
use crate::finite::first_bad;

pub use self::op::ReduceOp;

/// Runs `$body` with `$T` standing for the Rust type of `$element`.
macro_rules! with_type {
    ($element:expr, $T:ident => $body:expr) => {
        with_type!(@ $element, $T, $body;
            F32 f32, F16 f16, Bf16 bf16, I32 i32, U8 u8, F64 f64, I64 i64)
    };
    (@ $element:expr, $T:ident, $body:expr; $($name:ident $type:ident),*) => {
        match $element { $(ElementType::$name => { type $T = $type; $body })* }
    };
}

/// Runs `$body` with the constant `$OP`, the number of the operation.
macro_rules! with_op {
    ($op:expr, $OP:ident => $body:expr) => {
        with_op!(@ $op, $OP, $body; Sum, Mean, Min, Max, Product)
    };
    (@ $op:expr, $OP:ident, $body:expr; $($name:ident),*) => {
        match $op { $(ReduceOp::$name => { const $OP: usize = ReduceOp::$name as usize; $body })* }
    };
}

/// Writes the reduction of all `parts` (bytes of `element`s, of equal length) into each of them.
pub fn reduce_into_all(element: ElementType, op: ReduceOp, parts: &mut [&mut [u8]]) {
    with_type!(element, T => with_op!(op, OP => loops::into_all::<T, OP>(parts)));
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

/// [`reduce_onto`], which also searches all parts as [`search_and_reduce_into_all`] does.
pub fn search_and_reduce_onto(
    element: ElementType,
    op: ReduceOp,
    rank: usize,
    own: &mut [u8],
    others: &[&[u8]],
) -> Option<BadNumber> {
    if element != ElementType::F32 {
        reduce_onto(element, op, rank, own, others);
        return None;
    }
    let mut found: Option<BadNumber> = None;
    for start in (0..own.len()).step_by(SEARCHED) {
        let block = start..own.len().min(start + SEARCHED);
        let own = &mut own[block.clone()];
        let others: Vec<&[u8]> = others.iter().map(|other| &other[block.clone()]).collect();
        let (before, after) = others.split_at(rank);
        let all = before.iter().copied().chain([&*own]).chain(after.iter().copied());
        for (part, values) in all.enumerate() {
            if let Some(position) = first_bad(bytemuck::cast_slice(values)) {
                let bad = BadNumber { part, position: start / size_of::<f32>() + position };
                found = Some(found.map_or(bad, |found| found.min(bad)));
            }
        }
        reduce_onto(element, op, rank, own, &others);
    }
    found
}

/// Writes the reduction of all `parts` into `out`, which is as long as each part.
pub fn reduce_into(element: ElementType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    with_type!(element, T => {
        let out: &mut [T] = bytemuck::cast_slice_mut(out);
        with_op!(op, OP => loops::into_out::<T, OP>(parts, out));
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
        with_op!(op, OP => loops::onto::<T, OP>(rank, own, others));
    });
}

/// Divides floats in place. Integers do not change.
pub fn divide(element: ElementType, values: &mut [u8], count: usize) {
    if element.is_float() {
        with_type!(element, T => loops::divide::<T>(bytemuck::cast_slice_mut(values), count));
    }
}

#[cfg(test)]
mod tests {
    use super::loops::BLOCK;
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
            for rank in 0..parts.len() {
                let mut own = parts[rank].clone();
                let others = parts.iter().enumerate().filter(|(i, _)| *i != rank);
                let others: Vec<&[u8]> =
                    others.map(|(_, part)| bytemuck::cast_slice(&part[..])).collect();
                let bytes = bytemuck::cast_slice_mut(&mut own);
                let (f32, mean) = (ElementType::F32, ReduceOp::Mean);
                assert_eq!(search_and_reduce_onto(f32, mean, rank, bytes, &others), found);
                assert_eq!(bits(&own), expected);
            }
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
