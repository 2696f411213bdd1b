//! An iterator that prepares items in advance on its own thread.
//!
//! The thread fills a channel of fixed depth and waits when the channel is full. Dropping the
//! consumer first closes the channel and then joins the thread. Closing wakes a waiting producer,
//! so there is no deadlock. A panic of the producer becomes an error at the consumer.

use std::{
    any::Any,
    sync::mpsc::{Receiver, sync_channel},
    thread::{Builder, JoinHandle},
};

use crate::error::{Error, Result};

/// Items prepared before their use.
pub(crate) enum Prefetch<T> {
    /// Depth 0: the requesting thread makes each item on request.
    Inline(Box<dyn Iterator<Item = T> + Send>),
    /// Made by a thread. Both are `None` after the thread has been joined.
    Thread { receiver: Option<Receiver<T>>, thread: Option<JoinHandle<()>> },
}

impl<T: Send + 'static> Prefetch<T> {
    /// Runs `items` at most `depth` + 1 items ahead.
    pub(crate) fn new(
        items: impl Iterator<Item = T> + Send + 'static,
        depth: usize,
    ) -> Result<Self> {
        if depth == 0 {
            return Ok(Self::Inline(Box::new(items)));
        }
        let (sender, receiver) = sync_channel(depth);
        let produce = move || {
            for item in items {
                if sender.send(item).is_err() {
                    return; // the consumer has been dropped
                }
            }
        };
        let thread = Builder::new()
            .name("candelabrum-batches".into())
            .spawn(produce)
            .map_err(|source| Error::LoaderThread { source })?;
        Ok(Self::Thread { receiver: Some(receiver), thread: Some(thread) })
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let (receiver, thread) = match self {
            Self::Inline(items) => return items.next().map(Ok),
            Self::Thread { receiver, thread } => (receiver, thread),
        };
        if let Ok(item) = receiver.as_ref()?.recv() {
            return Some(Ok(item));
        }
        *receiver = None;
        match thread.take()?.join() {
            Ok(()) => None,
            Err(panic) => Some(Err(Error::LoaderPanicked { message: panic_message(&*panic) })),
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        if let Self::Thread { receiver, thread } = self {
            drop(receiver.take());
            if let Some(thread) = thread.take() {
                // The panic hook has already printed a panic for which no consumer waits any more.
                let _ = thread.join();
            }
        }
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
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use super::*;

    #[test]
    fn all_items_arrive_in_order_at_any_depth() {
        for depth in [0, 1, 3, 100] {
            let items: Vec<u32> =
                Prefetch::new(0..50, depth).unwrap().map(Result::unwrap).collect();
            assert_eq!(items, (0..50).collect::<Vec<_>>(), "depth {depth}");
        }
    }

    #[test]
    fn dropping_early_stops_and_joins_the_thread() {
        for taken in [0, 1, 5] {
            let alive = Arc::new(());
            let made = Arc::new(AtomicUsize::new(0));
            let (guard, counter) = (Arc::clone(&alive), Arc::clone(&made));
            let items = (0..).inspect(move |_: &usize| {
                let _ = &guard;
                counter.fetch_add(1, Ordering::Relaxed);
            });
            let mut prefetch = Prefetch::new(items, 2).unwrap();
            assert_eq!(prefetch.by_ref().take(taken).count(), taken);
            std::thread::sleep(Duration::from_millis(5));
            drop(prefetch);
            assert_eq!(Arc::strong_count(&alive), 1, "the thread has gone");
            assert!(made.load(Ordering::Relaxed) <= taken + 3, "no more than the depth ahead");
        }
    }

    #[test]
    fn a_panic_in_the_thread_reaches_the_consumer_as_one_error() {
        let items = (0..5).map(|i| if i == 2 { panic!("sample {i} is bad") } else { i });
        let mut prefetch = Prefetch::new(items, 1).unwrap();
        assert_eq!(prefetch.next().unwrap().unwrap(), 0);
        assert_eq!(prefetch.next().unwrap().unwrap(), 1);
        let message = prefetch.next().unwrap().unwrap_err().to_string();
        assert_eq!(message, "the thread that prepares batches panicked: sample 2 is bad");
        assert!(prefetch.next().is_none());
    }
}
