//! A loop divided over the threads of a pool.
//!
//! A layer of a small network is some microseconds of work. Waking a parked thread costs as much. So the
//! workers of a pool spin for 0.2 ms until the next loop begins (`pool.rs`), and park only then. In a training
//! step the loops follow one another within this time.
//!
//! The calling thread works too. The threads are as many as those of the caller's rayon pool
//! (`RAYON_NUM_THREADS`, or the pool in which the caller was installed), so one setting holds for these loops,
//! for candle's and for the user's own. A worker gets parts of the loop that lie together, the same in each
//! loop of this length, because the numbers of these parts may still be in its caches. A worker that has
//! finished its parts takes those of others.
//!
//! A loop in a part of a loop runs on the thread that works on the part.

mod lease;
mod nested;
mod pool;
mod task;

use std::sync::{Mutex, PoisonError};

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;

/// The parts into which a loop is cut for each thread. With several, a thread that the operating system
/// interrupts delays only one of them.
const PARTS: usize = 4;

/// The threads of a loop of this thread: 1 where the loop runs on this thread alone.
pub fn threads() -> usize {
    if nested::is_nested() { 1 } else { rayon::current_num_threads() }
}

/// Whether `processes` processes like this one, each with a pool of this size, leave a core to each of them
/// for another thread. The cores are those that this process may use.
pub fn leaves_a_core_to_each(processes: usize) -> bool {
    lease::cores() >= processes.saturating_mul(threads() + 1)
}

/// Calls `f` with each item, in no particular order, on the threads of a pool. rayon divides the items
/// into parts, and the pool works on them. `f` must not wait for rayon's threads, because they may wait for
/// `f`.
///
/// # Panics
/// If `f` panics for an item. The panic reaches the caller when no call of `f` is under way any more. On a
/// pool, `f` is still called with the items of all other parts, and only the later items of the same part
/// are left out. Where this thread works alone, all later items are.
pub fn for_each<I: IndexedParallelIterator>(items: I, f: impl Fn(I::Item) + Sync) {
    for_each_on(threads(), items, f);
}

/// Calls `f` with each item, in order, on this thread.
pub fn for_each_serially<I: IndexedParallelIterator>(items: I, f: impl Fn(I::Item) + Sync) {
    for_each_on(1, items, f);
}

fn for_each_on<I: IndexedParallelIterator>(threads: usize, items: I, f: impl Fn(I::Item) + Sync) {
    let count = items.len();
    items.with_producer(ParallelLoop { count, threads, f });
}

/// A loop over `count` items.
struct ParallelLoop<F> {
    count: usize,
    threads: usize,
    f: F,
}

impl<T, F: Fn(T) + Sync> ProducerCallback<T> for ParallelLoop<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, items: P) {
        let Self { count, threads, f } = self;
        run(threads, count, items, &|part: P| part.into_iter().for_each(&f));
    }
}

/// Calls `work` with each part of the `count` items. The call is dynamic and not inlined, so the program has
/// one copy of this function for each type of items, and one copy of each loop's own code.
#[inline(never)]
fn run<P: Producer>(threads: usize, count: usize, items: P, work: &(dyn Fn(P) + Sync)) {
    let parts = count.min(PARTS * threads);
    if threads == 1 || parts < 2 {
        return work(items);
    }
    let mut rest = items;
    let mut cut = Vec::with_capacity(parts);
    for part in 1..parts {
        let items;
        (items, rest) = rest.split_at(part * count / parts - (part - 1) * count / parts);
        cut.push(Mutex::new(Some(items)));
    }
    cut.push(Mutex::new(Some(rest)));
    lease::run(threads, parts, &|part| {
        let items = cut[part].lock().unwrap_or_else(PoisonError::into_inner).take();
        items.into_iter().for_each(work);
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Calls `f` in a pool of each of several numbers of threads.
    fn on_pools(f: impl Fn(usize) + Sync) {
        for threads in [1, 2, 3, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("a pool").install(|| f(threads));
        }
    }

    fn count(calls: &AtomicUsize) {
        calls.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn each_item_is_worked_on_once() {
        on_pools(|threads| {
            assert_eq!(super::threads(), threads);
            for count in [0, 1, 2, 3, 19, 1000] {
                let mut values = vec![0; count];
                for _ in 0..50 {
                    for_each(values.par_iter_mut().enumerate(), |(i, value)| *value += i);
                }
                let expected: Vec<usize> = (0..count).map(|i| 50 * i).collect();
                assert_eq!(values, expected);
            }
        });
    }

    #[test]
    fn parked_workers_are_woken() {
        on_pools(|_| {
            for _ in 0..5 {
                thread::sleep(2 * pool::SPIN);
                let calls = AtomicUsize::new(0);
                for_each((0..64).into_par_iter(), |_| {
                    thread::sleep(Duration::from_micros(20));
                    calls.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(calls.into_inner(), 64);
            }
        });
    }

    #[test]
    fn several_threads_share_the_work() {
        on_pools(|threads| {
            let names = Mutex::new(HashSet::new());
            let note = |_| {
                thread::sleep(Duration::from_millis(5));
                names.lock().expect("no panic").insert(thread::current().id());
            };
            // Other tests may have the only pool for a while.
            for _ in 0..100 {
                for_each((0..4 * threads).into_par_iter(), note);
                if names.lock().expect("no panic").len() == threads {
                    return;
                }
            }
            panic!("{} of {threads} threads worked", names.lock().expect("no panic").len());
        });
    }

    #[test]
    fn loops_in_loops_and_loops_of_several_threads() {
        on_pools(|_| {
            let calls = AtomicUsize::new(0);
            for_each((0..7).into_par_iter(), |_| {
                assert_eq!(threads(), 1);
                for_each((0..11).into_par_iter(), |_| count(&calls));
            });
            assert_eq!(calls.into_inner(), 77);
        });
        let calls = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        for_each((0..9).into_par_iter(), |_| count(&calls));
                    }
                });
            }
        });
        assert_eq!(calls.into_inner(), 4 * 200 * 9);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        on_pools(|_| {
            for bad in [0, 13, 31] {
                let [begun, returned] = [const { AtomicUsize::new(0) }; 2];
                let result = catch_unwind(AssertUnwindSafe(|| {
                    for_each((0..32).into_par_iter(), |i| {
                        count(&begun);
                        assert_ne!(i, bad, "the bad item");
                        count(&returned);
                    });
                }));
                let payload = result.expect_err("it panicked");
                assert_eq!(begun.into_inner(), returned.into_inner() + 1, "no call is under way");
                let text = payload.downcast_ref::<String>().expect("a text");
                assert!(text.contains("the bad item"), "{text}");
                let calls = AtomicUsize::new(0);
                for_each((0..32).into_par_iter(), |_| count(&calls));
                assert_eq!(calls.into_inner(), 32);
            }
        });
    }
}
