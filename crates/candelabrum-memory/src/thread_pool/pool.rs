//! The threads of one pool, and how they divide a loop among themselves.
//!
//! The calling thread is worker 0. The other workers are threads of the pool. A loop has a number, its
//! *generation*. Its parts are divided into one range for each worker. A range is one atomic word: the
//! generation, and the number of parts that nobody has taken. To take a part is to reduce this number, which
//! fails if the range belongs to another generation. So a worker that comes late takes nothing.
//!
//! **Invariant (reported)** A worker reads the task of a loop, and calls its closure, only between taking a
//! part and reporting this part as finished. `run` sets no other task, and does not return, before all parts
//! have been reported.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, mem, thread};

use super::nested;
use super::task::{PartFn, TaskSlot};

/// The time for which a worker spins until the next loop begins, or the last parts of a loop are finished.
/// Between the loops of a training step there are some tens of microseconds at most. In a pool of more threads
/// than there are cores nobody spins, because another worker needs the core.
pub(super) const SPIN: Duration = Duration::from_micros(200);

/// The pauses of a processor, some tens of nanoseconds each, between two offers to let another thread
/// run. The communication of a rank is such a thread.
const PAUSES: u32 = 64;

/// A word that shares its cache line with no other one. Processors fetch two lines of 64 bytes at once.
#[repr(align(128))]
#[derive(Default)]
struct CachePadded<T>(T);

/// What the workers of a pool share.
#[derive(Default)]
struct PoolState {
    /// The number of the present loop.
    generation: CachePadded<AtomicU32>,
    task: TaskSlot,
    /// For each worker the generation in the upper half, and the parts left in the lower half.
    ranges: Box<[CachePadded<AtomicU64>]>,
    /// The parts of the present loop that have not been reported.
    unfinished: CachePadded<AtomicUsize>,
    /// The payloads of the panics of the present loop.
    panics: Mutex<Vec<Box<dyn Any + Send>>>,
    spin: Duration,
    parked: CachePadded<AtomicUsize>,
    /// Held while a thread decides to park.
    parking: Mutex<()>,
    begun: Condvar,
    /// Whether the caller is parked until all parts are finished.
    caller_is_parked: CachePadded<AtomicBool>,
    finished: Condvar,
    /// Whether the workers are to end instead of working on the next generation.
    ends: AtomicBool,
}

/// The workers of a pool. Its owner is their caller.
pub(super) struct ThreadPool {
    state: Arc<PoolState>,
    /// The workers that the system has started.
    started: usize,
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        self.state.begin(self.state.generation.0.load(Ordering::Relaxed).wrapping_add(1));
    }
}

impl ThreadPool {
    /// Starts the workers of a pool of `threads` threads, the caller among them. If the system refuses to
    /// start one, the pool has fewer workers, and the others do its parts.
    pub(super) fn new(threads: usize, cores: usize) -> Self {
        let state = Arc::new(PoolState {
            ranges: (0..threads).map(|_| CachePadded::default()).collect(),
            spin: if threads > cores { Duration::ZERO } else { SPIN },
            ..PoolState::default()
        });
        let mut started = 0;
        for worker in 1..threads {
            let state = Arc::clone(&state);
            let thread = thread::Builder::new().name(format!("pool-{worker}"));
            if thread.spawn(move || state.serve(worker)).is_err() {
                break;
            }
            started += 1;
        }
        Self { state, started }
    }

    /// Whether the system has started all workers.
    pub(super) fn is_complete(&self) -> bool {
        self.started + 1 == self.threads()
    }

    /// The number of threads, the caller among them.
    pub(super) fn threads(&self) -> usize {
        self.state.ranges.len()
    }

    /// Calls `work` with the number of each part and returns when all calls have returned.
    ///
    /// # Panics
    /// If a call panicked.
    pub(super) fn run(&mut self, parts: usize, work: PartFn<'_>) {
        let state = &*self.state;
        let generation = state.generation.0.load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: invariant (reported). The loop before has returned, `&mut self` keeps other callers
        // away, and `work` is borrowed until this function returns.
        unsafe { state.task.set(work, parts) };
        state.unfinished.0.store(parts, Ordering::Relaxed);
        for (worker, range) in state.ranges.iter().enumerate() {
            let (start, end) = range_of(worker, self.threads(), parts);
            let word = u64::from(generation) << 32 | (end - start) as u64;
            range.0.store(word, Ordering::Release);
        }
        state.begin(generation);
        state.work(0, generation);
        if !state.spin_until(|| state.unfinished.0.load(Ordering::SeqCst) == 0) {
            state.park_until_finished();
        }
        let panics = mem::take(&mut *state.panics.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(first) = panics.into_iter().next() {
            resume_unwind(first);
        }
    }
}

impl PoolState {
    /// The life of a worker.
    fn serve(&self, worker: usize) {
        nested::set(true);
        let mut seen = 0;
        loop {
            seen = self.next_generation(seen);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            self.work(worker, seen);
        }
    }

    /// Shows a generation to all workers.
    fn begin(&self, generation: u32) {
        // A worker that parks counts itself before it looks at the generation, in the same order of all
        // threads. So it sees the new generation, or it is seen here.
        self.generation.0.store(generation, Ordering::SeqCst);
        if self.parked.0.load(Ordering::SeqCst) > 0 {
            drop(self.parking.lock().unwrap_or_else(PoisonError::into_inner));
            self.begun.notify_all();
        }
    }

    /// Waits for another generation than `seen`.
    fn next_generation(&self, seen: u32) -> u32 {
        let generation = || self.generation.0.load(Ordering::Acquire);
        match self.spin_until(|| generation() != seen) {
            true => generation(),
            false => self.park_until_begun(seen),
        }
    }

    /// Spins until a condition holds, but not for long. Returns whether it holds.
    fn spin_until(&self, holds: impl Fn() -> bool) -> bool {
        let mut since = None;
        loop {
            for _ in 0..PAUSES {
                if holds() {
                    return true;
                }
                hint::spin_loop();
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= self.spin {
                return false;
            }
            thread::yield_now();
        }
    }

    /// Parks the caller until all parts of the present loop have been reported.
    fn park_until_finished(&self) {
        let mut parking = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        // The worker that reports the last part sees this, or its report is seen here.
        self.caller_is_parked.0.store(true, Ordering::SeqCst);
        while self.unfinished.0.load(Ordering::SeqCst) > 0 {
            parking = self.finished.wait(parking).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_is_parked.0.store(false, Ordering::Relaxed);
    }

    /// Reports a part of the present loop as finished.
    fn report(&self) {
        let is_last = self.unfinished.0.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.caller_is_parked.0.load(Ordering::SeqCst) {
            drop(self.parking.lock().unwrap_or_else(PoisonError::into_inner));
            self.finished.notify_one();
        }
    }

    /// Parks a worker until there is another generation than `seen`.
    fn park_until_begun(&self, seen: u32) -> u32 {
        let mut parking = self.parking.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.0.fetch_add(1, Ordering::SeqCst);
        let generation = loop {
            let generation = self.generation.0.load(Ordering::SeqCst);
            if generation != seen {
                break generation;
            }
            parking = self.begun.wait(parking).unwrap_or_else(PoisonError::into_inner);
        };
        self.parked.0.fetch_sub(1, Ordering::SeqCst);
        generation
    }

    /// Works on parts of a loop, those of this worker first, until no worker has any left.
    fn work(&self, worker: usize, generation: u32) {
        let workers = self.ranges.len();
        for owner in (worker..workers).chain(0..worker) {
            while let Some(left) = self.take(owner, generation) {
                // SAFETY: invariant (reported). A part has been taken, so `run` sets no other task.
                let task = unsafe { self.task.get() };
                let (_, end) = range_of(owner, workers, task.parts());
                let result = catch_unwind(AssertUnwindSafe(|| task.work_on(end - left)));
                if let Err(payload) = result {
                    // Dropped by the caller, because to drop a payload may panic, too.
                    self.panics.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
                }
                self.report();
            }
        }
    }

    /// Takes a part of a worker's range. Returns how many were left, this one among them.
    fn take(&self, worker: usize, generation: u32) -> Option<usize> {
        let range = &self.ranges[worker].0;
        let mut word = range.load(Ordering::Acquire);
        loop {
            let left = word & u64::from(u32::MAX);
            if word >> 32 != u64::from(generation) || left == 0 {
                return None;
            }
            match range.compare_exchange_weak(word, word - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(left as usize),
                Err(now) => word = now,
            }
        }
    }
}

/// The parts of a worker: from the first, to before the second.
fn range_of(worker: usize, workers: usize, parts: usize) -> (usize, usize) {
    (worker * parts / workers, (worker + 1) * parts / workers)
}
