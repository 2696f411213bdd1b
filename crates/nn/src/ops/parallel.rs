//! Work on elements or parts, divided over the threads.

use rayon::prelude::*;

use super::float::Float;

/// The number of elements that stay in the nearest cache during several passes.
const BLOCK: usize = 1 << 12;

/// With less than about 10 microseconds of work, waking another thread costs more than it saves.
pub(super) fn worth_threads(elements: usize) -> bool {
    rayon::current_num_threads() > 1 && elements > 1 << 15
}

/// Calls `f` with each block of `ys` and the number of its first element. The blocks depend only on
/// the length.
pub(super) fn in_blocks<T: Float>(ys: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
    if worth_threads(ys.len()) {
        ys.par_chunks_mut(BLOCK).enumerate().for_each(|(index, ys)| f(index * BLOCK, ys));
    } else {
        ys.chunks_mut(BLOCK).enumerate().for_each(|(index, ys)| f(index * BLOCK, ys));
    }
}

/// Calls `f` with the number of each part of `ys`, the corresponding part of `xs`, and the part
/// itself. The parts have `x_len` and `y_len` elements. Uses several threads if `threads`.
pub(super) fn in_parts<T: Float>(
    threads: bool,
    (xs, x_len): (&[T], usize),
    (ys, y_len): (&mut [T], usize),
    f: impl Fn(usize, &[T], &mut [T]) + Sync,
) {
    if threads {
        let parts = xs.par_chunks(x_len).zip(ys.par_chunks_mut(y_len)).enumerate();
        parts.for_each(|(index, (x, y))| f(index, x, y));
    } else {
        let parts = xs.chunks(x_len).zip(ys.chunks_mut(y_len)).enumerate();
        parts.for_each(|(index, (x, y))| f(index, x, y));
    }
}
