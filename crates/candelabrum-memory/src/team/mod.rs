//! A loop divided over the threads of a team.
//!
//! A layer of a small network is some microseconds of work. Waking a thread that sleeps costs as much.
//! So the threads of a team wait for the next loop actively, for 0.2 ms (`crew.rs`), and sleep only then.
//! In a training step the loops follow one another within this time.
//!
//! The calling thread is a member of the team and works too. The number of members is the number of
//! threads of the caller's rayon pool (`RAYON_NUM_THREADS`, or the pool in which the caller was
//! installed), so one setting holds for these loops, for candle's and for the user's own. Members get
//! parts of the loop that lie together, the same in each loop of this length, because the numbers of
//! these parts may still be in their caches. A member that has finished its parts takes those of others.
//!
//! Loops in a part of a loop run on the thread that works on the part.

mod crew;
mod job;
mod mark;
mod teams;

use std::sync::{Mutex, PoisonError};

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;

/// The parts into which a loop is cut for each member. With several, a member that the operating system
/// interrupts delays only one of them.
const PARTS: usize = 4;

/// The members of a team of this thread: 1 where a loop runs on this thread alone.
pub fn threads() -> usize {
    if mark::works_on_a_part() { 1 } else { rayon::current_num_threads() }
}

/// Whether `processes` processes like this one, each with a team of this size, leave a core to each of them
/// for another thread. The cores are those that this process may use.
pub fn leaves_a_core_to_each(processes: usize) -> bool {
    teams::cores() >= processes.saturating_mul(threads() + 1)
}

/// Calls `f` with each item, in no particular order, on the threads of the team. rayon divides the items
/// into parts, and the team works on them. `f` must not wait for rayon's threads, because they may wait for
/// `f`.
///
/// # Panics
/// If `f` panics for an item. The panic reaches the caller when no call of `f` is under way any more. On a
/// team, `f` is still called with the items of all other parts, and only the later items of the same part
/// are left out. Where this thread works alone, all later items are.
pub fn for_each<I: IndexedParallelIterator>(items: I, f: impl Fn(I::Item) + Sync) {
    run(items, threads(), f);
}

/// Calls `f` with each item, in order, on this thread.
pub fn alone<I: IndexedParallelIterator>(items: I, f: impl Fn(I::Item) + Sync) {
    run(items, 1, f);
}

fn run<I: IndexedParallelIterator>(items: I, threads: usize, f: impl Fn(I::Item) + Sync) {
    let count = items.len();
    items.with_producer(Loop { count, threads, f });
}

/// A loop over `count` items.
struct Loop<F> {
    count: usize,
    threads: usize,
    f: F,
}

impl<T, F: Fn(T) + Sync> ProducerCallback<T> for Loop<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, items: P) {
        let Self { count, threads, f } = self;
        let parts = count.min(PARTS * threads);
        if threads == 1 || parts < 2 {
            return items.into_iter().for_each(f);
        }
        let mut rest = items;
        let mut cut = Vec::with_capacity(parts);
        for part in 1..parts {
            let items;
            (items, rest) = rest.split_at(part * count / parts - (part - 1) * count / parts);
            cut.push(Mutex::new(Some(items)));
        }
        cut.push(Mutex::new(Some(rest)));
        teams::run(threads, parts, &|part| {
            let items = cut[part].lock().unwrap_or_else(PoisonError::into_inner).take();
            items.into_iter().flat_map(P::into_iter).for_each(&f);
        });
    }
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
    fn threads_that_sleep_are_woken() {
        on_pools(|_| {
            for _ in 0..5 {
                thread::sleep(2 * crew::ACTIVE);
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
            // Other tests may have the only team for a while.
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
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
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
