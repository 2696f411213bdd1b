//! How often a program enters a kind of tracing span.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The number of spans of one name since [`SpanCount::new`].
#[derive(Clone, Debug)]
pub struct SpanCount {
    name: &'static str,
    count: Arc<AtomicUsize>,
}

impl SpanCount {
    /// Counts the spans of this name on all threads of the process from now on.
    ///
    /// # Panics
    /// If the process has a subscriber already.
    pub fn new(name: &'static str) -> Self {
        let spans = Self { name, count: Arc::default() };
        tracing::subscriber::set_global_default(spans.clone()).expect("one subscriber");
        spans
    }

    /// The number of spans since the last call.
    pub fn take(&self) -> usize {
        self.count.swap(0, Ordering::SeqCst)
    }
}

impl Subscriber for SpanCount {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == self.name
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        self.count.fetch_add(1, Ordering::SeqCst);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
