//! What a rank is doing, in a file that survives its death; and its death at a chosen place.
//!
//! The phases are the spans of our crates. The file has one byte for the training thread and one for the thread
//! that writes checkpoints.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The spans that are phases. The first ones are of the training thread, the others of the writing one.
pub(crate) const NAMES: [&str; 11] = [
    "load",
    "forward",
    "backward",
    "wait",
    "update",
    "evaluate",
    "checkpoint",
    "write",
    "gather",
    "publish",
    "prune",
];

/// Between the rename of a checkpoint and the end of the fsync of its directory.
pub(crate) const SYNC: &str = "sync";

/// What a rank did last: the phase of its writing thread, or else that of its training thread.
pub(crate) fn last(dir: &Path, rank: usize) -> String {
    let bytes = fs::read(dir.join(format!("phase-{rank}"))).unwrap_or_default();
    let name = |byte: Option<&u8>| match byte.copied() {
        None | Some(0) => None,
        Some(number) => Some(name_of(usize::from(number))),
    };
    name(bytes.get(1)).or_else(|| name(bytes.first())).unwrap_or("between the phases").to_owned()
}

fn name_of(number: usize) -> &'static str {
    NAMES.get(number - 1).copied().unwrap_or(SYNC)
}

/// The place where a rank kills itself: the phase, and how often it has been entered.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) phase: String,
    pub(crate) count: usize,
}

/// Notes the phases of this process.
pub(crate) struct Phases {
    file: File,
    death: Option<Place>,
    entered: AtomicUsize,
    slow_write: Duration,
}

thread_local! {
    static OPEN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Phases {
    /// Notes them in `dir`, for `rank`, which dies at `death`. It sleeps before it writes a checkpoint.
    pub(crate) fn start(dir: &Path, rank: usize, death: Option<Place>, slow_write: Duration) {
        fs::write(dir.join(format!("pid-{rank}")), std::process::id().to_string()).unwrap();
        let file = File::create(dir.join(format!("phase-{rank}"))).unwrap();
        let phases = Self { file, death, entered: AtomicUsize::new(0), slow_write };
        tracing::subscriber::set_global_default(phases).unwrap();
    }

    fn note(&self, phase: u8) {
        let is_writing = thread::current().name() == Some("candelabrum-checkpoint");
        self.file.write_all_at(&[phase], u64::from(is_writing)).unwrap();
    }
}

impl Subscriber for Phases {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && (NAMES.contains(&metadata.name()) || metadata.name() == SYNC)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        let number = NAMES.iter().position(|own| *own == name).unwrap_or(NAMES.len());
        Id::from_u64(number as u64 + 1)
    }

    fn enter(&self, id: &Id) {
        let number = id.into_u64() as u8;
        OPEN.with_borrow_mut(|open| open.push(number));
        self.note(number);
        if name_of(usize::from(number)) == "write" {
            thread::sleep(self.slow_write);
        }
        let Some(death) = &self.death else { return };
        if name_of(usize::from(number)) == death.phase
            && self.entered.fetch_add(1, Ordering::SeqCst) + 1 == death.count
        {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }

    fn exit(&self, _: &Id) {
        let outer = OPEN.with_borrow_mut(|open| {
            open.pop();
            open.last().copied().unwrap_or(0)
        });
        self.note(outer);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}
}
