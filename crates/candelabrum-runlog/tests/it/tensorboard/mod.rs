//! TensorBoard event files: decoded byte by byte here, and read by TensorBoard itself where Python has
//! it.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_runlog::{EpochEnd, EventKind, Measured, ResumePoint, RunLog, Settings};
use tempfile::tempdir;

use self::decode::{Decoded, decode};

mod decode;
mod python;

fn measured(step: u64, pairs: &[(&str, f64)]) -> Measured {
    let values = pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Measured { step, epoch: 0, values }
}

/// A run of three steps that was resumed from step 2: one event file for each process.
fn write_run(dir: &Path) -> Vec<PathBuf> {
    let settings = Settings::new(1, "0.1.0");
    let mut log = RunLog::create(dir, settings.clone()).unwrap();
    for (step, loss) in [(1, 0.5), (2, f64::NAN), (3, 99.0)] {
        let values = measured(step, &[("loss", loss), ("learning_rate", 0.0)]);
        assert!(log.event(EventKind::Train(values)).is_empty());
    }
    drop(log);
    let resume = ResumePoint { step: 2, epoch: 0, from: "checkpoint".into(), settings };
    let mut log = RunLog::append(dir, resume).unwrap();
    let infinite = measured(3, &[("loss", f64::INFINITY), ("learning_rate", 0.25)]);
    assert!(log.event(EventKind::Train(infinite)).is_empty());
    let accuracy = measured(3, &[("accuracy", 0.75)]);
    assert!(log.event(EventKind::Evaluation(accuracy)).is_empty());
    let values = [("bytes_sent_per_step".to_owned(), 4096.0)].into();
    let end = EpochEnd { epoch: 0, step: 3, seconds: 1.5, dist_option: None, values };
    assert!(log.event(EventKind::Epoch(end)).is_empty());
    drop(log);
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut files: Vec<PathBuf> = entries.filter(|path| name(path).contains("tfevents")).collect();
    files.sort();
    files
}

fn scalar(step: i64, tag: &str, value: f32) -> Decoded {
    Decoded::Scalar { step, tag: tag.to_owned(), value }
}

#[test]
fn every_byte_of_a_file_is_what_the_format_says() {
    let folder = tempdir().unwrap();
    let files = write_run(folder.path());
    assert_eq!(files.len(), 2, "{files:?}");
    let [first, second] = [0, 1].map(|i| decode(&fs::read(&files[i]).unwrap()));
    let version = Decoded::FileVersion("brain.Event:2".to_owned());

    let of_first = [
        version.clone(),
        scalar(1, "train/learning_rate", 0.0),
        scalar(1, "train/loss", 0.5),
        scalar(2, "train/learning_rate", 0.0),
        scalar(2, "train/loss", f32::NAN),
        scalar(3, "train/learning_rate", 0.0),
        scalar(3, "train/loss", 99.0),
    ];
    // NaN differs from itself, but not its text.
    assert_eq!(format!("{first:?}"), format!("{of_first:?}"));
    let of_second = [
        version,
        Decoded::Session { step: 3, status: 1 },
        scalar(3, "train/learning_rate", 0.25),
        scalar(3, "train/loss", f32::INFINITY),
        scalar(3, "evaluation/accuracy", 0.75),
        scalar(3, "epoch/bytes_sent_per_step", 4096.0),
        scalar(3, "epoch/seconds", 1.5),
    ];
    assert_eq!(second, of_second);
}

#[test]
fn tensorboard_reads_every_scalar() {
    let Some(python) = python::with_tensorboard() else {
        eprintln!("left out: no Python here has TensorBoard (`cargo xtask setup --pytorch`)");
        return;
    };
    let folder = tempdir().unwrap();
    write_run(folder.path());
    let read = python::read_scalars(&python, folder.path());
    // Step 3 counts once, as it was after the resume.
    let expected = "\
        epoch/bytes_sent_per_step 3 4096.0\n\
        epoch/seconds 3 1.5\n\
        evaluation/accuracy 3 0.75\n\
        train/learning_rate 1 0.0\n\
        train/learning_rate 2 0.0\n\
        train/learning_rate 3 0.25\n\
        train/loss 1 0.5\n\
        train/loss 2 nan\n\
        train/loss 3 inf\n";
    assert_eq!(read, expected);
}
