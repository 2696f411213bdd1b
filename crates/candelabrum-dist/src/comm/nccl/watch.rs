//! The thread that watches the operations on the device.
//!
//! It asks for the end of the oldest operation. Meanwhile it looks for a failure of another rank,
//! for NCCL's own errors and for the deadline. On any of them it notes the failure, reports it to
//! the other ranks and aborts NCCL, because NCCL's kernels would wait for the other ranks without
//! end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::control::{NcclFailures, in_operation};
use super::flight::Flight;
use super::raw::named;
use crate::{Error, Result};

/// The first and the longest pause between two looks.
const SHORT_PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_millis(1);

/// The watch of a rank. Its drop aborts what is still under way.
pub(super) struct DeviceWatch {
    shared: Arc<WatchShared>,
    /// `Some` until the drop.
    thread: Option<JoinHandle<()>>,
}

struct WatchShared {
    failures: NcclFailures,
    deadline: Duration,
    rank: usize,
    queue: Mutex<FlightQueue>,
    /// Wakes the thread.
    given: Condvar,
    /// Wakes who waits for the end of all operations.
    emptied: Condvar,
}

#[derive(Default)]
struct FlightQueue {
    /// In the order of NCCL's stream.
    flights: VecDeque<Arc<Flight>>,
    closed: bool,
}

impl DeviceWatch {
    pub(super) fn start(failures: NcclFailures, rank: usize, deadline: Duration) -> Result<Self> {
        let (queue, given, emptied) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(WatchShared { failures, deadline, rank, queue, given, emptied });
        let watcher = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("candelabrum-nccl".to_owned())
            .spawn(move || watcher.serve())
            .map_err(|error| Error::io("start the thread that watches NCCL", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Watches an operation from now on, and keeps its memory until its end.
    pub(super) fn add(&self, flight: Arc<Flight>) {
        self.shared.queue.lock().flights.push_back(flight);
        self.shared.given.notify_one();
    }

    /// Aborts all operations, because another one could not be given to the device.
    pub(super) fn abort(&self, error: &Error) {
        self.shared.abort(error);
    }

    /// Waits for the end of all operations.
    pub(super) fn drain(&self) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        while !queue.flights.is_empty() {
            self.shared.emptied.wait(&mut queue);
        }
        drop(queue);
        self.shared.failures.check_device()
    }
}

impl Drop for DeviceWatch {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.given.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

impl WatchShared {
    fn serve(&self) {
        let mut pause = SHORT_PAUSE;
        let mut since = None;
        while let Some((flight, closed)) = self.next() {
            let failed = self.failures.check_device().is_err();
            match flight.has_passed() {
                Ok(false) => {}
                // After a failure of the driver there is no later answer.
                Err(_) if failed => self.pass(),
                Err(error) => self.fail(&flight, error),
                Ok(true) => {
                    self.pass();
                    (pause, since) = (SHORT_PAUSE, None);
                    continue;
                }
            }
            if !failed && let Err(error) = self.look(&flight, closed, &mut since) {
                self.fail(&flight, error);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONG_PAUSE);
        }
    }

    /// Waits for an operation. `None` if there is none and there will be none.
    fn next(&self) -> Option<(Arc<Flight>, bool)> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(flight) = queue.flights.front() {
                return Some((Arc::clone(flight), queue.closed));
            }
            if queue.closed {
                return None;
            }
            self.given.wait(&mut queue);
        }
    }

    /// Gives up the oldest operation and its memory.
    fn pass(&self) {
        let mut queue = self.queue.lock();
        let flight = queue.flights.pop_front();
        if queue.flights.is_empty() {
            self.emptied.notify_all();
        }
        drop(queue);
        drop(flight);
    }

    /// The reason to end the operation, if there is one. `since` is the time since which it waits
    /// for other ranks.
    fn look(&self, flight: &Flight, closed: bool, since: &mut Option<Instant>) -> Result<()> {
        self.failures.check()?;
        if closed {
            return Err(Error::Stopped { rank: self.rank });
        }
        let guard = || self.failures.check();
        let state = flight.comm.is_ready("an operation on the device");
        state.map_err(|error| named(error, &guard))?;
        if since.is_none() && !flight.has_begun()? {
            return Ok(());
        }
        let waited = since.get_or_insert_with(Instant::now).elapsed();
        if waited > self.deadline {
            return Err(flight.comm.late(flight.header.to_string(), waited));
        }
        Ok(())
    }

    /// Notes the failure of an operation, reports it and stops the device.
    fn fail(&self, flight: &Flight, error: Error) {
        let error = in_operation(error, &flight.header);
        let error = match &flight.context {
            Some(context) => {
                let error = context.explain(error);
                context.failures.first.note(&error);
                error
            }
            None => error,
        };
        if let Some(last) = self.abort(&error) {
            last.comm.rest(Some(&last.points.begun));
        }
    }

    /// Notes the failure, reports it and aborts all operations. Returns the last one.
    fn abort(&self, error: &Error) -> Option<Arc<Flight>> {
        self.failures.note(error);
        self.failures.tell(error);
        let flights: Vec<Arc<Flight>> = self.queue.lock().flights.iter().cloned().collect();
        flights.iter().for_each(|flight| flight.comm.abort());
        flights.last().cloned()
    }
}
