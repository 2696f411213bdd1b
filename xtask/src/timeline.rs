//! `cargo xtask timeline FILE`: one step of a run's timeline (`--timeline`) as a picture.
//!
//! A block for each rank and thread. It has a lane for each level of nesting.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::bench::{Band, Bar, Chart, Look, Picture};

#[derive(Debug, clap::Args)]
pub(crate) struct TimelineArgs {
    /// File that a training program wrote with --timeline
    file: PathBuf,

    /// Path of the picture [default: FILE with the ending svg]
    #[arg(long)]
    out: Option<PathBuf>,

    /// Number of the step, from 0 [default: the one in the middle]
    #[arg(long)]
    step: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    trace_events: Vec<TraceEvent>,
}

#[derive(Clone, Debug, Deserialize)]
struct TraceEvent {
    ph: String,
    pid: usize,
    tid: usize,
    name: String,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: serde_json::Value,
}

/// A thread's spans in the window. Each lane has those of a level of nesting.
#[derive(Debug)]
struct ThreadRow {
    title: String,
    lanes: Vec<Vec<TraceEvent>>,
}

pub(crate) fn run(args: &TimelineArgs) -> Result<()> {
    let file = &args.file;
    let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let document: Document = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no timeline", file.display()))?;
    let (step, window) = window(&document.trace_events, args.step)?;
    let rows = rows(&document.trace_events, window);
    let out = args.out.clone().unwrap_or_else(|| file.with_extension("svg"));
    let title = format!("step {step}, {:.2} ms", (window[1] - window[0]) / 1e3);
    let picture = picture(&title, file, window, &rows).svg();
    fs::write(&out, picture).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{title}: {}", out.display());
    Ok(())
}

/// The number of the requested step, and the time from the first rank's start to the last rank's
/// end.
fn window(events: &[TraceEvent], asked: Option<usize>) -> Result<(usize, [f64; 2])> {
    let mut steps: BTreeMap<usize, Vec<&TraceEvent>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.ph == "X" && event.name == "step") {
        steps.entry(event.pid).or_default().push(event);
    }
    for steps in steps.values_mut() {
        steps.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    }
    let count = steps.values().map(Vec::len).min().unwrap_or(0);
    let step = asked.unwrap_or(count / 2);
    if step >= count {
        bail!("there is no step {step}: every rank has {count}");
    }
    let of_ranks = || steps.values().map(|steps| steps[step]);
    let start = of_ranks().map(|event| event.ts).fold(f64::INFINITY, f64::min);
    let end = of_ranks().map(|event| event.ts + event.dur).fold(0.0, f64::max);
    Ok((step, [start, end]))
}

/// The spans in the window, by rank and thread.
fn rows(events: &[TraceEvent], [start, end]: [f64; 2]) -> Vec<ThreadRow> {
    let mut threads: BTreeMap<(usize, usize), Vec<TraceEvent>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.ph == "X" && event.name != "epoch") {
        if event.ts < end && event.ts + event.dur > start {
            threads.entry((event.pid, event.tid)).or_default().push(event.clone());
        }
    }
    let name_of = |place: (usize, usize)| {
        let is_name = |e: &&TraceEvent| e.name == "thread_name" && (e.pid, e.tid) == place;
        events.iter().find(is_name).and_then(|e| e.args["name"].as_str()).unwrap_or("thread")
    };
    let row = |(place, mut spans): ((usize, usize), Vec<TraceEvent>)| {
        // If two spans begin at the same time, the longer one is the outer one.
        spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let (mut around, mut lanes) = (Vec::new(), Vec::<Vec<TraceEvent>>::new());
        for span in spans {
            around.retain(|&end| end > span.ts);
            lanes.resize(lanes.len().max(around.len() + 1), Vec::new());
            around.push(span.ts + span.dur);
            lanes[around.len() - 1].push(span);
        }
        ThreadRow { title: format!("rank {}, {}", place.0, name_of(place)), lanes }
    };
    threads.into_iter().map(row).collect()
}

/// A bar for each lane, and a space below each thread.
fn picture(title: &str, file: &Path, [start, end]: [f64; 2], rows: &[ThreadRow]) -> Picture {
    let mut bars = Vec::new();
    for row in rows {
        for (level, lane) in row.lanes.iter().enumerate() {
            let (mut pieces, mut at) = (Vec::new(), start);
            for span in lane {
                let [from, to] = [span.ts, span.ts + span.dur].map(|time| time.clamp(start, end));
                pieces.push((Look::Gap, (from - at) / 1e3, String::new()));
                pieces.push((look(span), (to - from) / 1e3, label(span)));
                at = to;
            }
            let name = if level == 0 { row.title.clone() } else { String::new() };
            bars.push(Bar { name, pieces, spread: None, figure: String::new() });
        }
        bars.push(Bar::heading(String::new()));
    }
    let order = "A span stands below the one around it.";
    let charts = vec![Chart::bars(order, 1050, "milliseconds", bars)];
    let bands = vec![Band { title: "Spans of each rank's threads".into(), key: vec![], charts }];
    let subtitle = file.display().to_string();
    Picture { title: title.into(), subtitle, bands, notes: vec![] }
}

/// The text in a span: its name, and its bucket or buffer.
fn label(span: &TraceEvent) -> String {
    let about = ["bucket", "label", "op"].iter().find_map(|field| match &span.args[field] {
        // `bucket 0: conv1.weight, conv1.bias` is shortened, because there is no space for the
        // names.
        serde_json::Value::String(text) => text.split(':').next().map(str::to_owned),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    });
    about.map_or(span.name.clone(), |about| format!("{} {about}", span.name))
}

fn look(span: &TraceEvent) -> Look {
    Look::Bar(match (span.name.as_str(), span.args["phase"].as_str()) {
        ("forward", _) => 0,
        ("backward", _) => 1,
        ("transfer", _) => 2,
        ("update", _) => 3,
        (_, Some("Forward")) => 4,
        ("wait", _) => 5,
        (_, Some("Backward")) => 6,
        _ => 7,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELINE: &str = r#"{"traceEvents":[
        {"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"compute"}},
        {"ph":"X","pid":0,"tid":0,"name":"forward","ts":10,"dur":30},
        {"ph":"X","pid":0,"tid":0,"name":"step","ts":10,"dur":90},
        {"ph":"X","pid":0,"tid":0,"name":"step","ts":200,"dur":100},
        {"ph":"X","pid":1,"tid":0,"name":"step","ts":15,"dur":80},
        {"ph":"X","pid":1,"tid":0,"name":"step","ts":190,"dur":100},
        {"ph":"X","pid":1,"tid":1,"name":"transfer","ts":250,"dur":20,"args":{"label":"bucket 0: a, b"}}
    ]}"#;

    fn events() -> Vec<TraceEvent> {
        serde_json::from_str::<Document>(TIMELINE).unwrap().trace_events
    }

    #[test]
    fn a_window_is_that_of_all_ranks() {
        let events = events();
        assert_eq!(window(&events, Some(0)).unwrap(), (0, [10.0, 100.0]));
        assert_eq!(window(&events, None).unwrap(), (1, [190.0, 300.0]));
        let error = window(&events, Some(2)).unwrap_err().to_string();
        assert!(error.contains("no step 2") && error.contains("has 2"), "{error}");
    }

    #[test]
    fn spans_inside_of_others_lie_a_lane_deeper() {
        let rows = rows(&events(), [10.0, 100.0]);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].title, "rank 0, compute");
        let lanes = rows[0].lanes.iter().map(|lane| lane.iter().map(|span| &*span.name).collect());
        assert_eq!(lanes.collect::<Vec<Vec<_>>>(), [["step"], ["forward"]]);
    }

    #[test]
    fn a_step_is_drawn_with_the_names_of_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, out) = (dir.path().join("timeline.json"), dir.path().join("timeline.svg"));
        fs::write(&file, TIMELINE).unwrap();
        run(&TimelineArgs { file, out: None, step: None }).unwrap();
        let picture = fs::read_to_string(out).unwrap();
        for text in ["transfer bucket 0", "rank 1", "step 1, 0.11 ms", "0.02", "milliseconds"] {
            assert!(picture.contains(text), "{text}");
        }
    }
}
