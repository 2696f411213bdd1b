//! The end of an MPI job, in order or not.
//!
//! MPI has no way to tell a rank that another has ended, and a rank that leaves while others wait for
//! it hangs them for ever. Therefore, from the moment MPI is initialised:
//!
//! - a panic, on whichever thread, ends the job (`MPI_Abort`) after it has been printed: unwinding
//!   would reach `MPI_Finalize`, which waits for ranks that wait for this one;
//! - a process that exits without having left in order ends the job. This is also how an error
//!   does it: the communicator is dropped without finalising, `main` prints the error, and the
//!   exit handler calls `MPI_Abort`. A program that swallows the error and goes on has
//!   [`AFTER_FAILURE`] until the job is ended all the same;
//! - [`Aborter::abort`] ends it from any thread. Who calls it has printed why.
//!
//! All wait [`TO_BE_HEARD`] first: ranks that got the same error have a line to print too, and what
//! was printed is on its way through the launcher, which may lose it when the job is ended.
//!
//! `MPI_Abort` is called once per process, and never after `MPI_Finalize`.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::leave::Job;
use super::raw;
use crate::Error;
use crate::comm::transport::Abort;

/// Whether MPI is initialised and this process still owes it an end.
static LIVE: AtomicBool = AtomicBool::new(false);

/// Whether a thread waits for the one that is in MPI to end the job.
static ABORTING: AtomicBool = AtomicBool::new(false);

/// How long messages have to reach the terminal, on a machine that has much else to do.
const TO_BE_HEARD: Duration = Duration::from_secs(1);

/// How long a thread that is in MPI has to call `MPI_Abort` itself.
const TO_BE_TAKEN: Duration = Duration::from_millis(50);

/// How long a program may go on after its communicator failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// MPI has just been initialised: from here on every end of the process is answered for.
pub(super) fn begin() {
    LIVE.store(true, Ordering::SeqCst);
    raw::at_exit(at_exit);
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        previous(info);
        thread::sleep(TO_BE_HEARD);
        abort_job();
    }));
}

/// Takes the duty to end MPI, for one caller: `true` if it was still open.
pub(super) fn end() -> bool {
    LIVE.swap(false, Ordering::SeqCst)
}

/// The communicator has failed and is gone: the process will exit soon, or be ended.
pub(super) fn failed() {
    let watch = || {
        thread::sleep(AFTER_FAILURE);
        abort_job();
    };
    let name = "candelabrum-mpi-end".to_owned();
    if let Err(error) = thread::Builder::new().name(name).spawn(watch) {
        tracing::error!("start a thread that ends the job: {error}");
        abort_job();
    }
}

/// Asked by a thread that waits for MPI.
pub(super) fn abort_if_asked() {
    if ABORTING.load(Ordering::Relaxed) {
        abort_job();
    }
}

fn abort_job() {
    if end() {
        raw::abort_job();
    }
}

extern "C" fn at_exit() {
    if LIVE.load(Ordering::SeqCst) {
        thread::sleep(TO_BE_HEARD);
        abort_job();
    }
}

/// Ends the job from any thread.
pub(super) struct Aborter(pub(super) Arc<Job>);

impl Abort for Aborter {
    fn abort(&self, message: &str) {
        tracing::error!("ending the MPI job: {message}");
        thread::sleep(TO_BE_HEARD);
        ABORTING.store(true, Ordering::Relaxed);
        thread::sleep(TO_BE_TAKEN);
        abort_job();
    }

    fn fail(&self, error: &Error) {
        self.0.fail();
        self.0.news.leave(error.to_string());
    }
}

/// Lets the sleeps of this thread, and of those that it starts from now on, be as short as asked for:
/// the system rounds them up to 50 µs else.
pub(super) fn wake_on_time() {
    let shortest = std::num::NonZeroU64::new(1000);
    if let Err(error) = rustix::thread::set_current_timer_slack(shortest) {
        tracing::debug!("timer slack stays as it is: {error}");
    }
}
