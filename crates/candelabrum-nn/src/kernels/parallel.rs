//! Work on elements or parts, divided over the threads.

use rayon::prelude::*;

use candelabrum_memory::thread_pool;

use super::float::Float;

/// The number of elements that stay in the nearest cache during several passes.
const BLOCK: usize = 1 << 12;

/// With less than about 2 microseconds of work, passing a part to another thread costs more than it saves.
pub(crate) fn worth_threads(elements: usize) -> bool {
    elements > 1 << 13 && thread_pool::threads() > 1
}

/// Calls `f` with each item, on the threads of the pool if `threads`, otherwise on this one.
pub(crate) fn for_each<I: IndexedParallelIterator>(
    threads: bool,
    items: I,
    f: impl Fn(I::Item) + Sync,
) {
    if threads { thread_pool::for_each(items, f) } else { thread_pool::for_each_serially(items, f) }
}

/// Calls `f` with each block of `ys` and the number of its first element. The blocks depend only on
/// the length.
pub(crate) fn in_blocks<T: Send>(ys: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
    let threads = worth_threads(ys.len());
    for_each(threads, ys.par_chunks_mut(BLOCK).enumerate(), |(index, ys)| f(index * BLOCK, ys));
}

/// Calls `f` with the number of each part of `ys`, the corresponding part of `xs`, and the part
/// itself. The parts have `x_len` and `y_len` elements. Uses several threads if `threads`.
pub(crate) fn in_parts<T: Float>(
    threads: bool,
    (xs, x_len): (&[T], usize),
    (ys, y_len): (&mut [T], usize),
    f: impl Fn(usize, &[T], &mut [T]) + Sync,
) {
    let parts = xs.par_chunks(x_len).zip(ys.par_chunks_mut(y_len)).enumerate();
    for_each(threads, parts, |(index, (x, y))| f(index, x, y));
}
