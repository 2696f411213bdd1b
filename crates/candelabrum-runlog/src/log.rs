//! The log that rank 0 of a training writes: every event goes to several sinks.
//!
//! A log must never end a training. A sink that fails is turned off, and its error is returned once, for
//! a note to the user. A thread flushes what a sink has kept in memory for a second.

use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{
    CSV_FILE, Csv, Error, Event, EventKind, EventSink, JSON_LINES_FILE, JsonLines, Result,
    ResumePoint, Settings, TensorBoard,
};

/// The longest time that an event stays in memory only.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// Gives each event of a run to its sinks.
///
/// Training events stay in memory for up to a second. Evaluations, epochs, checkpoints and all others
/// are in the files when [`event`](Self::event) returns. Dropping the log flushes it.
#[must_use]
pub struct RunLog {
    shared: Arc<SharedSinks>,
    /// The event that sinks added later begin with.
    opening: Vec<Event>,
    flusher: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedSinks {
    state: Mutex<SinksState>,
    changed: Condvar,
}

#[derive(Default)]
struct SinksState {
    sinks: Vec<Box<dyn EventSink>>,
    /// The errors that were not returned yet.
    errors: Vec<Error>,
    /// When the oldest event that is only in memory came.
    waiting: Option<Instant>,
    is_over: bool,
}

impl RunLog {
    /// Begins the log of a new run in a directory, which is made if it does not exist:
    /// [`JsonLines`], [`Csv`] and [`TensorBoard`].
    ///
    /// # Errors
    /// If the directory has a log already, or if it cannot be written.
    pub fn create(dir: &Path, settings: Settings) -> Result<Self> {
        make(dir)?;
        // Nothing is left behind where only one of the files is in the way.
        for path in [JSON_LINES_FILE, CSV_FILE].map(|name| dir.join(name)) {
            if path.exists() {
                return Err(Error::Exists { path });
            }
        }
        let sinks: Vec<Box<dyn EventSink>> = vec![
            Box::new(JsonLines::create(dir)?),
            Box::new(Csv::create(dir)?),
            Box::new(TensorBoard::create(dir)?),
        ];
        Self::with_sinks(sinks, vec![EventKind::Start(settings)])
    }

    /// Continues the log in a directory, from a checkpoint on. For readers, the events of later steps no
    /// longer count. If the directory has no log, such as after its removal, a new one begins.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn append(dir: &Path, resume: ResumePoint) -> Result<Self> {
        make(dir)?;
        let (lines, length, torn) = JsonLines::append(dir)?;
        let mut opening = Vec::new();
        if length == 0 {
            opening.push(EventKind::Start(resume.settings.clone()));
        }
        opening.push(EventKind::Resume(resume));
        if torn > 0 {
            let text =
                format!("the log ended with an incomplete line of {torn} bytes, which was removed");
            opening.push(EventKind::Note { text });
        }
        let csv = Box::new(Csv::append(dir)?);
        Self::with_sinks(vec![Box::new(lines), csv, Box::new(TensorBoard::create(dir)?)], opening)
    }

    /// A log with these sinks only. They get these events first.
    ///
    /// # Errors
    /// If a sink does not take the first events, or if the system refuses a thread.
    pub fn with_sinks(mut sinks: Vec<Box<dyn EventSink>>, opening: Vec<EventKind>) -> Result<Self> {
        let opening: Vec<Event> = opening.into_iter().map(Event::now).collect();
        sinks.iter_mut().try_for_each(|sink| open(&mut **sink, &opening))?;
        let shared = Arc::new(SharedSinks::default());
        shared.state.lock().sinks = sinks;
        let for_thread = Arc::clone(&shared);
        let flusher = thread::Builder::new()
            .name("runlog".to_owned())
            .spawn(move || for_thread.flush_when_due())
            .map_err(|source| Error::Thread { source })?;
        Ok(Self { shared, opening, flusher: Some(flusher) })
    }

    /// Adds a sink. It gets the first events and all from now on.
    ///
    /// # Errors
    /// If it does not take the first events. The log goes on without it.
    pub fn add(&mut self, mut sink: Box<dyn EventSink>) -> Result<()> {
        open(&mut *sink, &self.opening)?;
        self.shared.state.lock().sinks.push(sink);
        Ok(())
    }

    /// Writes an event. Returns the errors of sinks that got no further events because of them. Each error
    /// is returned once: print it as a note.
    #[must_use = "each error should be printed once, as a note"]
    pub fn event(&mut self, kind: EventKind) -> Vec<Error> {
        let may_wait = matches!(kind, EventKind::Train(_));
        let event = Event::now(kind);
        let mut state = self.shared.state.lock();
        state.each(|sink| sink.event(&event));
        if may_wait {
            if state.waiting.is_none() {
                state.waiting = Some(Instant::now());
                self.shared.changed.notify_one();
            }
        } else {
            state.flush();
        }
        mem::take(&mut state.errors)
    }

    /// Writes what is still in memory. Returns errors as [`event`](Self::event) does.
    #[must_use = "each error should be printed once, as a note"]
    pub fn flush(&mut self) -> Vec<Error> {
        let mut state = self.shared.state.lock();
        state.flush();
        mem::take(&mut state.errors)
    }
}

/// Makes the directory of a log.
fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(|source| {
        let source = match source.kind() {
            io::ErrorKind::AlreadyExists => io::Error::other("it is no directory"),
            _ => source,
        };
        Error::Write { path: dir.to_owned(), source }
    })
}

fn open(sink: &mut dyn EventSink, opening: &[Event]) -> Result<()> {
    opening.iter().try_for_each(|event| sink.event(event))?;
    sink.flush()
}

impl SinksState {
    /// Does something with each sink, and turns off those with which it fails.
    fn each(&mut self, mut act: impl FnMut(&mut dyn EventSink) -> Result<()>) {
        let Self { sinks, errors, .. } = self;
        sinks.retain_mut(|sink| match act(&mut **sink) {
            Ok(()) => true,
            Err(error) => {
                errors.push(Error::Off { sink: sink.name(), source: Box::new(error) });
                false
            }
        });
    }

    fn flush(&mut self) {
        self.waiting = None;
        self.each(|sink| sink.flush());
    }
}

impl SharedSinks {
    /// The work of the thread, until the log is dropped.
    fn flush_when_due(&self) {
        let mut state = self.state.lock();
        while !state.is_over {
            match state.waiting.map(|since| since + FLUSH_AFTER) {
                None => self.changed.wait(&mut state),
                Some(due) if due <= Instant::now() => state.flush(),
                Some(due) => drop(self.changed.wait_until(&mut state, due)),
            }
        }
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.flush();
        state.is_over = true;
        drop(state);
        self.shared.changed.notify_one();
        // The thread has no more work, and a panic of a sink in it was printed by the thread.
        drop(self.flusher.take().map(JoinHandle::join));
    }
}

impl fmt::Debug for RunLog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock();
        let names: Vec<String> = state.sinks.iter().map(|sink| sink.name()).collect();
        out.debug_struct("RunLog").field("sinks", &names).finish_non_exhaustive()
    }
}
