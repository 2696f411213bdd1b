//! Large vectors in chunks, on the threads of a pool.
//!
//! The places of the cuts and the order in which partial sums are added depend only on the length. So the
//! bits of an update or a norm do not depend on the number of threads.

use rayon::prelude::*;

use crate::simd::{NullaryFnOnce, simd_once};
use crate::thread_pool;

/// Elements per chunk: 128 KiB of f32 from each of two to five vectors, about 10 microseconds of work.
pub const CHUNK: usize = 1 << 15;

/// A vector, or several of equal length, that can be cut in two.
pub trait Splittable: Sized + Send {
    /// The length.
    fn elements(&self) -> usize;
    /// The first `at` elements, and the rest.
    fn split(self, at: usize) -> (Self, Self);
}

impl Splittable for &[f32] {
    fn elements(&self) -> usize {
        self.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Splittable for &mut [f32] {
    fn elements(&self) -> usize {
        self.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Runs `work` on every chunk of `whole` and adds up the pairs that it returns, in a fixed order.
/// What is inlined into `work` uses this machine's vectors ([`crate::simd`]).
pub fn by_chunks<S: Splittable>(whole: S, work: impl Fn(S) -> [f64; 2] + Sync) -> [f64; 2] {
    // Most parameters are small.
    if whole.elements() <= CHUNK {
        return simd_once(ChunkTask { work: &work, chunk: whole });
    }
    total(&of_each_chunk(whole, work))
}

/// The pair that `work` returns of every chunk of `whole`, in order. Their [`total`] is that of [`by_chunks`], also if
/// parts of the vector that begin at multiples of [`CHUNK`] were worked on apart.
pub fn of_each_chunk<S: Splittable>(
    whole: S,
    work: impl Fn(S) -> [f64; 2] + Sync,
) -> Vec<[f64; 2]> {
    let work = &work;
    let mut chunks = Vec::with_capacity(whole.elements().div_ceil(CHUNK));
    let mut rest = whole;
    while rest.elements() > CHUNK {
        let chunk;
        (chunk, rest) = rest.split(CHUNK);
        chunks.push(chunk);
    }
    chunks.push(rest);
    let mut sums = vec![[0.0; 2]; chunks.len()];
    thread_pool::for_each(chunks.into_par_iter().zip(&mut sums), |(chunk, sum)| {
        *sum = simd_once(ChunkTask { work, chunk });
    });
    sums
}

/// The work on one chunk.
struct ChunkTask<'a, S, W> {
    work: &'a W,
    chunk: S,
}

impl<S, W: Fn(S) -> [f64; 2]> NullaryFnOnce for ChunkTask<'_, S, W> {
    type Output = [f64; 2];

    #[inline(always)]
    fn call(self) -> [f64; 2] {
        (self.work)(self.chunk)
    }
}

/// The sum, pairwise by halves.
pub fn total(sums: &[[f64; 2]]) -> [f64; 2] {
    match sums {
        [] => [0.0; 2],
        [sum] => *sum,
        _ => {
            let (first, second) = sums.split_at(sums.len() / 2);
            let (first, second) = (total(first), total(second));
            [first[0] + second[0], first[1] + second[1]]
        }
    }
}

/// The sum of squares of one chunk, in f64 and eight lanes: precise enough, and it vectorises.
#[inline(always)]
pub fn squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (whole, rest) = values.as_chunks::<8>();
    for eight in whole {
        for (lane, &x) in lanes.iter_mut().zip(eight) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_of_any_length_add_up() {
        for len in [0, 1, 7, 8, 9, 100] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let expected: usize = (0..len).map(|i| i * i).sum();
            assert_eq!(squares(&values), expected as f64);
        }
    }
}
