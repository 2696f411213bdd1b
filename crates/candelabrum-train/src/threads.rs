//! The number of compute threads of each rank.

use std::thread::available_parallelism;

use crate::{Error, Result};

/// The cores of this process divided among `local_size` ranks that it starts, at least one. A rank has
/// [`World::default_threads`](candelabrum_dist::World::default_threads).
pub fn default_threads(local_size: usize) -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    (cores / local_size.max(1)).max(1)
}

/// Limits the threads of this process's kernels, ours and candle's. Call it before the first
/// computation.
///
/// # Errors
/// A number of 0, or a pool that already runs with another number.
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::option("--threads", &"0", "at least 1"));
    }
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    let running = rayon::current_num_threads();
    if built.is_err() && running != threads {
        return Err(Error::Threads { wanted: threads, running });
    }
    Ok(())
}
