//! Chrome's trace event format: a process for each rank, a row for each of its threads.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::record::{Span, Track};

/// A span's field of this name is shown in place of the span's own name, which is one per place in
/// the source.
const NAME: &str = "name";

/// Events of one process, as JSON objects with commas between them.
#[derive(Debug)]
pub(super) struct Events {
    rank: usize,
    lines: Vec<String>,
}

/// A span.
#[derive(Serialize)]
struct Complete<'a> {
    ph: &'static str,
    pid: usize,
    tid: usize,
    name: &'a str,
    cat: &'a str,
    /// Microseconds.
    ts: f64,
    dur: f64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

impl Events {
    pub(super) fn of_process(rank: usize) -> Self {
        let mut events = Self { rank, lines: Vec::new() };
        events.describe(0, "process_name", &json!({ "name": format!("rank {rank}") }));
        events.describe(0, "process_sort_index", &json!({ "sort_index": rank }));
        events
    }

    /// The row of a thread.
    pub(super) fn thread(&mut self, number: usize, track: &Track) {
        self.describe(number, "thread_name", &json!({ "name": track.name }));
        self.describe(number, "thread_sort_index", &json!({ "sort_index": number }));
        if track.left_out > 0 {
            self.describe(number, "left_out", &json!({ "spans": track.left_out }));
        }
        let lines = track.spans.iter().map(|span| complete(self.rank, number, span));
        self.lines.extend(lines);
    }

    pub(super) fn finish(self) -> String {
        self.lines.join(",\n")
    }

    /// An event of the kind that says something about a process or thread.
    fn describe(&mut self, tid: usize, name: &str, args: &Value) {
        let event = json!({ "ph": "M", "pid": self.rank, "tid": tid, "name": name, "args": args });
        self.lines.push(event.to_string());
    }
}

fn complete(pid: usize, tid: usize, span: &Span) -> String {
    let (mut name, mut args) = (span.metadata.name(), Map::new());
    for (field, value) in &span.fields.0 {
        match value {
            Value::String(shown) if *field == NAME => name = shown,
            value => drop(args.insert((*field).to_owned(), value.clone())),
        }
    }
    let microseconds = |nanoseconds: i64| nanoseconds as f64 / 1e3;
    let (ts, dur) = (microseconds(span.start), microseconds(span.end - span.start));
    let cat = span.metadata.target();
    let event = Complete { ph: "X", pid, tid, name, cat, ts, dur, args };
    // Numbers, strings and lists of them: there is nothing that JSON has not.
    serde_json::to_string(&event).unwrap_or_default()
}

/// A whole file out of the events of some processes.
pub(super) fn write_document(out: &mut impl Write, parts: &[String]) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let about = json!({ "program": "candelabrum", "version": version, "ranks": parts.len() });
    writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
    for (number, part) in parts.iter().enumerate() {
        let comma = if number + 1 < parts.len() { "," } else { "" };
        writeln!(out, "{part}{comma}")?;
    }
    writeln!(out, "]}}")
}
