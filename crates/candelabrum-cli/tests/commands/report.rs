//! `candelabrum report`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::tempdir;

use super::made_up::MadeUp;
use super::{change, check_fails, run};

/// The page about these directories, and what the program says on standard error.
fn report(dir: &Path, args: &[&str]) -> (String, String) {
    let output = run(dir, &[&["report", "--open", "no"], args].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.starts_with("report.html: "), "{stdout}");
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    check_is_self_contained(&page);
    (page, stderr)
}

/// Checks that a page needs nothing but itself, and that no text of a log ends a script.
fn check_is_self_contained(page: &str) {
    for outside in ["http:", "https:", "src=", "href=", "<link", "@import", "<iframe", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let urls = page.matches("url(").count();
    assert_eq!(urls, page.matches("url(#").count(), "an address outside of the page");
    let count = |text| page.matches(text).count();
    assert_eq!((count("<script"), count("</script"), count("<!--")), (2, 2, 0));
}

/// The report inside a page.
fn figures(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"report\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Checks what the scripts of a page draw, where there is Node.js.
#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn check_draws(page: &str, parts: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/draw.js");
    let mut node = Command::new("node");
    let node = node.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut node) = node else {
        eprintln!("left out: no node here, which runs the scripts of the page");
        return String::new();
    };
    // Node.js reads all of its input before it writes.
    node.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let drawn = String::from_utf8(output.stdout).unwrap();
    for part in parts {
        assert!(drawn.contains(part), "{part}");
    }
    drawn
}

#[test]
fn a_page_about_one_run_has_its_curves_its_phases_and_its_strategy() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(&folder.path().join("fp32"));
    let (page, stderr) = report(folder.path(), &["fp32"]);
    assert_eq!(stderr, "");
    assert!(page.starts_with("<!DOCTYPE html>") && page.len() < 200_000, "{}", page.len());
    let report = figures(&page);
    let run = &report["runs"][0];
    let of = |names: &[&str]| json!(names.iter().map(|name| &run[name]).collect::<Vec<_>>());
    assert_eq!(of(&["name", "state", "time"]), json!(["fp32", "finished", "1 min 15 s"]));
    assert_eq!(of(&["steps", "planned_steps", "planned_epochs"]), json!([2340, 2340, 10]));
    assert_eq!(of(&["ranks", "resumes", "broken"]), json!([[4], [], []]));
    assert_eq!(run["checkpoints"], json!({"count": 10, "time": "400 ms"}));
    assert_eq!(run["epochs"][9]["values"]["bytes_received_per_step"], json!(10_332_000.0));
    let accuracy = &run["series"]["evaluation/accuracy"];
    assert_eq!((&accuracy["count"], &accuracy["highest"]["step"]), (&json!(10), &json!(1170)));
    let loss = &run["series"]["train/loss"];
    for line in ["points", "smoothed"] {
        assert_eq!(loss[line]["step"].as_array().unwrap().last(), Some(&json!(2340)), "{line}");
    }
    assert_eq!(run["series"]["train/learning_rate"]["smoothed"], Value::Null);

    let drawn = check_draws(
        &page,
        &[
            "Training report: fp32\n",
            "<th>steps</th><td>2340 of 2340",
            "<th>time, without pauses</th><td>1 min 15 s",
            "<th>highest accuracy of evaluations</th><td>0.992 at step 1170",
            "<th>samples per second</th><td>8955",
            "<th>optimizer.lr</th><td class=\"text\">0.05</td>",
            "Training loss over time",
            "Learning rate",
            "Evaluation: accuracy",
            "Samples per second, of whole epochs",
            "Where the time of a step goes",
            "<th>exposed communication</th><td>9.301 <span class=\"aside\">32.5%</span>",
            "Megabytes sent per step",
            "checkpoint at step 234, 40 ms: checkpoints/step-234",
            "end at step 2340: finished",
        ],
    );
    assert!(!drawn.contains("In brackets") && !drawn.contains("memory"));
    // One line in each chart.
    let count = |text| drawn.matches(text).count();
    if !drawn.is_empty() {
        assert_eq!((count("data-name=\"fp32\""), count("data-x-name=")), (10, 10));
    }
}

#[test]
fn a_file_of_json_has_the_figures_alone() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(&folder.path().join("fp32"));
    let (page, _) = report(folder.path(), &["fp32"]);
    let output = run(folder.path(), &["report", "fp32", "--open=no", "--output=report.json"]);
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(folder.path().join("report.json")).unwrap();
    let mut alone: Value = serde_json::from_str(&text).unwrap();
    let inside = figures(&page);
    alone["made"] = inside["made"].clone();
    assert_eq!(alone, inside);
}

#[test]
fn a_page_shows_where_the_memory_was() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("gpt");
    MadeUp::fp32().write(&dir);
    let memory = json!({
        "time": 1.0, "event": "memory", "step": 3, "place": "heap",
        "parts": [{"name": "parameters", "bytes": 2_000_000},
                  {"name": "saved for the backward pass", "bytes": 3_000_000}],
        "layers": [{"name": "blocks.0.up", "bytes": 1_000_000}, {"name": "blocks.1.up", "bytes": 1_500_000},
                   {"name": "", "bytes": 500_000}],
        "peak": 5_000_000, "process": 7_000_000, "program": 1_000_000, "shared": 0,
        "ranks": [7_000_000, 6_500_000],
    });
    change(&dir, |lines| lines.extend([memory.to_string(), String::new()]));
    let (page, stderr) = report(folder.path(), &["gpt"]);
    assert_eq!(stderr, "");
    let layers = json!([["blocks.*.up", 2, 2_500_000], ["", 1, 500_000]]);
    assert_eq!(figures(&page)["runs"][0]["memory"]["parts"][1]["layers"], layers);
    check_draws(
        &page,
        &[
            "Where the memory of a step is",
            "(rank 0, step 3, heap)",
            "<th>parameters</th><td>2 MB</td>",
            "blocks.*.up × 2</th><td class=\"aside\">2.5 MB</td>",
            "after the last layer</th><td class=\"aside\">500 kB</td>",
            "<th>kept by the allocator, stacks and all else</th><td>1 MB</td>",
            "<th>peak of the process of each rank</th><td>7 MB, 6.5 MB</td>",
        ],
    );
}

#[test]
fn runs_are_laid_beside_each_other() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(&folder.path().join("fp32"));
    MadeUp::sparse_top_k().write(&folder.path().join("sparse"));
    let (page, _) = report(folder.path(), &["fp32", "sparse", "--name=plain", "--name=largest"]);
    let report = figures(&page);
    let (plain, largest) = (&report["runs"][0], &report["runs"][1]);
    // The steps after the checkpoint, which were trained twice, count once.
    assert_eq!((&plain["repeated_steps"], &largest["repeated_steps"]), (&json!(0), &json!(120)));
    let sent = "epoch/bytes_sent_per_step";
    assert_eq!(largest["series"][sent]["mean"], json!(345_000.0));
    let drawn = check_draws(
        &page,
        &[
            "In brackets: compared with plain",
            "<td>8955</td><td>10694 <span class=\"aside\">(×1.19)</span></td>",
            "<td>3.444 MB</td><td>345 kB <span class=\"aside\">(×0.1)</span></td>",
            "<h3>Settings that differ</h3>",
            "<td class=\"text\">fp32</td><td class=\"text\">sparseTopK</td>",
            "<h3>Settings that are the same</h3>",
            "<td>0</td><td>1, 120 steps trained again</td>",
            "largest: resumed at step 1404 from checkpoints/step-1404",
        ],
    );
    // Both runs are in each chart, but only one has values that it did not send yet.
    let lines = |name: &str| drawn.matches(&format!("data-name=\"{name}\"")).count();
    assert!(drawn.is_empty() || (lines("plain"), lines("largest")) == (10, 11));
}

#[test]
fn odd_values_are_drawn() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    MadeUp { epochs: 95, ..MadeUp::fp32() }.write(&dir);
    change(&dir, |lines| {
        let values = |step: u64| match step {
            200 => json!({"peak": 40.0, "far": 1e9, "once": "NaN", "huge": f64::MIN}),
            201 => json!({"once": 1e-320, "huge": f64::MAX, "hole": "NaN"}),
            _ => json!({"peak": 1 + step % 10, "far": 1 + step % 10}),
        };
        let event = |step| json!({"time": 2e9, "event": "train", "step": step, "epoch": 9, "values": values(step)});
        lines.splice(1..1, (1..=400).map(|step| event(step).to_string()));
        lines.push(String::new());
    });
    let (page, stderr) = report(folder.path(), &["run"]);
    assert_eq!(stderr, "");
    let outside = "1 of the values lie far outside and are not shown.";
    let drawn = check_draws(
        &page,
        &[
            outside,
            "Training: far<span class=\"aside\"> (logarithmic axis)",
            "epochs 0 to 2, backward: ",
        ],
    );
    assert_eq!(
        drawn.matches("of the values lie far outside").count(),
        usize::from(!drawn.is_empty())
    );
    for number in ["NaN", "Infinity", "undefined"] {
        let in_attribute = |found: (usize, &str)| !drawn[found.0..].starts_with("NaN or infinite");
        assert!(!drawn.match_indices(number).any(in_attribute), "{number}");
    }
}

#[test]
fn broken_lines_of_a_log_are_named_and_the_others_count() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    MadeUp::fp32().write(&dir);
    change(&dir, |lines| {
        lines[4] = "{\"time\": 1, \"event\": \"trein\"}".to_owned();
        lines[9].truncate(30);
        let last = lines.last_mut().unwrap();
        last.truncate(20);
    });
    let (page, stderr) = report(folder.path(), &["run"]);
    let notes: Vec<&str> = stderr.lines().collect();
    assert_eq!(notes.len(), 3, "{stderr}");
    let unknown =
        "note: run: Line 5 of the log is no event and was left out: unknown variant `trein`";
    assert!(notes[0].starts_with(unknown), "{stderr}");
    assert!(notes[1].starts_with("note: run: Line 10 of the log is no event"), "{stderr}");
    let torn = "of the log is incomplete (20 bytes) and was left out";
    assert!(notes[2].contains(torn), "{stderr}");
    let run = &figures(&page)["runs"][0];
    assert_eq!(run["broken"].as_array().unwrap().len(), 3);
    // The line with the end of the run is the incomplete one.
    assert!(run["state"].as_str().unwrap().starts_with("no event for"), "{run}");
    check_draws(&page, &["Line 5 of the log", "Line 10 of the log", torn, "2340 of 2340"]);
}

#[test]
fn what_is_no_log_is_an_error_and_makes_no_page() {
    let folder = tempdir().unwrap();
    let dir = folder.path();
    for name in ["empty", "other"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    fs::write(dir.join("other/metrics.jsonl"), "{\"loss\": 1}\n{\"loss\": 2}\n").unwrap();
    MadeUp::fp32().write(&dir.join("good"));
    for (args, code, message) in [
        (
            &["report", "empty"][..],
            1,
            "error: empty is no log of a run: it has no file metrics.jsonl\n",
        ),
        (&["report", "good", "empty"], 1, "error: empty is no log of a run"),
        (&["report", "nowhere"], 1, "error: there is no directory nowhere\n"),
        (&["report", "good/metrics.jsonl"], 1, "error: there is no directory good/metrics.jsonl\n"),
        (
            &["report", "other"],
            1,
            "error: other/metrics.jsonl is no log of a run: no line is an event. \
            Line 1: missing field `time`\n",
        ),
        (&["report", "good", "--output", "no/page.html"], 1, "no/page.html"),
        (
            &["report", "good", "--name=a", "--name=b"],
            2,
            "--name is given 2 times for 1 directories",
        ),
        (&["report"], 2, "<DIR>..."),
    ] {
        check_fails(dir, args, code, message);
        assert!(!dir.join("report.html").exists(), "{args:?}");
    }
}

#[test]
fn texts_of_a_log_are_no_html_and_values_that_are_no_numbers_are_marked() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("<i>run");
    MadeUp::fp32().write(&dir);
    change(&dir, |lines| {
        let note =
            r#"{"time": 1795536001, "event": "note", "text": "<script>alert(1)</script> & \"x\""}"#;
        lines.push(note.to_owned());
        let nan = r#"{"time": 1795536100, "event": "train", "step": 2341, "epoch": 9, "values": {"loss": "NaN"}}"#;
        lines.push(nan.to_owned());
        lines.push(String::new());
    });
    let (page, _) = report(folder.path(), &["<i>run"]);
    assert!(!page.contains("<i>") && !page.contains("<script>alert"));
    assert_eq!(figures(&page)["runs"][0]["name"], "<i>run");
    let drawn = check_draws(
        &page,
        &[
            "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;x&quot;",
            "&lt;i&gt;run: 1 of 391 values are NaN or infinite, from step 2341 on",
            "<path class=\"gap c0 d0\" d=\"M623.0 243l6 6m0 -6l-6 6\"/>",
        ],
    );
    let body = drawn.split_once('\n').unwrap_or_default().1;
    assert!(!body.contains("<i>") && !body.contains("<script"));
}

#[test]
fn a_run_that_has_just_begun_has_a_page() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("metrics.jsonl"), "").unwrap();
    let (page, stderr) = report(folder.path(), &["run"]);
    assert_eq!(stderr, "");
    check_draws(&page, &["no event yet", "The log names no settings."]);
}
