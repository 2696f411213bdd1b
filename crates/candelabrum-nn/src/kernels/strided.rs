//! Copies between two orders of the same numbers: what a transposition or a cut needs.
//!
//! A copy is a nest of loops, one for each axis. If the source is contiguous along another axis than
//! the destination, a loop along either of them would use one number of each cache line that it
//! touches. So these two axes are copied in tiles of [`TILE`] rows of the destination.

use rayon::prelude::*;

use super::elementwise::add_assign;
use super::float::Float;
use super::parallel::worth_threads;
use super::transpose::{put, transpose};
use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;

/// The number of rows of a tile. The line of each row stays in the nearest cache.
const TILE: usize = 16;

/// The number of elements that one thread copies at a time.
const BLOCK: usize = 1 << 14;

/// A loop: the number of its turns, and how far each turn moves in the destination and in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StridedLoop {
    pub(crate) len: usize,
    pub(crate) to: usize,
    pub(crate) from: usize,
}

/// What happens with a number of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMode {
    /// It replaces the number in the destination.
    Replace,
    /// It is added to the number in the destination.
    Add,
}

/// Stores the numbers of `source` in `destination`. The axes go from the longest step in the
/// destination to the shortest one, and a step is longer than all that the later axes reach. Threads
/// share the destination, so the result does not depend on their number.
pub(crate) fn transfer<T: Float>(
    axes: &[StridedLoop],
    destination: &mut [T],
    source: &[T],
    store: StoreMode,
) {
    let axes = merged(axes);
    if axes.iter().any(|axis| axis.len == 0) {
        return;
    }
    match store {
        StoreMode::Replace => split::<T, false>(&axes, destination, source),
        StoreMode::Add => split::<T, true>(&axes, destination, source),
    }
}

/// The axes without those of one turn. Two axes that are one run in both places become one.
fn merged(axes: &[StridedLoop]) -> Vec<StridedLoop> {
    let mut merged: Vec<StridedLoop> = Vec::with_capacity(axes.len());
    for &axis in axes.iter().filter(|axis| axis.len != 1) {
        match merged.last_mut() {
            Some(outer) if outer.to == axis.len * axis.to && outer.from == axis.len * axis.from => {
                *outer = StridedLoop { len: outer.len * axis.len, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Divides the longest steps over the threads.
fn split<T: Float, const ADD: bool>(axes: &[StridedLoop], destination: &mut [T], source: &[T]) {
    let Some((first, inner)) = axes.split_first() else {
        return put::<T, ADD>(&mut destination[0], source[0]);
    };
    let of_one: usize = inner.iter().map(|axis| axis.len).product();
    if !worth_threads(first.len * of_one) {
        return nest::<T, ADD>(&tiled(axes), destination, source);
    }
    let few = (BLOCK / of_one).max(1);
    let turns = if first.from == 1 { few.next_multiple_of(TILE) } else { few };
    let reach: usize = axes.iter().map(|axis| (axis.len - 1) * axis.to).sum();
    let blocks = destination[..=reach].par_chunks_mut(turns * first.to);
    thread_pool::for_each(blocks.enumerate(), |(number, block)| {
        let done = number * turns;
        let own = StridedLoop { len: turns.min(first.len - done), ..*first };
        let axes = merged(&[&[own], inner].concat());
        let source = &source[done * first.from..];
        match axes.is_empty() {
            true => put::<T, ADD>(&mut block[0], source[0]),
            false => nest::<T, ADD>(&tiled(&axes), block, source),
        }
    });
}

/// The axes with the one along which the source is contiguous as the last but one, unless the
/// destination is contiguous along it too.
fn tiled(axes: &[StridedLoop]) -> Vec<StridedLoop> {
    let mut axes = axes.to_vec();
    let last = axes.len() - 1;
    if let Some(run) = axes[..last].iter().position(|axis| axis.from == 1) {
        let axis = axes.remove(run);
        axes.insert(last - 1, axis);
    }
    axes
}

/// The loops over the axes. There is at least one.
fn nest<T: Float, const ADD: bool>(axes: &[StridedLoop], destination: &mut [T], source: &[T]) {
    match *axes {
        [StridedLoop { len, to: 1, from: 1 }] => {
            let (destination, source) = (&mut destination[..len], &source[..len]);
            if ADD {
                simd(
                    #[inline(always)]
                    || add_assign(destination, source),
                );
            } else {
                destination.copy_from_slice(source);
            }
        }
        [StridedLoop { len, to, from }] => {
            for i in 0..len {
                put::<T, ADD>(&mut destination[i * to], source[i * from]);
            }
        }
        [rows @ StridedLoop { from: 1, .. }, columns @ StridedLoop { to: 1, .. }] => {
            tiles::<T, ADD>(rows, columns, destination, source);
        }
        [first, ref inner @ ..] => {
            for i in 0..first.len {
                nest::<T, ADD>(inner, &mut destination[i * first.to..], &source[i * first.from..]);
            }
        }
        [] => {}
    }
}

/// A transposition. The source is contiguous along `rows`, the destination along `columns`.
fn tiles<T: Float, const ADD: bool>(
    rows: StridedLoop,
    columns: StridedLoop,
    destination: &mut [T],
    source: &[T],
) {
    simd(
        #[inline(always)]
        || {
            for first in (0..rows.len).step_by(TILE) {
                let size = (columns.len, TILE.min(rows.len - first));
                let to = &mut destination[first * rows.to..];
                transpose::<T, ADD>(&source[first..], columns.from, size, to, rows.to);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of axes of these lengths, from the longest step to the shortest one.
    fn check(lens: &[usize], order: &[usize]) {
        let elements: usize = lens.iter().product();
        let step = |axis: usize| lens[axis + 1..].iter().product::<usize>();
        let source: Vec<f64> = (0..elements).map(|i| i as f64).collect();
        let shape: Vec<usize> = order.iter().map(|&axis| lens[axis]).collect();
        let axes: Vec<StridedLoop> = (order.iter().enumerate())
            .map(|(i, &axis)| {
                let to = shape[i + 1..].iter().product();
                StridedLoop { len: lens[axis], to, from: step(axis) }
            })
            .collect();
        let expected: Vec<f64> = (0..elements)
            .map(|i| {
                let place = |axis: &StridedLoop| i / axis.to % axis.len * axis.from;
                axes.iter().map(place).sum::<usize>() as f64
            })
            .collect();
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a thread pool").install(|| {
                let mut copied = vec![f64::NAN; elements];
                transfer(&axes, &mut copied, &source, StoreMode::Replace);
                assert_eq!(copied, expected, "{lens:?} in the order {order:?}");
                transfer(&axes, &mut copied, &source, StoreMode::Add);
                let doubled: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
                assert_eq!(copied, doubled, "{lens:?} in the order {order:?}, added");
            });
        }
    }

    #[test]
    fn every_number_comes_to_its_place() {
        check(&[], &[]);
        check(&[1, 1], &[1, 0]);
        check(&[0, 3], &[1, 0]);
        check(&[7], &[0]);
        check(&[5, 7], &[1, 0]);
        check(&[3, 1, 5], &[2, 0, 1]);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            check(&[2, 3, 5], &order);
            check(&[37, 41, 33], &order);
        }
        check(&[211, 307], &[1, 0]);
        check(&[3, 5, 70, 64], &[0, 2, 1, 3]);
        check(&[3, 5, 70, 64], &[0, 2, 3, 1]);
    }
}
