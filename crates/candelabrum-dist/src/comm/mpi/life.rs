//! The end of an MPI job, orderly or after a failure.
//!
//! MPI does not report to a rank that another rank has ended, and ranks hang if they wait for a
//! rank that has left. Therefore, from the initialisation of MPI on:
//!
//! - A panic on any thread is printed and then ends the job (`MPI_Abort`). Unwinding would reach
//!   `MPI_Finalize`, which waits for ranks that wait for this one.
//! - A process that exits without having left in order ends the job. So does an error: the
//!   communicator is dropped without finalising MPI, `main` prints the error, and the exit handler
//!   calls `MPI_Abort`. If the program ignores the error, the job ends after [`AFTER_FAILURE`].
//! - [`Aborter::abort`] ends the job from any thread. Its caller has printed the cause.
//!
//! All three wait for [`TO_BE_HEARD`] first: other ranks with the same error print a line too, and
//! the launcher may lose output that it has not passed on when the job ends.
//!
//! `MPI_Abort` is called at most once per process, and never after `MPI_Finalize`.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::failures::MpiFailures;
use super::raw;
use crate::Error;
use crate::comm::failures::AbortSignal;

/// Whether MPI is initialised, and nothing has begun to finalise it or to abort the job.
static LIVE: AtomicBool = AtomicBool::new(false);

/// Whether [`Aborter::abort`] has asked the thread that polls MPI to end the job.
static ABORTING: AtomicBool = AtomicBool::new(false);

/// The time that printed lines get to reach the terminal of a busy machine.
const TO_BE_HEARD: Duration = Duration::from_secs(1);

/// The time that the thread that polls MPI gets to call `MPI_Abort` itself.
const TO_BE_TAKEN: Duration = Duration::from_millis(50);

/// The time that a program may continue after its communicator has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Installs the exit handler and the panic hook, right after the initialisation of MPI.
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

/// Gives one caller the task to end MPI. Returns whether this caller got it.
pub(super) fn end() -> bool {
    LIVE.swap(false, Ordering::SeqCst)
}

/// Ends the job after [`AFTER_FAILURE`], unless the process has exited before.
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

/// Ends the job if [`Aborter::abort`] has asked for it. Threads that poll MPI call this.
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

/// Ends the job, or reports a failure of this rank, from any thread.
pub(super) struct Aborter(pub(super) Arc<MpiFailures>);

impl AbortSignal for Aborter {
    fn abort(&self, message: &str) {
        tracing::error!("ending the MPI job: {message}");
        thread::sleep(TO_BE_HEARD);
        ABORTING.store(true, Ordering::Relaxed);
        thread::sleep(TO_BE_TAKEN);
        abort_job();
    }

    fn fail(&self, error: &Error) {
        self.0.fail();
        self.0.leave(error.to_string());
    }
}

/// Reduces the timer slack, by which a sleep may be late, from Linux's 50 µs to 1 µs, for this
/// thread and for threads that it starts later.
pub(super) fn wake_on_time() {
    let shortest = std::num::NonZeroU64::new(1000);
    if let Err(error) = rustix::thread::set_current_timer_slack(shortest) {
        tracing::debug!("timer slack stays as it is: {error}");
    }
}
