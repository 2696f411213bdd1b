//! Threads that read numbered items in advance, and an iterator that gives them out in order.
//!
//! Each thread takes the next number that nobody has taken, so a slow item holds up no other thread. A
//! number is only taken while it is less than a fixed distance ahead of the consumer, which bounds the
//! number of items in memory. Results wait in a map until their turn comes. An error, or a panic, takes
//! the place of its item: the items before it still arrive, and nothing comes after it. Dropping the
//! iterator stops the threads and joins them.

use std::{
    any::Any,
    collections::BTreeMap,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{Builder, JoinHandle},
};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

/// Items in the order of their numbers, read by threads in advance.
pub(crate) struct Readers<T> {
    shared: Arc<ReadAhead<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct ReadAhead<T> {
    read: Box<dyn Fn(usize) -> Result<T> + Send + Sync>,
    /// How many items may be read or being read before they are given out.
    ahead: usize,
    state: Mutex<ReadAheadState<T>>,
    /// Signals that an item has been read.
    arrived: Condvar,
    /// Signals that an item has been given out, or that the threads shall end.
    room: Condvar,
}

struct ReadAheadState<T> {
    /// The numbers that no thread has taken.
    untaken: Range<usize>,
    /// The number of the next item to give out.
    next: usize,
    read: BTreeMap<usize, Result<T>>,
}

impl<T: Send + 'static> Readers<T> {
    /// Calls `read` for each number in order on `threads` threads, at most `ahead` items before they
    /// are given out. If one of both is 0, the requesting thread reads each item on request.
    pub(crate) fn new(
        numbers: Range<usize>,
        read: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
        threads: usize,
        ahead: usize,
    ) -> Result<Self> {
        let threads = threads.min(ahead).min(numbers.len());
        let state = ReadAheadState { next: numbers.start, untaken: numbers, read: BTreeMap::new() };
        let shared = Arc::new(ReadAhead {
            read: Box::new(read),
            ahead,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Condvar::new(),
        });
        // If a thread cannot be started, dropping this value ends the threads before it.
        let mut readers = Self { shared, threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let shared = Arc::clone(&readers.shared);
            let builder = Builder::new().name("candelabrum-batches".into());
            let thread = builder.spawn(move || shared.run());
            readers.threads.push(thread.map_err(|error| Error::Thread {
                what: format!("cannot start the thread that prepares batches: {error}"),
            })?);
        }
        Ok(readers)
    }
}

impl<T> ReadAhead<T> {
    /// What each thread does.
    fn run(&self) {
        while let Some(number) = self.take() {
            let item = self.read(number);
            let mut state = self.state.lock();
            if item.is_err() {
                state.untaken.end = state.untaken.start; // nothing comes after an error
                self.room.notify_all();
            }
            state.read.insert(number, item);
            self.arrived.notify_one();
        }
    }

    /// Waits until a number may be taken. `None`: there is nothing more to read.
    fn take(&self) -> Option<usize> {
        let mut state = self.state.lock();
        while !state.untaken.is_empty()
            && state.untaken.start >= state.next.saturating_add(self.ahead)
        {
            self.room.wait(&mut state);
        }
        state.untaken.next()
    }

    fn read(&self, number: usize) -> Result<T> {
        // After a panic nothing more is read here, and what the reader shares with others is behind
        // locks.
        catch_unwind(AssertUnwindSafe(|| (self.read)(number))).unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            let what = format!("the thread that prepares batches panicked: {message}");
            Err(Error::Thread { what })
        })
    }
}

impl<T> Iterator for Readers<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let shared = &*self.shared;
        let item = if self.threads.is_empty() {
            let number = shared.state.lock().untaken.next()?;
            shared.read(number)
        } else {
            let mut state = shared.state.lock();
            loop {
                let number = state.next;
                if let Some(item) = state.read.remove(&number) {
                    state.next += 1;
                    break item;
                }
                // Numbers are taken in order: this one is untaken, or a thread is reading it.
                if state.untaken.is_empty() && number >= state.untaken.start {
                    return None;
                }
                shared.arrived.wait(&mut state);
            }
        };
        shared.room.notify_one();
        if item.is_err() {
            self.stop();
        }
        Some(item)
    }
}

impl<T> Readers<T> {
    /// Ends the threads and drops the items that they have read.
    pub(crate) fn stop(&mut self) {
        let mut state = self.shared.state.lock();
        state.untaken.end = state.untaken.start;
        drop(state);
        self.shared.room.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches the panics of readers and has no others.
            let _ = thread.join();
        }
        self.shared.state.lock().read.clear();
    }
}

impl<T> Drop for Readers<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
        .into()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    /// Waits a time that differs from item to item.
    fn wait_a_little(number: usize) {
        std::thread::sleep(Duration::from_micros((number * 7919 % 13 * 100) as u64));
    }

    #[test]
    fn all_items_arrive_in_order_from_any_number_of_threads() {
        for (threads, ahead) in [(0, 5), (5, 0), (1, 1), (1, 100), (3, 2), (4, 4), (4, 9), (9, 100)]
        {
            let read = |number| {
                wait_a_little(number);
                Ok(number)
            };
            let items: Vec<usize> =
                Readers::new(10..60, read, threads, ahead).unwrap().map(Result::unwrap).collect();
            assert_eq!(items, (10..60).collect::<Vec<_>>(), "{threads} threads, {ahead} ahead");
        }
        assert!(Readers::new(7..7, Ok, 2, 2).unwrap().next().is_none());
    }

    #[test]
    fn slow_items_hold_up_no_other_thread() {
        let both = Arc::new(std::sync::Barrier::new(2));
        // Items 0 and 1 wait for each other: one thread alone would wait for ever.
        let read = move |number| {
            if number < 2 {
                both.wait();
            }
            Ok(number)
        };
        assert_eq!(Readers::new(0..9, read, 2, 4).unwrap().count(), 9);
    }

    #[test]
    fn dropping_early_stops_and_joins_the_threads_and_reads_no_further_ahead() {
        for (threads, ahead) in [(1, 2), (3, 4), (4, 2)] {
            for taken in [0, 1, 5] {
                let alive = Arc::new(());
                let read_so_far = Arc::new(AtomicUsize::new(0));
                let (guard, counter) = (Arc::clone(&alive), Arc::clone(&read_so_far));
                let read = move |number| {
                    let _ = &guard;
                    counter.fetch_add(1, Ordering::Relaxed);
                    Ok(number)
                };
                let mut readers = Readers::new(0..1_000_000, read, threads, ahead).unwrap();
                assert_eq!(readers.by_ref().take(taken).count(), taken);
                std::thread::sleep(Duration::from_millis(5));
                drop(readers);
                assert_eq!(Arc::strong_count(&alive), 1, "the threads have gone");
                assert!(read_so_far.load(Ordering::Relaxed) <= taken + ahead);
            }
        }
    }

    /// The items before the first error, and the message of the error, after which nothing comes.
    fn until_error(
        read: impl Fn(usize) -> Result<usize> + Send + Sync + 'static,
        threads: usize,
    ) -> (Vec<usize>, String) {
        let mut readers = Readers::new(0..50, read, threads, 8).unwrap();
        let mut items = Vec::new();
        let error = loop {
            match readers.next().expect("an error") {
                Ok(item) => items.push(item),
                Err(error) => break error,
            }
        };
        assert!(readers.next().is_none() && readers.next().is_none());
        assert!(readers.threads.is_empty(), "the threads have ended");
        (items, error.to_string())
    }

    #[test]
    fn an_error_comes_once_in_the_place_of_its_item() {
        for threads in [0, 1, 2, 4] {
            // Item 9 fails early, item 5 late.
            let read = |number| match number {
                5 => {
                    std::thread::sleep(Duration::from_millis(10));
                    Err(Error::custom("item 5"))
                }
                9 => Err(Error::custom("item 9")),
                _ => {
                    wait_a_little(number);
                    Ok(number)
                }
            };
            let (items, message) = until_error(read, threads);
            assert_eq!(items, [0, 1, 2, 3, 4], "{threads} threads");
            assert_eq!(message, "item 5");
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        for threads in [0, 1, 3] {
            let read = |number| {
                assert_ne!(number, 2, "sample {number} is bad");
                Ok(number)
            };
            let (items, message) = until_error(read, threads);
            assert_eq!(items, [0, 1]);
            assert!(
                message.starts_with("the thread that prepares batches panicked: "),
                "{message}"
            );
            assert!(message.contains("sample 2 is bad"), "{message}");
        }
    }
}
