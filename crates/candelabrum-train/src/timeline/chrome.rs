//! Chrome's trace event format: a process for each rank, a row for each of its threads.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::record::{ThreadTrack, TimedSpan};

/// A span's field with this name replaces the span's own name, which is the same at every call of
/// one place in the source.
const NAME: &str = "name";

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

/// The events of one process as JSON objects with commas between them. Each track becomes the row
/// of a thread.
pub(super) fn events(rank: usize, tracks: &[ThreadTrack]) -> String {
    // A metadata event, which names a process or a thread.
    let describe = |tid: usize, name: &str, args: &Value| {
        json!({ "ph": "M", "pid": rank, "tid": tid, "name": name, "args": args }).to_string()
    };
    let mut lines = vec![
        describe(0, "process_name", &json!({ "name": format!("rank {rank}") })),
        describe(0, "process_sort_index", &json!({ "sort_index": rank })),
    ];
    for (number, track) in tracks.iter().enumerate() {
        lines.push(describe(number, "thread_name", &json!({ "name": track.name })));
        lines.push(describe(number, "thread_sort_index", &json!({ "sort_index": number })));
        if track.left_out > 0 {
            lines.push(describe(number, "left_out", &json!({ "spans": track.left_out })));
        }
        lines.extend(track.spans.iter().map(|span| complete(rank, number, span)));
    }
    lines.join(",\n")
}

fn complete(pid: usize, tid: usize, span: &TimedSpan) -> String {
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
    // Numbers, strings and lists of them, which JSON can always represent.
    serde_json::to_string(&event).unwrap_or_default()
}

/// Writes a whole file from the events of some processes.
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
