//! `candelabrum report`.

use std::fs;
use std::path::Path;

use serde_json::json;
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
    (fs::read_to_string(dir.join("report.html")).unwrap(), stderr)
}

/// Checks that a page needs nothing but itself.
fn check_is_self_contained(page: &str) {
    for outside in ["http:", "https:", "src=", "href=", "<link", "@import", "<iframe", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let urls = page.matches("url(").count();
    assert_eq!(urls, page.matches("url(#").count(), "an address outside of the page");
}

fn check_contains(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_page_about_one_run_has_its_curves_its_phases_and_its_strategy() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(&folder.path().join("fp32"));
    let (page, stderr) = report(folder.path(), &["fp32"]);
    assert_eq!(stderr, "");
    assert!(page.starts_with("<!DOCTYPE html>") && page.len() < 200_000, "{}", page.len());
    check_is_self_contained(&page);
    check_contains(
        &page,
        &[
            "<title>Training report: fp32</title>",
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
    // One line in each chart, and nothing to compare.
    let lines = page.matches("data-name=\"fp32\"").count();
    assert_eq!((lines, page.matches("data-x-name=").count()), (10, 10));
    assert!(!page.contains("In brackets"));
}

#[test]
fn a_page_shows_where_the_memory_was() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("gpt");
    MadeUp::fp32().write(&dir);
    let (page, _) = report(folder.path(), &["gpt"]);
    assert!(!page.contains("memory"), "nothing was measured");
    let memory = json!({
        "time": 1.0, "event": "memory", "step": 3, "place": "heap",
        "parts": [{"name": "parameters", "bytes": 2_000_000},
                  {"name": "saved for the backward pass", "bytes": 3_000_000}],
        "layers": [{"name": "blocks.0.up", "bytes": 1_000_000}, {"name": "blocks.1.up", "bytes": 1_500_000},
                   {"name": "", "bytes": 500_000}],
        "peak": 5_000_000, "process": 7_000_000, "program": 1_000_000, "shared": 0,
        "ranks": [7_000_000, 6_500_000],
    });
    let path = dir.join("metrics.jsonl");
    let log = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{log}{memory}\n")).unwrap();
    let (page, stderr) = report(folder.path(), &["gpt"]);
    assert_eq!(stderr, "");
    check_is_self_contained(&page);
    check_contains(
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
    check_is_self_contained(&page);
    check_contains(
        &page,
        &[
            "In brackets: compared with plain",
            "<td>8955</td><td>10694 <span class=\"aside\">(×1.19)</span></td>",
            "<td>3.444 MB</td><td>345 kB <span class=\"aside\">(×0.1)</span></td>",
            "<h3>Settings that differ</h3>",
            "<td class=\"text\">fp32</td><td class=\"text\">sparseTopK</td>",
            "<h3>Settings that are the same</h3>",
            // The steps after the checkpoint, which were trained twice, count once.
            "<td>0</td><td>1, 120 steps trained again</td>",
            "largest: resumed at step 1404 from checkpoints/step-1404",
        ],
    );
    let lines = |name: &str| page.matches(&format!("data-name=\"{name}\"")).count();
    // Both runs are in each chart, but only one has values that it did not send yet.
    assert_eq!((lines("plain"), lines("largest")), (10, 11));
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
    check_contains(&page, &["Line 5 of the log", "Line 10 of the log", torn, "2340 of 2340"]);
    // The line with the end of the run is the incomplete one.
    assert!(page.contains("no event for"));
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
    check_contains(
        &page,
        &[
            "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;x&quot;",
            "&lt;i&gt;run: 1 of 391 values are NaN or infinite, from step 2341 on",
        ],
    );
}

#[test]
fn a_run_that_has_just_begun_has_a_page() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("metrics.jsonl"), "").unwrap();
    let (page, stderr) = report(folder.path(), &["run"]);
    assert_eq!(stderr, "");
    check_contains(&page, &["no event yet", "The log names no settings."]);
}
