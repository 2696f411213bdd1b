//! A log from its first event to its reader: files, resumes, crashes, full disks, lost directories.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_runlog::{
    CSV_FILE, Checkpoint, EndEvent, EpochEnd, Error, Event, EventKind, EventSink, IncompleteLine,
    JSON_LINES_FILE, LogReader, Measured, NamedValues, Repeated, Result, ResumePoint, RunLog,
    Settings,
};
use tempfile::tempdir;

fn settings() -> Settings {
    let mut settings = Settings { epochs: Some(2), steps: Some(8), ..Settings::new(2, "0.1.0") };
    settings.settings.insert("lr".to_owned(), 0.005.into());
    settings
}

fn train(step: u64, loss: f64) -> EventKind {
    let values = [("loss".to_owned(), loss)].into();
    EventKind::Train(Measured { step, epoch: step / 4, values })
}

fn resume(step: u64) -> ResumePoint {
    let from = format!("checkpoints/step-{step}");
    ResumePoint { step, epoch: step / 4, from, settings: settings() }
}

/// Writes an event that no sink refuses.
fn write(log: &mut RunLog, kind: EventKind) {
    let errors = log.event(kind);
    assert!(errors.is_empty(), "{errors:?}");
}

fn read(dir: &Path) -> LogReader {
    let mut reader = LogReader::open(dir).unwrap();
    reader.poll().unwrap();
    reader
}

fn losses(reader: &LogReader) -> Vec<(u64, f64)> {
    let points = reader.run().series["train/loss"].points();
    points.iter().map(|point| (point.step, point.value)).collect()
}

fn lines(dir: &Path) -> usize {
    fs::read_to_string(dir.join(JSON_LINES_FILE)).unwrap().lines().count()
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "this did not happen within 20 s");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("new/run");
    let mut log = RunLog::create(&dir, settings()).unwrap();
    write(&mut log, train(1, f64::NAN));
    write(&mut log, train(2, f64::INFINITY));
    write(&mut log, train(3, 0.1));
    let accuracy = [("accuracy".to_owned(), 0.75), ("a,\"b\"".to_owned(), 1e-7)].into();
    write(&mut log, EventKind::Evaluation(Measured { step: 4, epoch: 0, values: accuracy }));
    let values: NamedValues = [("residual_norm".to_owned(), f64::NEG_INFINITY)].into();
    let dist_option = Some("sparseTopK".to_owned());
    let end = EpochEnd { epoch: 0, step: 4, seconds: 2.5, dist_option, values };
    write(&mut log, EventKind::Epoch(end.clone()));
    write(&mut log, EventKind::Checkpoint(Checkpoint { step: 4, path: "c".into(), seconds: 0.5 }));
    write(&mut log, EventKind::Note { text: "a \"note\"\nof two lines".into() });
    write(&mut log, EventKind::End(EndEvent { reason: "finished".into(), step: 4 }));
    drop(log);

    let reader = read(&dir);
    let run = reader.run();
    assert_eq!((run.events, reader.torn()), (9, None));
    assert_eq!(run.settings(), Some(&settings()));
    let losses = losses(&reader);
    assert!(losses[0].1.is_nan());
    assert_eq!(losses[1..], [(2, f64::INFINITY), (3, 0.1)]);
    assert_eq!(run.series["evaluation/accuracy"].points()[0].value, 0.75);
    assert_eq!(run.epochs[0].what, end);
    assert_eq!(run.checkpoints[0].what.path, "c");
    assert_eq!(run.notes[0].what, "a \"note\"\nof two lines");
    assert_eq!(run.end.as_ref().unwrap().what.reason, "finished");

    let csv = fs::read_to_string(dir.join(CSV_FILE)).unwrap();
    let expected = "step,epoch,kind,name,value\n\
        1,0,train,loss,NaN\n\
        2,0,train,loss,Infinity\n\
        3,0,train,loss,0.1\n\
        4,0,evaluation,\"a,\"\"b\"\"\",1e-7\n\
        4,0,evaluation,accuracy,0.75\n\
        4,0,epoch,seconds,2.5\n\
        4,0,epoch,residual_norm,-Infinity\n\
        4,,checkpoint,seconds,0.5\n";
    assert_eq!(csv, expected);
}

#[test]
fn a_log_in_use_is_not_overwritten() {
    let folder = tempdir().unwrap();
    let mut log = RunLog::create(folder.path(), settings()).unwrap();
    write(&mut log, train(1, 1.0));
    drop(log);
    let error = RunLog::create(folder.path(), settings()).unwrap_err();
    assert!(matches!(&error, Error::Exists { path } if path.ends_with(JSON_LINES_FILE)), "{error}");
    assert_eq!(lines(folder.path()), 2);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = RunLog::create(&file, settings()).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: it is no directory", file.display()));
    // A leftover CSV file alone: nothing is made beside it.
    let leftover = tempdir().unwrap();
    fs::write(leftover.path().join(CSV_FILE), "").unwrap();
    assert!(matches!(RunLog::create(leftover.path(), settings()), Err(Error::Exists { .. })));
    assert_eq!(fs::read_dir(leftover.path()).unwrap().count(), 1);
}

#[test]
fn training_events_reach_the_file_within_about_a_second_and_others_at_once() {
    let folder = tempdir().unwrap();
    let mut log = RunLog::create(folder.path(), settings()).unwrap();
    assert_eq!(lines(folder.path()), 1, "the start");
    write(&mut log, train(1, 1.0));
    write(&mut log, train(2, 1.0));
    wait_until(|| lines(folder.path()) == 3);
    write(&mut log, train(3, 1.0));
    write(&mut log, EventKind::Note { text: "n".into() });
    assert_eq!(lines(folder.path()), 5);
    write(&mut log, train(4, 1.0));
    drop(log);
    assert_eq!(lines(folder.path()), 6);
}

#[test]
fn a_resumed_run_goes_on_in_the_same_directory() {
    let folder = tempdir().unwrap();
    let dir = folder.path();
    let mut log = RunLog::create(dir, settings()).unwrap();
    (1..=5).for_each(|step| write(&mut log, train(step, 1.0)));
    drop(log);
    // The crash left half a line in both files, and a reader has seen it.
    for name in [JSON_LINES_FILE, CSV_FILE] {
        let mut file = OpenOptions::new().append(true).open(dir.join(name)).unwrap();
        file.write_all(b"{\"time\":1.5,\"event\":\"trai").unwrap();
    }
    let mut follower = read(dir);
    assert_eq!(follower.torn(), Some(IncompleteLine { line: 7, bytes: 25 }));
    let mut log = RunLog::append(dir, resume(3)).unwrap();
    (4..=6).for_each(|step| write(&mut log, train(step, 2.0)));
    drop(log);

    assert!(follower.poll().unwrap());
    for reader in [follower, read(dir)] {
        let values = [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)];
        assert_eq!(losses(&reader), values);
        let run = reader.run();
        assert_eq!(run.repeated, [Repeated { kept: 3, reached: 5 }]);
        assert_eq!(run.resumes[0].what.from, "checkpoints/step-3");
        assert!(run.notes[0].what.contains("incomplete line of 25 bytes"), "{:?}", run.notes);
        assert_eq!(reader.torn(), None);
    }
    let csv = fs::read_to_string(dir.join(CSV_FILE)).unwrap();
    assert!(csv.contains("5,1,train,loss,1.0\n3,0,resume,step,3.0\n4,1,train,loss,2.0\n"), "{csv}");
}

#[test]
fn a_resumed_run_whose_log_is_gone_begins_a_new_one() {
    let folder = tempdir().unwrap();
    let mut log = RunLog::append(&folder.path().join("run"), resume(3)).unwrap();
    write(&mut log, train(4, 2.0));
    drop(log);
    let reader = read(&folder.path().join("run"));
    assert_eq!(reader.run().start.as_ref().unwrap().what, settings());
    assert_eq!((losses(&reader), reader.run().resumes.len()), (vec![(4, 2.0)], 1));
    let csv = fs::read_to_string(folder.path().join("run").join(CSV_FILE)).unwrap();
    assert!(csv.starts_with("step,epoch,kind,name,value\n3,0,resume"), "{csv}");
}

#[test]
fn a_reader_follows_a_log_that_grows_or_is_replaced() {
    let folder = tempdir().unwrap();
    let path = folder.path().join(JSON_LINES_FILE);
    let line =
        |step| format!("{}\n", serde_json::to_string(&Event::now(train(step, 1.0))).unwrap());
    fs::write(&path, line(1)).unwrap();
    let mut reader = read(folder.path());
    assert!(!reader.poll().unwrap(), "nothing new");
    // A line that arrives in pieces.
    let (first, second) = (line(2), line(3));
    for (piece, is_new) in [(&first[..10], false), (&first[10..20], false), (&first[20..], true)] {
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(piece.as_bytes()).unwrap();
        assert_eq!(reader.poll().unwrap(), is_new, "{piece:?}");
    }
    assert_eq!((losses(&reader).len(), reader.torn()), (2, None));
    // Another log at the same place, of the same length or shorter.
    fs::remove_file(&path).unwrap();
    fs::write(&path, second).unwrap();
    assert!(reader.poll().unwrap());
    assert_eq!(losses(&reader), [(3, 1.0)]);
    fs::remove_file(&path).unwrap();
    let error = reader.poll().unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error}");
}

#[test]
fn what_is_no_log_is_named_with_its_place() {
    let folder = tempdir().unwrap();
    let message = |dir: &Path| LogReader::open(dir).unwrap_err().to_string();
    let shown = folder.path().display();
    let nowhere = message(&folder.path().join("no"));
    assert_eq!(nowhere, format!("there is no directory {shown}/no"));
    let empty = message(folder.path());
    assert_eq!(empty, format!("{shown} is no log of a run: it has no file metrics.jsonl"));
    let path = folder.path().join(JSON_LINES_FILE);
    fs::create_dir(&path).unwrap();
    let directory = message(folder.path());
    assert_eq!(directory, format!("cannot read {shown}/metrics.jsonl: it is no regular file"));
    fs::remove_dir(&path).unwrap();

    let good = serde_json::to_string(&Event::now(train(1, 1.0))).unwrap();
    for (bad, reason) in [
        ("nonsense", "expected ident"),
        ("", "EOF while parsing a value"),
        ("{\"time\": 1, \"event\": \"trein\"}", "unknown variant `trein`, expected one of `start`"),
        ("{\"event\": \"note\", \"text\": \"x\"}", "missing field `time`"),
        (
            "{\"time\": 1, \"event\": \"train\", \"step\": 1, \"epoch\": 0}",
            "missing field `values`",
        ),
        ("{\"time\": 1, \"event\": \"end\", \"step\": -1, \"reason\": \"x\"}", "invalid value"),
        ("\0\0\0\0", "expected value"),
    ] {
        fs::write(&path, format!("{good}\n{bad}\n{good}\n")).unwrap();
        let mut reader = LogReader::open(folder.path()).unwrap();
        assert!(reader.poll().unwrap());
        // The lines around it count.
        assert_eq!((reader.run().events, reader.broken_count()), (2, 1), "{bad}");
        let [broken] = reader.broken() else { panic!("{:?}", reader.broken()) };
        assert_eq!(broken.line, 2);
        assert!(broken.reason.starts_with(reason), "{broken:?}");
        assert!(!broken.reason.contains("line 1"), "{broken:?}");
    }
}

#[test]
fn a_file_of_something_else_is_no_log() {
    let folder = tempdir().unwrap();
    let path = folder.path().join(JSON_LINES_FILE);
    let mut bytes = b"{}\n".repeat(100);
    // A line that no memory should hold.
    bytes.extend(std::iter::repeat_n(0, 40 << 20));
    fs::write(&path, &bytes).unwrap();
    let mut reader = LogReader::open(folder.path()).unwrap();
    let error = reader.poll().unwrap_err();
    assert!(matches!(error, Error::NoEvent { line: 1, .. }), "{error}");
    assert_eq!(reader.torn(), Some(IncompleteLine { line: 101, bytes: 40 << 20 }));
    // The reasons of a few are enough.
    assert_eq!((reader.broken().len(), reader.broken_count()), (20, 100));

    let good = serde_json::to_string(&Event::now(train(1, 1.0))).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(format!("\n{good}\n").as_bytes()).unwrap();
    assert!(reader.poll().unwrap());
    assert_eq!((losses(&reader).len(), reader.broken_count(), reader.torn()), (1, 101, None));
}

/// A sink that takes some events and then fails.
struct Limited {
    left: usize,
    asked: Arc<AtomicUsize>,
}

impl EventSink for Limited {
    fn name(&self) -> String {
        "limited".to_owned()
    }

    fn event(&mut self, _: &Event) -> Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let Some(left) = self.left.checked_sub(1) else {
            return Err(Error::Other { reason: "it is full".to_owned() });
        };
        self.left = left;
        Ok(())
    }
}

#[test]
fn a_sink_that_fails_is_reported_once_and_the_others_go_on() {
    let folder = tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut log = RunLog::create(folder.path(), settings()).unwrap();
    // The start, and two steps.
    log.add(Box::new(Limited { left: 3, asked: Arc::clone(&asked) })).unwrap();
    let mut notes = Vec::new();
    for step in 1..=5 {
        let errors = log.event(train(step, 1.0));
        notes.extend(errors.iter().map(|error| format!("step {step}: {error}")));
    }
    let expected = "step 3: the run goes on, but limited gets no more events: it is full";
    assert_eq!((notes, asked.load(Ordering::SeqCst)), (vec![expected.to_owned()], 4));
    assert!(log.flush().is_empty());
    assert_eq!(lines(folder.path()), 6);
    assert!(log.add(Box::new(Limited { left: 0, asked })).is_err());
}

#[test]
fn a_removed_directory_does_not_end_a_run() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    let mut log = RunLog::create(&dir, settings()).unwrap();
    write(&mut log, train(1, 1.0));
    fs::remove_dir_all(&dir).unwrap();
    let mut errors = log.event(EventKind::Note { text: "n".into() });
    errors.extend(log.event(EventKind::Note { text: "n".into() }));
    assert_eq!(errors.len(), 3, "one for each file: {errors:?}");
    for error in errors {
        let Error::Off { source, .. } = &error else { panic!("{error}") };
        assert!(matches!(**source, Error::Removed { .. }), "{error}");
    }
}

/// A sink on a device where every write fails as on a full disk.
struct Full(BufWriter<File>);

impl EventSink for Full {
    fn name(&self) -> String {
        "/dev/full".to_owned()
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        writeln!(self.0, "{event:?}")
            .map_err(|source| Error::Write { path: self.name().into(), source })
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(|source| Error::Write { path: self.name().into(), source })
    }
}

#[test]
fn a_full_disk_does_not_end_a_run() {
    let Ok(device) = File::options().write(true).open("/dev/full") else {
        return eprintln!("left out: there is no /dev/full here");
    };
    let mut log = RunLog::with_sinks(Vec::new(), vec![EventKind::Start(settings())]).unwrap();
    let sink = Full(BufWriter::new(device));
    let error = log.add(Box::new(sink)).unwrap_err().to_string();
    assert_eq!(error, "cannot write /dev/full: No space left on device (os error 28)");
    let mut log = RunLog::with_sinks(Vec::new(), Vec::new()).unwrap();
    let device = File::options().write(true).open("/dev/full").unwrap();
    log.add(Box::new(Full(BufWriter::new(device)))).unwrap();
    write(&mut log, train(1, 1.0));
    let errors = log.event(EventKind::Note { text: "n".into() });
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(log.event(EventKind::Note { text: "n".into() }).is_empty());
}

#[test]
fn an_error_of_the_flushing_thread_is_returned_by_the_next_call() {
    let folder = tempdir().unwrap();
    let dir = folder.path().join("run");
    let mut log = RunLog::create(&dir, settings()).unwrap();
    write(&mut log, train(1, 1.0));
    fs::remove_dir_all(&dir).unwrap();
    // The thread notices it when it flushes.
    let mut errors = Vec::new();
    wait_until(|| {
        errors.extend(log.event(train(2, 1.0)));
        errors.len() == 3
    });
    assert!(log.event(train(3, 1.0)).is_empty());
}
