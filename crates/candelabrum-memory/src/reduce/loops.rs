//! The loops of reductions, compiled for each type and each operation.
//!
//! An operation is a constant, its number `OP`, so that a loop has no branch on the operation. Two or three
//! parts whose elements need no conversion are combined in one pass over all of them.

use std::cmp::Ordering;
use std::ops::Range;

use bytemuck::{Zeroable, cast_slice, cast_slice_mut};

use super::arithmetic::{Accumulator, Reducible};
use super::op::ReduceOp;
use crate::simd::simd;

/// Elements per block: three such blocks of f32 and a part fit in a first-level cache.
pub(super) const BLOCK: usize = 1024;

/// What `count` parts have become, divided by `count` if the operation is a mean.
#[inline(always)]
fn ended<A: Accumulator, const OP: usize>(acc: A, count: usize) -> A {
    if matches!(ReduceOp::ALL[OP], ReduceOp::Mean) { acc.divide(count) } else { acc }
}

#[inline(always)]
fn of_two<A: Accumulator, const OP: usize>(a: A, b: A) -> A {
    ended::<A, OP>(A::combine(ReduceOp::ALL[OP], a, b), 2)
}

/// Writes the reduction of all parts into each of them.
pub(super) fn into_all<T: Reducible, const OP: usize>(parts: &mut [&mut [u8]]) {
    match parts {
        [a, b] if T::IS_ACC => {
            let (a, b) = (cast_slice_mut(a), cast_slice_mut(b));
            simd(
                #[inline(always)]
                || two::<T::Acc, OP>(a, b),
            );
        }
        [a, b, c] if T::IS_ACC => {
            let (a, b, c) = (cast_slice_mut(a), cast_slice_mut(b), cast_slice_mut(c));
            simd(
                #[inline(always)]
                || three::<T::Acc, OP>(a, b, c),
            );
        }
        parts => {
            let count = parts.len();
            blocks::<T, OP, _>(
                parts,
                count,
                |parts, part| cast_slice(parts[part]),
                |parts, range, values| {
                    for part in parts {
                        cast_slice_mut(part)[range.clone()].copy_from_slice(values);
                    }
                },
            );
        }
    }
}

/// Reads both parts once and writes the result to both.
#[inline(always)]
fn two<A: Accumulator, const OP: usize>(a: &mut [A], b: &mut [A]) {
    for (a, b) in a.iter_mut().zip(b) {
        let x = of_two::<A, OP>(*a, *b);
        (*a, *b) = (x, x);
    }
}

/// Reads all three parts once and writes the result to all.
#[inline(always)]
fn three<A: Accumulator, const OP: usize>(a: &mut [A], b: &mut [A], c: &mut [A]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        let x = A::combine(ReduceOp::ALL[OP], A::combine(ReduceOp::ALL[OP], *a, *b), *c);
        let x = ended::<A, OP>(x, 3);
        (*a, *b, *c) = (x, x, x);
    }
}

/// Writes the reduction of the parts to `out`.
pub(super) fn into_out<T: Reducible, const OP: usize>(parts: &[&[u8]], out: &mut [T]) {
    blocks::<T, OP, (&[&[u8]], &mut [T])>(
        &mut (parts, out),
        parts.len(),
        |(parts, _), part| cast_slice(parts[part]),
        |(_, out), range, values| out[range].copy_from_slice(values),
    );
}

/// Replaces `own`, which is part number `rank`, by its reduction with the other parts.
pub(super) fn onto<T: Reducible, const OP: usize>(rank: usize, own: &mut [T], others: &[&[u8]]) {
    match others {
        [other] if T::IS_ACC => {
            let (own, other) = (cast_slice_mut(own), cast_slice(other));
            match rank {
                0 => pair::<T::Acc, OP, true>(own, other),
                _ => pair::<T::Acc, OP, false>(own, other),
            }
        }
        others => {
            blocks::<T, OP, (&[&[u8]], &mut [T])>(
                &mut (others, own),
                others.len() + 1,
                |(others, own), part| match part.cmp(&rank) {
                    Ordering::Less => cast_slice(others[part]),
                    Ordering::Equal => own,
                    Ordering::Greater => cast_slice(others[part - 1]),
                },
                |(_, own), range, values| own[range].copy_from_slice(values),
            );
        }
    }
}

fn pair<A: Accumulator, const OP: usize, const OWN_IS_FIRST: bool>(own: &mut [A], other: &[A]) {
    simd(
        #[inline(always)]
        || {
            for (own, &other) in own.iter_mut().zip(other) {
                let (a, b) = if OWN_IS_FIRST { (*own, other) } else { (other, *own) };
                *own = of_two::<A, OP>(a, b);
            }
        },
    );
}

/// Reduces any number of parts of any type, in blocks that fit the cache. `part` finds a part
/// by its number, and `store` writes the results to all places of `to` where they are wanted.
fn blocks<T: Reducible, const OP: usize, D: ?Sized>(
    to: &mut D,
    count: usize,
    part: impl Fn(&D, usize) -> &[T],
    store: impl Fn(&mut D, Range<usize>, &[T]),
) {
    let len = if count == 0 { 0 } else { part(to, 0).len() };
    let [mut acc, mut wide] = [[T::Acc::zeroed(); BLOCK]; 2];
    let mut out = [T::zeroed(); BLOCK];
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let size = range.len();
        let (acc, wide, out) = (&mut acc[..size], &mut wide[..size], &mut out[..size]);
        T::widen(&part(to, 0)[range.clone()], acc);
        for number in 1..count {
            T::fold(ReduceOp::ALL[OP], acc, &part(to, number)[range.clone()], wide);
        }
        acc.iter_mut().for_each(|a| *a = ended::<T::Acc, OP>(*a, count));
        T::narrow(acc, out);
        store(to, range, out);
    }
}

/// Divides floats in place.
pub(super) fn divide<T: Reducible>(values: &mut [T], count: usize) {
    let (mut wide, mut out) = ([T::Acc::zeroed(); BLOCK], [T::zeroed(); BLOCK]);
    for block in values.chunks_mut(BLOCK) {
        let (wide, out) = (&mut wide[..block.len()], &mut out[..block.len()]);
        T::widen(block, wide);
        wide.iter_mut().for_each(|x| *x = x.divide(count));
        T::narrow(wide, out);
        block.copy_from_slice(out);
    }
}
