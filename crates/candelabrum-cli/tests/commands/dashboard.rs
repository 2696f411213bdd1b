//! Frames of `candelabrum watch`, drawn without a terminal.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use candelabrum_cli::watch::{Dashboard, Reaction, frame, text};
use candelabrum_runlog::JSON_LINES_FILE;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Size;
use tempfile::tempdir;

use super::made_up::MadeUp;
use super::{change, check_fails, run};

/// A run in its eighth epoch, which crashed in the seventh.
fn going_on() -> MadeUp {
    MadeUp { ends: Some(1740), ..MadeUp::sparse_top_k() }
}

/// A frame half a second after the last event.
fn shown(dashboard: &Dashboard, run: &MadeUp, width: u16, height: u16) -> String {
    let now = run.events().last().unwrap().time + 0.5;
    text(&frame(dashboard, Size { width, height }, now).unwrap())
}

fn check_contains(frame: &str, parts: &[&str]) {
    for part in parts {
        assert!(frame.contains(part), "{part}:\n{frame}");
    }
}

#[test]
fn a_frame_shows_loss_rate_throughput_and_how_far_the_run_is() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("mnist");
    let run = going_on();
    run.write(&dir);
    let dashboard = Dashboard::open(&dir).unwrap();
    let frame = shown(&dashboard, &run, 104, 30);
    check_contains(&frame, &["train/loss", "learning rate", "samples/s", "running", "16 s left"]);
    let expected = include_str!("dashboard.txt");
    assert!(frame == expected, "the frame is now:\n{frame}\nbut was:\n{expected}");
}

#[test]
fn small_terminals_have_the_same_figures() {
    let folder = tempdir().unwrap();
    let run = going_on();
    run.write(folder.path());
    let dashboard = Dashboard::open(folder.path()).unwrap();
    for (width, height) in [(70, 24), (104, 14)] {
        let frame = shown(&dashboard, &run, width, height);
        check_contains(
            &frame,
            &[
                "running  4 ranks",
                "step 1740/2340, 16 s left",
                "74% ━",
                "epoch 8/10",
                "train/loss 0.03437, smoothed over 2%",
                "accuracy 0.9911 (0.9887 to 0.9917)",
                "10123 samples/s  learning rate 0.008248",
                "checkpoint at step 1638, 40 ms: checkpoints/step-1638",
            ],
        );
    }
    // No size breaks it.
    for (width, height) in [(1, 1), (39, 9), (40, 10), (90, 18), (300, 100)] {
        let frame = shown(&dashboard, &run, width, height);
        assert_eq!(frame.lines().count(), usize::from(height));
    }
    assert!(shown(&dashboard, &run, 39, 9).contains("The dashboard needs 40x10."));
}

#[test]
fn a_dashboard_follows_a_log_that_grows() {
    let folder = tempdir().unwrap();
    let short = MadeUp { ends: Some(300), ..MadeUp::fp32() };
    short.write(folder.path());
    let mut dashboard = Dashboard::open(folder.path()).unwrap();
    assert!(!dashboard.refresh().unwrap());
    check_contains(&shown(&dashboard, &short, 100, 30), &["step 300/2340", "running"]);

    // The rest, and the end.
    let whole = MadeUp::fp32();
    let rest = &whole.events()[short.events().len()..];
    let mut file =
        OpenOptions::new().append(true).open(folder.path().join(JSON_LINES_FILE)).unwrap();
    for event in rest {
        writeln!(file, "{}", serde_json::to_string(event).unwrap()).unwrap();
    }
    assert!(dashboard.refresh().unwrap());
    let frame = shown(&dashboard, &whole, 100, 30);
    check_contains(&frame, &["step 2340/2340", "finished", "end at step 2340: finished"]);
    assert!(!frame.contains("left"), "{frame}");
    assert_eq!(dashboard.state(f64::MAX), "finished");
}

#[test]
fn keys_change_what_is_shown() {
    let folder = tempdir().unwrap();
    let run = going_on();
    run.write(folder.path());
    let mut dashboard = Dashboard::open(folder.path()).unwrap();
    for (key, title) in [
        (KeyCode::Char('l'), "train/loss 0.03437, logarithmic, smoothed over 2%"),
        (KeyCode::Char('s'), "train/loss 0.03437, logarithmic, smoothed over 10%"),
        (KeyCode::Char('s'), "train/loss 0.03437, logarithmic ─"),
        (KeyCode::Char('l'), "train/loss 0.03437 ─"),
        (KeyCode::Right, "train/learning_rate 0.008248 ─"),
        (KeyCode::Left, "train/loss 0.03437 ─"),
        (KeyCode::Left, "epoch/update_seconds"),
        (KeyCode::Down, " loss 0.04263 ("),
        (KeyCode::Up, " accuracy 0.9911 ("),
    ] {
        assert_eq!(dashboard.press(key.into()), Reaction::Redraw);
        check_contains(&shown(&dashboard, &run, 120, 30), &[title]);
    }
    assert_eq!(dashboard.press(KeyCode::Char('x').into()), Reaction::Nothing);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for key in [KeyCode::Char('q').into(), KeyCode::Esc.into(), interrupt] {
        assert_eq!(dashboard.press(key), Reaction::Quit);
    }
}

#[test]
fn broken_lines_are_counted_and_control_characters_stay_out_of_the_terminal() {
    let folder = tempdir().unwrap();
    let run = going_on();
    run.write(folder.path());
    change(folder.path(), |lines| {
        lines[5] = "nonsense".to_owned();
        lines[7].clear();
        let text = "red \\u001b[31m and \\u0007bell";
        lines.push(format!("{{\"time\": 1795536051, \"event\": \"note\", \"text\": \"{text}\"}}"));
        lines.push(String::new());
    });
    let dashboard = Dashboard::open(folder.path()).unwrap();
    let frame = shown(&dashboard, &run, 100, 30);
    check_contains(&frame, &["notes and checkpoints, 2 of the log's lines are no events", "red"]);
    assert!(!frame.contains(['\u{1b}', '\u{7}']), "{frame:?}");
}

#[test]
fn one_frame_goes_to_standard_output() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(&folder.path().join("run"));
    let output = run(folder.path(), &["watch", "run", "--once", "--size", "80x20"]);
    assert!(output.status.success(), "{output:?}");
    let frame = String::from_utf8(output.stdout).unwrap();
    check_contains(&frame, &["run  finished", "train/loss", "samples/s", "learning rate"]);
    assert_eq!(frame.lines().count(), 20);
}

#[test]
fn without_a_terminal_or_a_log_the_error_says_so() {
    let folder = tempdir().unwrap();
    let dir: &Path = folder.path();
    std::fs::create_dir(dir.join("empty")).unwrap();
    MadeUp::fp32().write(&dir.join("run"));
    for (args, code, message) in [
        (
            &["watch", "run"][..],
            1,
            "error: there is no terminal here: --once prints one frame as text\n",
        ),
        (&["watch", "empty"], 1, "error: empty is no log of a run: it has no file metrics.jsonl\n"),
        (&["watch", "nowhere", "--once"], 1, "error: there is no directory nowhere\n"),
        (&["watch", "run", "--once", "--size=big"], 2, "it must be two numbers from 1 to 1000"),
        (&["watch"], 2, "<DIR>"),
    ] {
        check_fails(dir, args, code, message);
    }
}
