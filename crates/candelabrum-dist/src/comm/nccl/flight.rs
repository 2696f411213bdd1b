//! An operation that the device carries out.
//!
//! **Invariant** The memory of the operation belongs to its [`Flight`], or its program has it after
//! the memory's own stream was told to wait for the operation. The [`DeviceWatch`](super::watch::DeviceWatch)
//! keeps the flight until the device has passed the end of the operation. So the memory is given
//! back only after that, whatever the program does with its part.

use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::cuda::cuda_error;
use cudarc::driver::{CudaEvent, CudaSlice};
use parking_lot::Mutex;

use super::control::NcclFailures;
use super::memory::{self, payload_of, slice_of};
use super::raw::{NcclComm, StreamEvents};
use crate::comm::collective::CollectiveHeader;
use crate::comm::group_info::OpContext;
use crate::comm::work::BackendWork;
use crate::comm::{ElementType, Payload};
use crate::{Error, Result};

/// The first and the longest pause between two questions to the device.
const SHORT_PAUSE: Duration = Duration::from_micros(5);
const LONG_PAUSE: Duration = Duration::from_micros(200);

/// The memory of an operation.
#[derive(Default)]
pub(super) struct OperationMemory {
    /// The numbers of this rank, if they are on the device.
    pub(super) payload: Option<Payload>,
    /// The copy of this rank's numbers, if they are on the host.
    pub(super) input: Option<CudaSlice<u8>>,
    pub(super) output: Option<CudaSlice<u8>>,
}

impl OperationMemory {
    /// The memories of the calls. There is always an input.
    pub(super) fn operands(&mut self) -> Option<(&mut CudaSlice<u8>, Option<&mut CudaSlice<u8>>)> {
        let input = match &mut self.payload {
            Some(payload) => slice_of(payload),
            None => self.input.as_mut(),
        };
        Some((input?, self.output.as_mut()))
    }
}

/// The part of the memory that is the result.
pub(super) enum ResultMemory {
    Nothing,
    Input,
    Output { len: usize, parts: Option<Vec<usize>> },
}

/// An operation under way.
pub(super) struct Flight {
    pub(super) comm: Arc<NcclComm>,
    pub(super) failures: NcclFailures,
    pub(super) header: CollectiveHeader,
    /// The words for an error, if nobody waits in the operation who has them.
    pub(super) context: Option<Arc<OpContext>>,
    pub(super) points: StreamEvents,
    pub(super) held: Mutex<OperationMemory>,
}

impl Flight {
    /// Whether the device has passed the end of the operation.
    pub(super) fn has_passed(&self) -> Result<bool> {
        has_passed(&self.points.done)
    }

    /// Whether the device has passed the work of this rank that the operation waits for.
    pub(super) fn has_begun(&self) -> Result<bool> {
        has_passed(&self.points.begun)
    }

    /// Whether the operation is complete. A failure of any rank is an error.
    ///
    /// An abort ends the operation, too. The failure is noted before it, so the question for the
    /// failure comes after the question for the end.
    fn is_complete(&self) -> Result<bool> {
        let passed = self.has_passed();
        self.failures.check_device()?;
        passed
    }

    /// Waits for the end. The watch looks for failures and the deadline meanwhile.
    pub(super) fn wait(&self) -> Result<()> {
        let mut pause = SHORT_PAUSE;
        while !self.is_complete()? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONG_PAUSE);
        }
        Ok(())
    }

    /// The output of an operation that is complete.
    pub(super) fn output(&self) -> Result<CudaSlice<u8>> {
        self.held.lock().output.take().ok_or_else(lost)
    }

    /// Input and output of an operation that is complete and had its numbers from the host.
    pub(super) fn staging(&self) -> Result<(CudaSlice<u8>, CudaSlice<u8>)> {
        let mut held = self.held.lock();
        held.input.take().zip(held.output.take()).ok_or_else(lost)
    }
}

impl ResultMemory {
    /// Takes the result out of the memory. The rest stays there.
    pub(super) fn take(self, held: &mut OperationMemory, element: ElementType) -> Result<Payload> {
        match self {
            Self::Nothing => Ok(Payload::zeros(element, 0)),
            Self::Input => held.payload.take().ok_or_else(lost),
            Self::Output { len, parts } => {
                let result = payload_of(element, len, held.output.take().ok_or_else(lost)?);
                match parts {
                    Some(parts) => result.with_parts(parts),
                    None => Ok(result),
                }
            }
        }
    }
}

pub(super) fn lost() -> Error {
    Error::Protocol { what: "an operation without its memory".to_owned() }
}

fn has_passed(event: &CudaEvent) -> Result<bool> {
    let bound = event.context().bind_to_thread();
    bound.map_err(|error| cuda_error("cuCtxSetCurrent", error))?;
    Ok(event.try_is_complete().map_err(|error| cuda_error("cuEventQuery", error))?)
}

/// The pending result of a flight.
pub(super) struct NcclWork {
    pub(super) flight: Arc<Flight>,
    pub(super) gives: ResultMemory,
}

impl BackendWork for NcclWork {
    fn is_complete(&mut self) -> bool {
        self.flight.is_complete().unwrap_or(true)
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let Self { flight, gives } = *self;
        flight.wait()?;
        gives.take(&mut flight.held.lock(), flight.header.element)
    }

    fn wait_on_stream(self: Box<Self>) -> Result<Payload> {
        let Self { flight, gives } = *self;
        flight.failures.check_device()?;
        let mut result = gives.take(&mut flight.held.lock(), flight.header.element)?;
        memory::wait_for(&mut result, &flight.points.done)?;
        Ok(result)
    }
}
