//! The thread pools of this process. A thread leases a pool for the time of one loop.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use super::nested;
use super::pool::ThreadPool;
use super::task::PartFn;

/// The pools that nobody has leased, and the number of workers in those that somebody has.
struct LeasedPools {
    idle: Vec<ThreadPool>,
    busy_workers: usize,
}

static POOLS: Mutex<LeasedPools> = Mutex::new(LeasedPools { idle: Vec::new(), busy_workers: 0 });

/// The most idle pools. A program with pools of many sizes ends the oldest ones.
const MOST_IDLE: usize = 4;

/// Calls `work` with the number of each part, on a pool of `threads` threads. If another thread has a
/// pool, and there are not enough cores for both, this thread works alone.
///
/// # Panics
/// If a call panicked.
pub(super) fn run(threads: usize, parts: usize, work: PartFn<'_>) {
    match &mut PoolLease::new(threads).0 {
        Some(pool) => pool.run(parts, work),
        None => (0..parts).for_each(work),
    }
}

/// A pool for the time of one loop, or none where this thread works alone. Loops of this thread are nested
/// meanwhile.
struct PoolLease(Option<ThreadPool>);

impl PoolLease {
    fn new(threads: usize) -> Self {
        nested::set(true);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = threads - 1;
        if pools.busy_workers > 0 && pools.busy_workers + workers >= cores() {
            return Self(None);
        }
        pools.busy_workers += workers;
        // The pool that was returned last, whose workers are the most awake.
        let place = pools.idle.iter().rposition(|pool| pool.threads() == threads);
        let pool = place.map(|place| pools.idle.remove(place));
        drop(pools);
        Self(Some(pool.unwrap_or_else(|| ThreadPool::new(threads, cores()))))
    }
}

impl Drop for PoolLease {
    fn drop(&mut self) {
        nested::set(false);
        if let Some(pool) = self.0.take() {
            let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
            pools.busy_workers -= pool.threads() - 1;
            if pool.is_complete() {
                pools.idle.push(pool);
            }
            if pools.idle.len() > MOST_IDLE {
                pools.idle.remove(0);
            }
        }
    }
}

/// The cores of this process. The standard library reads files to find them, so this is done once.
pub(super) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, usize::from))
}
