//! Safe wrappers of NCCL's calls. Only this file of the backend has `unsafe` code.
//!
//! cudarc's own `Comm` hides its handle, so it can neither be aborted nor asked for errors, and it
//! checks no lengths. Therefore this file wraps `cudarc::nccl::sys`.
//!
//! **Invariant (handle)** `NcclComm::handle` was returned by a successful `ncclCommInitRankConfig`
//! or `ncclCommSplit`, and has been neither destroyed nor aborted. The methods that destroy or
//! abort a communicator first take the handle out of this field.
//!
//! **Invariant (one at a time)** NCCL lets any thread use a communicator, but only one thread at a
//! time. Every call that takes the handle is made while the lock of this field is held. No call
//! waits for another rank, so the lock is held for a short time.
//!
//! **Invariant (memory)** A call that is under way on the device reads and writes memory that the
//! caller of [`NcclComm::launch`] keeps until the device has passed [`StreamEvents::done`]. The caller of
//! a launch that has failed keeps it until [`NcclComm::rest`] has returned.
//!
//! **Invariant (operands)** [`NcclComm::launch`] has checked each call's operands
//! ([`check`](super::calls::check)).
//!
//! No call blocks. Communicators are made with `blocking = 0`, so each call may return
//! `ncclInProgress`. Then the state is polled until it changes, or until a deadline.

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candelabrum_memory::cuda::cuda_error;
use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DriverError, sys as cuda};
use cudarc::nccl::sys;
use parking_lot::Mutex;

use super::calls::{ByteRange, CallMemory, NcclCall, check};
use crate::comm::{ElementType, ReduceOp};
use crate::{Error, Result};

/// Bytes of the id by which ranks find each other.
pub(super) const ID_BYTES: usize = 128;

/// The version of NCCL whose `ncclConfig_t` these bindings have: 2.30.0. An older library uses
/// `size` and reads only the part that it knows.
const CONFIG_VERSION: u32 = 23_000;

/// `NCCL_API_MAGIC`.
const CONFIG_MAGIC: u32 = 0xcafe_beef;

/// `NCCL_CONFIG_UNDEF_INT`: NCCL's own choice.
const UNDEFINED: i32 = i32::MIN;

/// `NCCL_SPLIT_NOCOLOR`: this rank joins no group.
const NO_COLOUR: i32 = -1;

/// The first pause between two polls. The pauses grow up to `LONG_PAUSE`.
const SHORT_PAUSE: Duration = Duration::from_micros(5);
const LONG_PAUSE: Duration = Duration::from_micros(200);

/// The time in which aborted kernels must stop.
const TO_STOP: Duration = Duration::from_secs(10);

/// The least time in which NCCL may make a communicator. It loads its kernels and opens its connections then, which
/// takes seconds, however soon the ranks answer each other. A rank that is missing is found before, by the control.
const TO_START: Duration = Duration::from_secs(120);

/// The time in which the control may report the reason for an error of NCCL.
const TO_BE_NAMED: Duration = Duration::from_millis(300);

/// The check that runs while an operation is under way. Its error ends the operation.
pub(super) type ErrorCheck<'a> = &'a dyn Fn() -> Result<()>;

/// One communicator of NCCL.
pub(super) struct NcclComm {
    /// `None` after the communicator has ended or was aborted.
    handle: Mutex<Option<Handle>>,
    /// This process's number in the world, for errors.
    rank: usize,
    world_size: usize,
    deadline: Duration,
    stream: Arc<CudaStream>,
}

struct Handle(sys::ncclComm_t);

// SAFETY: NCCL's communicators belong to no thread ("Thread Safety" in its user guide: primitives
// are not thread-safe, but may be called from several threads under mutual exclusion). Invariant
// (one at a time).
unsafe impl Send for Handle {}

/// The points of NCCL's stream around an operation.
pub(super) struct StreamEvents {
    /// Before the operation, after the work that it waits for on this rank.
    pub(super) begun: CudaEvent,
    /// After the operation.
    pub(super) done: CudaEvent,
}

impl NcclComm {
    /// Joins `world_size` ranks that all have the same `id`.
    pub(super) fn init(
        id: &[u8; ID_BYTES],
        rank: usize,
        world_size: usize,
        stream: Arc<CudaStream>,
        deadline: Duration,
        guard: ErrorCheck<'_>,
    ) -> Result<Self> {
        bind(&stream)?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as _) };
        let (ranks, own) = (int(world_size)?, int(rank)?);
        let mut config = config();
        let mut handle = ptr::null_mut();
        // SAFETY: both pointers are to values of this frame, which NCCL reads and writes before it
        // returns: it stores the handle at once and copies the configuration.
        let code = unsafe {
            sys::ncclCommInitRankConfig(&raw mut handle, ranks, id, own, &raw mut config)
        };
        let handle = Mutex::new((!handle.is_null()).then_some(Handle(handle)));
        let comm = Self { handle, rank, world_size, deadline, stream };
        comm.started("ncclCommInitRankConfig", code, guard)?;
        Ok(comm)
    }

    /// Divides the ranks into groups. Ranks of the same colour form a group, in the order of the
    /// ranks given. `group` is the colour and the rank in the group; `None` for a rank that joins
    /// no group.
    pub(super) fn split(
        &self,
        group: Option<(usize, usize)>,
        guard: ErrorCheck<'_>,
    ) -> Result<Option<Self>> {
        bind(&self.stream)?;
        let (colour, key) = match group {
            Some((colour, rank)) => (int(colour)?, int(rank)?),
            None => (NO_COLOUR, 0),
        };
        // NCCL stores the handle when the group is complete, which may be after this call returns.
        let place: *mut sys::ncclComm_t = Box::into_raw(Box::new(ptr::null_mut()));
        let mut config = config();
        // SAFETY: invariant (handle). `place` is freed below only after NCCL has reported that it
        // has finished with it; the configuration is copied.
        let code = self.with(|parent| unsafe {
            sys::ncclCommSplit(parent, colour, key, place, &raw mut config)
        })?;
        // If the split fails, `place` is leaked: eight bytes, once, before the job ends.
        self.started("ncclCommSplit", code, guard)?;
        // SAFETY: `place` came out of `Box::into_raw`, and the state of the parent is no longer "in
        // progress", so NCCL no longer writes to it.
        let handle = *unsafe { Box::from_raw(place) };
        if group.is_none() {
            return Ok(None);
        }
        let handle = Mutex::new((!handle.is_null()).then_some(Handle(handle)));
        let (rank, deadline, stream) = (self.rank, self.deadline, Arc::clone(&self.stream));
        let mut made = Self { handle, rank, world_size: 0, deadline, stream };
        made.started("ncclCommSplit", sys::ncclResult_t::ncclInProgress, guard)?;
        made.world_size = made.count()?;
        Ok(Some(made))
    }

    fn count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: invariant (handle); the pointer is to a value of this frame.
        let code = self.with(|handle| unsafe { sys::ncclCommCount(handle, &raw mut count) })?;
        match code {
            sys::ncclResult_t::ncclSuccess => Ok(usize::try_from(count).unwrap_or(0)),
            failed => Err(self.error("ncclCommCount", failed)),
        }
    }

    /// Gives `calls` on the two memories to NCCL's stream, after the work on the input up to `ready`
    /// and all work so far on the output. Does not wait for the device. See invariant (memory).
    ///
    /// After an error the communicator must be aborted, because other ranks may wait for this one.
    pub(super) fn launch(
        &self,
        element: ElementType,
        calls: &[NcclCall],
        (input, ready): (&mut CudaSlice<u8>, Option<&CudaEvent>),
        mut output: Option<&mut CudaSlice<u8>>,
        guard: ErrorCheck<'_>,
    ) -> Result<StreamEvents> {
        let room = output.as_ref().map_or(0, |output| output.len());
        check(element, calls, self.world_size, input.len(), room)?;
        bind(&self.stream)?;
        let stream = &self.stream;
        let joined = match ready {
            Some(ready) => stream.wait(ready),
            None => join(stream, input.stream()),
        };
        joined
            .and_then(|()| output.as_ref().map_or(Ok(()), |output| join(stream, output.stream())))
            .map_err(|error| cuda_error("cuStreamWaitEvent", error))?;
        let begun = self.point()?;
        let (input_at, _input_guard) = input.device_ptr_mut(stream);
        let output_guard = output.as_mut().map(|output| output.device_ptr_mut(stream));
        let output_at = output_guard.as_ref().map_or(0, |(at, _)| *at);
        let at = |operand: &ByteRange| {
            let base = match operand.side {
                CallMemory::Input => input_at,
                CallMemory::Output => output_at,
            };
            base + operand.bytes.start as cuda::CUdeviceptr
        };
        let code = self.with(|handle| self.group(handle, element, calls, &at))?;
        self.settled("an operation of NCCL", code, guard)?;
        Ok(StreamEvents { begun, done: self.point()? })
    }

    /// A point after all work that NCCL's stream has so far.
    fn point(&self) -> Result<CudaEvent> {
        let event = self.stream.record_event(None);
        Ok(event.map_err(|error| cuda_error("cuEventRecord", error))?)
    }

    /// Makes the calls as one group, in which none waits for another.
    fn group(
        &self,
        comm: sys::ncclComm_t,
        element: ElementType,
        calls: &[NcclCall],
        at: &dyn Fn(&ByteRange) -> cuda::CUdeviceptr,
    ) -> sys::ncclResult_t {
        let progresses = |code| {
            matches!(code, sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress)
        };
        // SAFETY: no argument.
        let code = unsafe { sys::ncclGroupStart() };
        if !progresses(code) {
            return code;
        }
        let codes = calls.iter().map(|call| self.enqueue(comm, element, call, at));
        let failed = codes.into_iter().find(|&code| !progresses(code));
        // SAFETY: it closes the group that was opened above on this thread.
        let code = unsafe { sys::ncclGroupEnd() };
        failed.unwrap_or(code)
    }

    fn enqueue(
        &self,
        comm: sys::ncclComm_t,
        element: ElementType,
        call: &NcclCall,
        at: &dyn Fn(&ByteRange) -> cuda::CUdeviceptr,
    ) -> sys::ncclResult_t {
        let kind = data_type(element);
        let size = element.size();
        let stream = self.stream.cu_stream() as sys::cudaStream_t;
        let rank = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
        match call {
            NcclCall::AllReduce { values, op } => {
                let (here, count) = (at(values), values.bytes.len() / size);
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclAllReduce(
                        here as *const _,
                        here as *mut _,
                        count,
                        kind,
                        red_op(*op),
                        comm,
                        stream,
                    )
                }
            }
            NcclCall::Reduce { values, op, root } => {
                let (here, count) = (at(values), values.bytes.len() / size);
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclReduce(
                        here as *const _,
                        here as *mut _,
                        count,
                        kind,
                        red_op(*op),
                        rank(*root),
                        comm,
                        stream,
                    )
                }
            }
            NcclCall::Broadcast { values, root } => {
                let (here, count) = (at(values), values.bytes.len() / size);
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclBroadcast(
                        here as *const _,
                        here as *mut _,
                        count,
                        kind,
                        rank(*root),
                        comm,
                        stream,
                    )
                }
            }
            NcclCall::AllGather { from, to } => {
                let count = from.bytes.len() / size;
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclAllGather(
                        at(from) as *const _,
                        at(to) as *mut _,
                        count,
                        kind,
                        comm,
                        stream,
                    )
                }
            }
            NcclCall::ReduceScatter { from, to, op } => {
                let count = to.bytes.len() / size;
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclReduceScatter(
                        at(from) as *const _,
                        at(to) as *mut _,
                        count,
                        kind,
                        red_op(*op),
                        comm,
                        stream,
                    )
                }
            }
            NcclCall::Send { from, peer } => {
                let count = from.bytes.len() / size;
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe {
                    sys::ncclSend(at(from) as *const _, count, kind, rank(*peer), comm, stream)
                }
            }
            NcclCall::Receive { to, peer } => {
                let count = to.bytes.len() / size;
                // SAFETY: invariants (handle), (memory), (operands).
                unsafe { sys::ncclRecv(at(to) as *mut _, count, kind, rank(*peer), comm, stream) }
            }
        }
    }

    /// Waits until a call that makes a communicator is no longer in progress. `ncclCommSplit` returns `ncclSuccess`
    /// while it still is (read in NCCL 2.28.9, seen on an H200), so only the state says that it is complete.
    fn started(
        &self,
        call: &'static str,
        code: sys::ncclResult_t,
        guard: ErrorCheck<'_>,
    ) -> Result<()> {
        let code = match code {
            sys::ncclResult_t::ncclSuccess => sys::ncclResult_t::ncclInProgress,
            other => other,
        };
        self.settled_within(self.deadline.max(TO_START), call, code, guard)
    }

    /// Waits until a call is no longer in progress.
    fn settled(
        &self,
        call: &'static str,
        code: sys::ncclResult_t,
        guard: ErrorCheck<'_>,
    ) -> Result<()> {
        self.settled_within(self.deadline, call, code, guard)
    }

    fn settled_within(
        &self,
        limit: Duration,
        call: &'static str,
        code: sys::ncclResult_t,
        guard: ErrorCheck<'_>,
    ) -> Result<()> {
        let (start, mut pause) = (Instant::now(), SHORT_PAUSE);
        let mut ready = match code {
            sys::ncclResult_t::ncclSuccess => Ok(true),
            sys::ncclResult_t::ncclInProgress => Ok(false),
            failed => Err(self.error(call, failed)),
        };
        loop {
            match ready {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(named(error, guard)),
            }
            // The control knows which rank has failed. NCCL knows only that one has.
            guard()?;
            let waited = start.elapsed();
            if waited > limit {
                return Err(self.late(call.to_owned(), waited));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONG_PAUSE);
            ready = self.is_ready(call);
        }
    }

    /// The error of a passed deadline.
    pub(super) fn late(&self, during: String, waited: Duration) -> Error {
        // NCCL does not report for which rank it waits.
        let missing = "unknown to NCCL".to_owned();
        Error::Timeout { rank: self.rank, during, missing, waited }
    }

    /// Whether the last call is no longer in progress. A failure since then is an error.
    pub(super) fn is_ready(&self, call: &'static str) -> Result<bool> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: invariant (handle); the pointer is to a value of this frame.
        let code =
            self.with(|handle| unsafe { sys::ncclCommGetAsyncError(handle, &raw mut state) })?;
        match (code, state) {
            (sys::ncclResult_t::ncclSuccess, sys::ncclResult_t::ncclSuccess) => Ok(true),
            (sys::ncclResult_t::ncclSuccess, sys::ncclResult_t::ncclInProgress) => Ok(false),
            (sys::ncclResult_t::ncclSuccess, failed) | (failed, _) => Err(self.error(call, failed)),
        }
    }

    /// Begins to end the communicator in order. All calls are complete on this rank.
    pub(super) fn begin_end(&self) -> Result<()> {
        bind(&self.stream)?;
        // SAFETY: invariant (handle).
        match self.with(|handle| unsafe { sys::ncclCommFinalize(handle) })? {
            sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
            failed => Err(self.error("ncclCommFinalize", failed)),
        }
    }

    /// Waits until the communicator has ended, and gives its memory back. There is no deadline: where NCCL waits for
    /// the other ranks, one of them may work alone for a long time before it leaves.
    pub(super) fn end(&self, guard: ErrorCheck<'_>) -> Result<()> {
        bind(&self.stream)?;
        let in_progress = sys::ncclResult_t::ncclInProgress;
        self.settled_within(Duration::MAX, "ncclCommFinalize", in_progress, guard)?;
        let Some(Handle(handle)) = self.handle.lock().take() else { return Ok(()) };
        // SAFETY: invariant (handle): it has just been taken out of its place.
        let code = unsafe { sys::ncclCommDestroy(handle) };
        match code {
            sys::ncclResult_t::ncclSuccess | sys::ncclResult_t::ncclInProgress => Ok(()),
            failed => Err(self.error("ncclCommDestroy", failed)),
        }
    }

    /// Stops all work that is under way, on this rank and in the end on every rank.
    pub(super) fn abort(&self) {
        let Some(Handle(handle)) = self.handle.lock().take() else { return };
        if let Err(error) = bind(&self.stream) {
            tracing::error!("aborting NCCL: {error}");
            return;
        }
        // SAFETY: invariant (handle): it has just been taken out of its place.
        let code = unsafe { sys::ncclCommAbort(handle) };
        if code != sys::ncclResult_t::ncclSuccess && code != sys::ncclResult_t::ncclInProgress {
            tracing::error!("{}", self.error("ncclCommAbort", code));
        }
    }

    /// After an abort, waits until the device has stopped. If it does not stop, the process ends,
    /// because memory that a kernel still writes to must not be used for anything else. The time in
    /// which the stream has not passed `begun` does not count, because it then works for this rank.
    pub(super) fn rest(&self, begun: Option<&CudaEvent>) {
        let Ok(event) = self.stream.record_event(None) else { return };
        let mut start = Instant::now();
        while matches!(event.try_is_complete(), Ok(false)) {
            if begun.is_some_and(|begun| matches!(begun.try_is_complete(), Ok(false))) {
                start = Instant::now();
            }
            if start.elapsed() > TO_STOP {
                tracing::error!("NCCL's kernels do not stop after an abort: ending this process");
                std::process::abort();
            }
            std::thread::sleep(LONG_PAUSE);
        }
    }

    /// Calls NCCL with the handle.
    fn with<R>(&self, call: impl FnOnce(sys::ncclComm_t) -> R) -> Result<R> {
        let handle = self.handle.lock();
        let Handle(handle) = handle.as_ref().ok_or(Error::Stopped { rank: self.rank })?;
        Ok(call(*handle))
    }

    fn error(&self, call: &'static str, code: sys::ncclResult_t) -> Error {
        // SAFETY: NCCL takes any code and returns a string that lives as long as the library.
        let meaning = unsafe { sys::ncclGetErrorString(code) };
        // SAFETY: NCCL ignores the argument ("comm is currently unused and can be set to NULL").
        let detail = unsafe { sys::ncclGetLastError(ptr::null_mut()) };
        let text = |text: *const std::ffi::c_char| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: the string is NCCL's, and it ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
        };
        let message = format!("{} (code {}); {}", text(meaning), code as u32, text(detail));
        Error::Nccl { rank: self.rank, call, message }
    }
}

/// The reason for an error of NCCL, if the control hears of it soon.
pub(super) fn named(error: Error, guard: ErrorCheck<'_>) -> Error {
    let start = Instant::now();
    while start.elapsed() < TO_BE_NAMED {
        if let Err(reason) = guard() {
            return reason;
        }
        std::thread::sleep(LONG_PAUSE);
    }
    error
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A new id by which ranks find each other. One rank makes it and sends it to the other ranks.
pub(super) fn unique_id() -> Result<[u8; ID_BYTES]> {
    let mut id = sys::ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: the pointer is to a value of this frame.
    let code = unsafe { sys::ncclGetUniqueId(&raw mut id) };
    if code != sys::ncclResult_t::ncclSuccess {
        let message = format!("code {}: is libnccl.so.2 installed?", code as u32);
        return Err(Error::Nccl { rank: 0, call: "ncclGetUniqueId", message });
    }
    Ok(id.internal.map(|byte| byte as u8))
}

fn config() -> sys::ncclConfig_t {
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: CONFIG_VERSION,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

fn data_type(element: ElementType) -> sys::ncclDataType_t {
    match element {
        ElementType::F32 => sys::ncclDataType_t::ncclFloat32,
        ElementType::F64 => sys::ncclDataType_t::ncclFloat64,
        ElementType::F16 => sys::ncclDataType_t::ncclFloat16,
        ElementType::Bf16 => sys::ncclDataType_t::ncclBfloat16,
        ElementType::I32 => sys::ncclDataType_t::ncclInt32,
        ElementType::I64 => sys::ncclDataType_t::ncclInt64,
        ElementType::U8 => sys::ncclDataType_t::ncclUint8,
    }
}

/// NCCL's built-in operations. The binding's enum has none of the operations that NCCL creates at
/// run time.
fn red_op(op: ReduceOp) -> sys::ncclRedOp_t {
    match op {
        ReduceOp::Sum => sys::ncclRedOp_t::ncclSum,
        ReduceOp::Mean => sys::ncclRedOp_t::ncclAvg,
        ReduceOp::Min => sys::ncclRedOp_t::ncclMin,
        ReduceOp::Max => sys::ncclRedOp_t::ncclMax,
        ReduceOp::Product => sys::ncclRedOp_t::ncclProd,
    }
}

/// Makes the stream's device the current one of this thread, because NCCL's calls use the current
/// device.
pub(super) fn bind(stream: &CudaStream) -> Result<()> {
    let bound = stream.context().bind_to_thread();
    Ok(bound.map_err(|error| cuda_error("cuCtxSetCurrent", error))?)
}

/// Orders the work that `stream` is given from now on after the work that `other` has.
fn join(stream: &CudaStream, other: &CudaStream) -> std::result::Result<(), DriverError> {
    if stream == other { Ok(()) } else { stream.join(other) }
}

fn int(number: usize) -> Result<i32> {
    let what = || format!("rank or size {number} over NCCL");
    i32::try_from(number).map_err(|_| Error::Unsupported { what: what() })
}
