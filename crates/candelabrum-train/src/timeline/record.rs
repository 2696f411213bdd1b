//! The records: spans of our crates, each in the buffer of its thread.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::clock::TimelineClock;

/// Spans whose target begins with this word are recorded. Spans of other crates are not.
const TARGETS: &str = "candelabrum";

/// The limit per thread, because viewers are slow with more spans. Later spans are only counted.
const MOST_SPANS: usize = 1_000_000;

/// The threads of this rank that recorded spans.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: TimelineClock,
    stopped: AtomicBool,
    threads: Mutex<Vec<Arc<Mutex<ThreadTrack>>>>,
}

/// The record of one thread.
#[derive(Debug)]
pub(super) struct ThreadTrack {
    pub(super) name: String,
    pub(super) spans: Vec<TimedSpan>,
    /// The number of spans beyond the limit.
    pub(super) left_out: usize,
    /// Spans that have been entered but not left. The innermost span is the last one.
    open: Vec<(Id, TimedSpan)>,
}

/// A span with its times.
#[derive(Debug)]
pub(super) struct TimedSpan {
    pub(super) metadata: &'static Metadata<'static>,
    pub(super) fields: Fields,
    /// Nanoseconds. If the span did not end before the recording, `end` is the end of the
    /// recording.
    pub(super) start: i64,
    pub(super) end: i64,
}

/// The fields of a span, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(pub(super) Vec<(&'static str, Value)>);

thread_local! {
    /// The record of this thread. A process makes only one recorder.
    static OWN: RefCell<Option<Arc<Mutex<ThreadTrack>>>> = const { RefCell::new(None) };
}

impl Recorder {
    /// A recorder whose first thread is the caller's.
    pub(super) fn new(clock: TimelineClock) -> Self {
        let recorder = Self { clock, stopped: AtomicBool::new(false), threads: Mutex::default() };
        recorder.with_track(|track| track.name = "compute".to_owned());
        recorder
    }

    /// Ends the recording and all open spans, and returns the record of each thread.
    pub(super) fn finish(&self) -> Vec<ThreadTrack> {
        self.stopped.store(true, Ordering::Relaxed);
        let end = self.clock.now();
        let finish = |track: &Arc<Mutex<ThreadTrack>>| {
            let mut track = lock(track);
            for (_, open) in mem::take(&mut track.open) {
                track.spans.push(TimedSpan { end, ..open });
            }
            let spans = mem::take(&mut track.spans);
            let (name, left_out) = (track.name.clone(), track.left_out);
            ThreadTrack { name, spans, left_out, open: Vec::new() }
        };
        lock(&self.threads).iter().map(finish).collect()
    }

    fn with_track(&self, work: impl FnOnce(&mut ThreadTrack)) {
        // When a thread ends, its record may be dropped already. Its last spans are then not
        // recorded.
        let _ = OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            let track = own.get_or_insert_with(|| {
                let track = Arc::new(Mutex::new(ThreadTrack::of_this_thread()));
                lock(&self.threads).push(Arc::clone(&track));
                track
            });
            work(&mut lock(track));
        });
    }
}

impl ThreadTrack {
    fn of_this_thread() -> Self {
        let thread = thread::current();
        let name = match thread.name() {
            Some("candelabrum-comm") => "communication",
            Some(name) => name.trim_start_matches("candelabrum-"),
            None => "a thread without a name",
        };
        Self { name: name.to_owned(), spans: Vec::new(), left_out: 0, open: Vec::new() }
    }

    fn close(&mut self, id: &Id, end: i64) {
        let Some(place) = self.open.iter().rposition(|(open, _)| open == id) else { return };
        let (_, span) = self.open.remove(place);
        if self.spans.len() < MOST_SPANS {
            self.spans.push(TimedSpan { end, ..span });
        } else {
            self.left_out += 1;
        }
    }
}

/// Passes the span events of `tracing` to the recorder.
#[derive(Debug)]
pub(super) struct Recording(pub(super) Arc<Recorder>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recording {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_ours(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
        self.0.with_track(|track| {
            if let Some((_, span)) = track.open.iter_mut().rfind(|(open, _)| open == id) {
                values.record(&mut span.fields);
            }
        });
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if self.0.stopped.load(Ordering::Relaxed) {
            return;
        }
        let fields = span.extensions().get::<Fields>().cloned().unwrap_or_default();
        let metadata = span.metadata();
        self.0.with_track(|track| {
            let start = self.0.clock.now();
            track.open.push((id.clone(), TimedSpan { metadata, fields, start, end: start }));
        });
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        let end = self.0.clock.now();
        self.0.with_track(|track| track.close(id, end));
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with(TARGETS)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.push((field.name(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::chrome;
    use super::*;

    #[test]
    fn candles_operations_between_ours_have_spans() -> candle_core::Result<()> {
        use candelabrum_nn::ops::{profile, relu};
        use candle_core::{Device, Tensor, Var};

        let recorder = Arc::new(Recorder::new(TimelineClock::alone()));
        let subscriber = tracing_subscriber::registry().with(Recording(Arc::clone(&recorder)));
        tracing::subscriber::with_default(subscriber, || {
            let xs = Var::from_tensor(&Tensor::new(&[1f32, 2., 3.], &Device::Cpu)?)?;
            let ys = relu(&relu(&xs)?.narrow(0, 1, 2)?.tanh()?)?;
            profile::backward(&ys.sum_all()?).map(drop)
        })?;
        let document = format!("[{}]", chrome::events(0, &recorder.finish()));
        let events: Vec<Value> = serde_json::from_str(&document).expect("JSON");
        let names: Vec<&str> = events
            .iter()
            .filter(|event| event["args"]["phase"] == "Backward")
            .filter_map(|event| event["name"].as_str())
            .filter(|name| *name != "candle: no operation")
            .collect();
        let sum = "candle: reshape, reduction";
        assert_eq!(names, [sum, "relu", "candle: element-wise, narrow", "relu"], "{document}");
        Ok(())
    }

    #[test]
    fn spans_of_ours_are_recorded_with_their_fields_and_nest() {
        let recorder = Arc::new(Recorder::new(TimelineClock::alone()));
        let subscriber = tracing_subscriber::registry().with(Recording(Arc::clone(&recorder)));
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::debug_span!(target: "candelabrum::step", "step", number = 3);
            let outer = outer.entered();
            let inner = tracing::trace_span!(
                target: "candelabrum::op", "op", name = "conv2d", output = ?[2, 3], late = tracing::field::Empty
            );
            inner.in_scope(|| inner.record("late", true));
            tracing::info_span!(target: "somebody::elses", "other").in_scope(|| {});
            tracing::info!(target: "candelabrum", "an event is no span");
            drop(outer);
            let unfinished = tracing::debug_span!(target: "candelabrum", "unfinished").entered();
            let document = format!("[{}]", chrome::events(4, &recorder.finish()));
            drop(unfinished);
            tracing::debug_span!(target: "candelabrum", "too late").in_scope(|| {});

            let events: Vec<Value> = serde_json::from_str(&document).unwrap();
            assert!(events.iter().all(|event| event["pid"] == 4), "{document}");
            let names: Vec<&str> = events
                .iter()
                .filter(|event| event["ph"] == "X")
                .filter_map(|event| event["name"].as_str())
                .collect();
            assert_eq!(names, ["conv2d", "step", "unfinished"], "{document}");
            let span = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
            let conv2d = span("conv2d");
            assert_eq!(conv2d["args"], serde_json::json!({ "output": "[2, 3]", "late": true }));
            assert_eq!(span("step")["args"]["number"], 3);
            let number = |value: &Value| value.as_f64().unwrap();
            let end = |event: &Value| number(&event["ts"]) + number(&event["dur"]);
            assert!(number(&span("step")["ts"]) <= number(&conv2d["ts"]));
            assert!(end(conv2d) <= end(span("step")));
            assert!(recorder.finish().iter().all(|track| track.spans.is_empty()));
        });
    }
}
