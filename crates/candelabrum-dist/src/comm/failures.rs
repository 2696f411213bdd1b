//! The failures of a rank: where they are kept, and how the other ranks learn of them.
//!
//! **Invariant** A failure of an operation that is no echo is reported to the other ranks, in whatever
//! backend and on whatever thread the operation ends ([`Failures::add`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Error;

/// The first failure of a rank's communication. All groups of the rank share it, and every later
/// operation returns it.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstFailure {
    error: Arc<OnceLock<Error>>,
    /// Whether the program has it: an operation has returned it, or the program has reported it.
    pub(super) is_told: Arc<AtomicBool>,
}

impl FirstFailure {
    /// The failure, for the program.
    pub(super) fn get(&self) -> Option<Error> {
        let error = self.error.get().cloned()?;
        self.is_told.store(true, Ordering::SeqCst);
        Some(error)
    }

    /// Stores the error, which the program gets, if it is the first one. Returns whether it is.
    pub(super) fn set(&self, error: &Error) -> bool {
        self.is_told.store(true, Ordering::SeqCst);
        self.note(error)
    }

    /// As [`Self::set`], for an error that no operation of the program returns yet.
    pub(super) fn note(&self, error: &Error) -> bool {
        self.error.set(error.clone()).is_ok()
    }
}

/// The place where the operations of a rank end that fail.
pub(super) struct Failures {
    pub(super) first: FirstFailure,
    pub(super) abort: Arc<dyn AbortSignal>,
    /// Set if another backend uses this one for its operations. It reports their failures itself, because
    /// this one does not know their names.
    pub(super) leaves_reports: AtomicBool,
    /// Whether a failure has been reported.
    reported: AtomicBool,
}

impl Failures {
    pub(super) fn new(first: FirstFailure, abort: Arc<dyn AbortSignal>) -> Self {
        Self {
            first,
            abort,
            leaves_reports: AtomicBool::default(),
            reported: AtomicBool::default(),
        }
    }

    /// Stores an error that the program gets, and reports it to the other ranks if it is the first one and
    /// no echo. This rank runs no further operation, so other ranks would wait for it, or, if they come
    /// after its deadline, would take what it did before for a success. Returns whether it is the first one.
    pub(super) fn add(&self, error: &Error) -> bool {
        let is_first = self.first.set(error);
        if is_first && !error.is_echo() && !self.leaves_reports.load(Ordering::Relaxed) {
            self.report(error);
        }
        is_first
    }

    /// Stores and reports a failure that is no operation's, or one of the backend that uses this one. Returns
    /// whether it was reported.
    pub(super) fn add_from_outside(&self, error: &Error) -> bool {
        let is_first = self.first.set(error);
        // The other backend comes with the error of an operation that has failed here before.
        let is_left = self.leaves_reports.load(Ordering::Relaxed) && !error.is_echo();
        let reports = is_first || (is_left && !self.reported.load(Ordering::SeqCst));
        if reports {
            self.report(error);
        }
        reports
    }

    fn report(&self, error: &Error) {
        self.reported.store(true, Ordering::SeqCst);
        self.abort.fail(error);
    }
}

/// Reports failures between ranks. Any thread may use it.
pub(crate) trait AbortSignal: Send + Sync {
    /// Reports to the other ranks, as far as possible, that this rank has failed. May end this
    /// process, so the caller prints the reason first.
    fn abort(&self, message: &str);

    /// Reports `error` to the other ranks, if that is possible without ending this process, because
    /// the process has not printed the reason yet. If only the thread with the queue's turn can
    /// report it, the transport's `progress` does so.
    fn fail(&self, error: &Error) {
        let _ = error;
    }

    /// The failure of another rank, if one is known. A thread that waits for something outside this
    /// backend polls it.
    fn failure(&self) -> Option<Error> {
        None
    }
}
