//! Work element by element, over the threads.

use rayon::prelude::*;

use super::float::Float;

/// So many elements stay in the nearest cache while several passes go over them.
const BLOCK: usize = 1 << 12;

/// Below some 10 microseconds of work, waking another thread costs more than it saves.
pub(super) fn worth_threads(elements: usize) -> bool {
    rayon::current_num_threads() > 1 && elements > 1 << 15
}

/// Calls `f` with each block of `ys` and the number of its first element. The blocks depend on the
/// length only.
pub(super) fn in_blocks<T: Float>(ys: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
    if worth_threads(ys.len()) {
        ys.par_chunks_mut(BLOCK).enumerate().for_each(|(index, ys)| f(index * BLOCK, ys));
    } else {
        ys.chunks_mut(BLOCK).enumerate().for_each(|(index, ys)| f(index * BLOCK, ys));
    }
}
