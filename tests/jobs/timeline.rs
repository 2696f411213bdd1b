//! `--timeline`: one file with the spans of every rank on one clock. No file without the option.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use candelabrum_testkit::Program;
use rustix::process::Signal;
use serde_json::Value;

use crate::programs::{example, wait_for_training};

const SMALL: [&str; 6] = ["--dataset", "synthetic", "--epochs", "1", "--batch-size", "500"];

/// Two ranks of a small run in directory `dir`.
fn two_ranks(dir: &Path, options: &[&str]) -> Program {
    example("mnist_dist").args(SMALL).args(["--workers", "2"]).args(options).folder(dir)
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A span with its start and end in microseconds.
#[derive(Debug, PartialEq)]
struct Span {
    name: String,
    start: f64,
    end: f64,
    args: Value,
}

/// The spans of a file by rank and thread, in the order of their starts.
fn spans(file: &Path) -> BTreeMap<(u64, String), Vec<Span>> {
    let document: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let place = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let describes = |event: &&Value, what: &str| event["ph"] == "M" && event["name"] == what;
    let name = |event: &Value| event["args"]["name"].as_str().unwrap().to_owned();
    for process in events.iter().filter(|event| describes(event, "process_name")) {
        assert_eq!(name(process), format!("rank {}", place(process).0));
    }
    let threads: BTreeMap<(u64, u64), String> = events
        .iter()
        .filter(|event| describes(event, "thread_name"))
        .map(|event| (place(event), name(event)))
        .collect();
    let mut spans: BTreeMap<(u64, String), Vec<Span>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let start = event["ts"].as_f64().unwrap();
        let end = start + event["dur"].as_f64().unwrap();
        let (rank, tid) = place(event);
        let thread = threads[&(rank, tid)].clone();
        let name = event["name"].as_str().unwrap().to_owned();
        let span = Span { name, start, end, args: event["args"].clone() };
        spans.entry((rank, thread)).or_default().push(span);
    }
    for thread in spans.values_mut() {
        // If two spans start together, the longer one is the outer one.
        thread.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
    }
    spans
}

/// Asserts that any two spans are nested or disjoint.
fn assert_nested(spans: &[Span]) {
    let mut around: Vec<&Span> = Vec::new();
    for span in spans {
        assert!(span.start <= span.end, "{span:?}");
        while around.last().is_some_and(|outer| outer.end <= span.start) {
            around.pop();
        }
        if let Some(outer) = around.last() {
            // Sums of rounded microseconds may differ by half a nanosecond.
            assert!(span.end <= outer.end + 5e-4, "{span:?} leaves {outer:?}");
        }
        around.push(span);
    }
}

#[test]
fn a_timeline_has_the_spans_of_every_rank_on_one_clock() {
    let dir = tempfile::tempdir().unwrap();
    two_ranks(dir.path(), &["--timeline", "timeline.json"]).run().success();
    assert_eq!(files(dir.path()), ["timeline.json"]);

    let spans = spans(&dir.path().join("timeline.json"));
    spans.values().for_each(|thread| assert_nested(thread));
    let thread = |rank: u64, name: &str| &spans[&(rank, name.to_owned())];
    for rank in [0, 1] {
        let count = |name: &str| thread(rank, "compute").iter().filter(|s| s.name == name).count();
        assert_eq!((count("epoch"), count("step"), count("forward")), (1, 12, 12));
        assert_eq!((count("evaluate"), count("load")), (1, 13));
        assert_eq!(count("backward"), 12);
        let updated = |span: &&Span| span.name == "update" && span.args["bucket"] == 0;
        assert_eq!(thread(rank, "compute").iter().filter(updated).count(), 12);
        let backward = |span: &&Span| span.name == "conv2d" && span.args["phase"] == "Backward";
        assert_eq!(thread(rank, "compute").iter().filter(backward).count(), 24);
    }
    // On one clock an all-reduce ends on no rank before it has started on all ranks.
    let reduced = |rank| {
        // A thread that waits runs an exchange itself, so every thread is searched.
        let threads = spans.iter().filter(|((of, _), _)| *of == rank).map(|(_, spans)| spans);
        let reduced = |span: &&Span| span.name == "transfer" && span.args["op"] == "all_reduce";
        let mut reduced: Vec<&Span> = threads.flatten().filter(reduced).collect();
        reduced.sort_by(|a, b| a.start.total_cmp(&b.start));
        reduced
    };
    let (zero, one) = (reduced(0), reduced(1));
    assert_eq!(zero.len(), one.len());
    assert!(zero.len() >= 12, "{zero:?}");
    for (zero, one) in zero.into_iter().zip(one) {
        assert_eq!(zero.args, one.args);
        assert!(zero.args["bytes"].as_u64().unwrap() > 0, "{zero:?}");
        assert!(zero.start < one.end && one.start < zero.end, "{zero:?} and {one:?}");
    }
}

#[test]
fn without_the_option_there_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    two_ranks(dir.path(), &[]).run().success();
    assert!(files(dir.path()).is_empty(), "{:?}", files(dir.path()));
}

#[test]
fn a_run_that_fails_leaves_each_ranks_part() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--lr", "1e20", "--timeline", "timeline.json"];
    two_ranks(dir.path(), &options).run().fails(["not finite"]);
    assert_eq!(files(dir.path()), ["timeline.json.rank0", "timeline.json.rank1"]);
    for (rank, file) in (0..).zip(files(dir.path())) {
        let spans = spans(&dir.path().join(file));
        let compute = &spans[&(rank, "compute".to_owned())];
        assert_nested(compute);
        assert!(compute.iter().any(|span| span.name == "forward"), "{compute:?}");
    }
    // The next successful run removes these files.
    two_ranks(dir.path(), &["--timeline", "timeline.json"]).run().success();
    assert_eq!(files(dir.path()), ["timeline.json"]);
}

#[test]
fn an_interrupted_run_leaves_each_ranks_part() {
    let dir = tempfile::tempdir().unwrap();
    let program = example("mnist_dist").args(["--dataset", "synthetic", "--workers", "2"]);
    let program = program.args(["--epochs", "1000", "--timeline", "timeline.json"]);
    let running = program.folder(dir.path()).start();
    running.ranks(2);
    wait_for_training(&running);
    running.signal(Signal::INT);
    running.finish().fails(["interrupted by SIGINT"]);
    assert_eq!(files(dir.path()), ["timeline.json.rank0", "timeline.json.rank1"]);
    let spans = spans(&dir.path().join("timeline.json.rank1"));
    let compute = &spans[&(1, "compute".to_owned())];
    // The file also contains spans that had not ended.
    assert!(compute.iter().any(|span| span.name == "epoch"), "{compute:?}");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    for path in ["/nonexistent/timeline.json", "/proc/timeline.json"] {
        for workers in ["1", "2"] {
            let program = example("mnist_dist").args(["--dataset", "synthetic"]);
            let program = program.args(["--epochs", "1000", "--workers", workers]);
            let program = program.args(["--timeline", path]).limit(Duration::from_secs(20));
            program.run().fails(["write the timeline", path]);
        }
    }
}
