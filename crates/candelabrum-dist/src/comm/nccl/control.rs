//! The communicator beside NCCL's: headers, short operations on host memory, messages, and failures.
//!
//! Each of NCCL's groups has a group of the control of its own. A rank that leaves NCCL's group
//! leaves that group at once, so a rank that still waits for it there gets the error that it has
//! finished. The world of the control lives longer, because it carries the failures until
//! NCCL's communicators have ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::Device;
use parking_lot::Mutex;

use super::memory::to_device;
use crate::comm::collective::CollectiveHeader;
use crate::comm::failures::{AbortSignal, FirstFailure};
use crate::comm::messages::Messages;
use crate::comm::work::BackendWork;
use crate::comm::{Collective, Group, Payload, Pending};
use crate::{Error, Result};

/// The failures in a rank's world. A clone is cheap.
#[derive(Clone)]
pub(super) struct NcclFailures {
    world: Group,
    /// This rank's first failure, which its program gets as an error.
    failure: FirstFailure,
    /// Whether this rank's program has reported a failure itself.
    reported: Arc<AtomicBool>,
    /// The failure for which the operations on the device were aborted.
    device: Arc<OnceLock<Error>>,
}

impl NcclFailures {
    pub(super) fn new(world: Group, failure: FirstFailure) -> Self {
        Self { world, failure, reported: Arc::default(), device: Arc::default() }
    }

    /// The failure of any rank as an error.
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// The failure for which the operations on the device were aborted, as an error.
    pub(super) fn check_device(&self) -> Result<()> {
        self.device.get().cloned().map_or(Ok(()), Err)
    }

    /// Notes the failure for which the operations on the device are aborted next.
    pub(super) fn note(&self, error: &Error) {
        // The first failure is the one that is reported.
        let _ = self.device.set(error.clone());
    }

    /// Whether this rank's program knows of a failure.
    pub(super) fn is_known_to_the_program(&self) -> bool {
        self.failure.is_told.load(Ordering::SeqCst) || self.reported.load(Ordering::SeqCst)
    }

    /// The failure that an operation has returned to this rank's program.
    pub(super) fn returned(&self) -> Option<Error> {
        let is_told = self.failure.is_told.load(Ordering::SeqCst);
        is_told.then(|| self.failure.get()).flatten()
    }

    /// Reports a failure of this rank, because the other ranks would wait for this rank.
    pub(super) fn tell(&self, error: &Error) {
        if !error.is_echo() {
            self.world.fail(error);
        }
    }
}

impl AbortSignal for NcclFailures {
    fn abort(&self, message: &str) {
        self.reported.store(true, Ordering::SeqCst);
        self.world.abort(message);
    }

    fn fail(&self, error: &Error) {
        self.reported.store(true, Ordering::SeqCst);
        self.world.fail(error);
    }

    fn failure(&self) -> Option<Error> {
        self.device.get().cloned().or_else(|| self.world.failure())
    }
}

/// The control's group of the ranks of one of NCCL's groups. A clone is cheap.
#[derive(Clone)]
pub(super) struct ControlGroup {
    /// `None` after this rank has left the group.
    group: Arc<Mutex<Option<Group>>>,
    /// This process's number in the world.
    rank: usize,
}

impl ControlGroup {
    pub(super) fn new(group: Group) -> Self {
        let rank = group.ranks().get(group.rank()).copied().unwrap_or_default();
        Self { group: Arc::new(Mutex::new(Some(group))), rank }
    }

    /// Runs `work`, a part of the operation `during`. An error names this operation, not the one of
    /// the control.
    pub(super) fn run<T>(
        &self,
        during: &dyn ToString,
        work: impl FnOnce(&Group) -> Result<T>,
    ) -> Result<T> {
        let group = self.group.lock().clone();
        let group = group.ok_or(Error::Stopped { rank: self.rank })?;
        work(&group).map_err(|error| in_operation(error, during))
    }

    /// Leaves the group.
    pub(super) fn leave(&self) {
        self.group.lock().take();
    }
}

/// Names the operation in an error of the control, which names an operation of its own.
pub(super) fn in_operation(mut error: Error, operation: &dyn ToString) -> Error {
    if let Error::PeerDied { during, .. }
    | Error::PeerLeft { during, .. }
    | Error::Timeout { during, .. } = &mut error
    {
        *during = operation.to_string();
    }
    error
}

/// Sends messages over the control, through host memory.
pub(super) struct OverControl {
    pub(super) control: ControlGroup,
    pub(super) device: Device,
}

impl Messages for OverControl {
    fn start(&self, header: CollectiveHeader, payload: Payload) -> Box<dyn BackendWork> {
        let (op, on_device) = (header.op, payload.is_on_device());
        let started = self.control.run(&header, |group| {
            let payload = if on_device { payload.to_host()?.into() } else { payload };
            Ok(group.start(op, payload))
        });
        let inner = match started {
            Ok(inner) => inner,
            Err(error) => return Box::new(Err(error)),
        };
        let receives = !matches!(op, Collective::Send { .. });
        let device = (on_device && receives).then(|| self.device.clone());
        Box::new(ControlMessage { inner, header, device })
    }
}

/// A message of the control.
struct ControlMessage {
    inner: Pending,
    header: CollectiveHeader,
    /// The device to which the received numbers are copied, if they were asked for there.
    device: Option<Device>,
}

impl BackendWork for ControlMessage {
    fn is_complete(&mut self) -> bool {
        self.inner.is_complete()
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let Self { inner, header, device } = *self;
        let message = inner.wait().map_err(|error| in_operation(error, &header))?;
        let Some(device) = device else { return Ok(message) };
        let copy = to_device(&device, &message)?;
        Ok(copy.with_source(message.source().unwrap_or_default()))
    }
}
