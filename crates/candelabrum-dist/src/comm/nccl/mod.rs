//! The NCCL backend, for ranks that each have a GPU.
//!
//! NCCL only moves numbers. It hangs if ranks call different operations, or if a rank dies.
//! Therefore this backend uses a second communicator, the *control*: the local backend on one host,
//! MPI if an MPI launcher started the ranks, otherwise TCP. The control carries the id by which
//! NCCL's ranks find each other, the headers before operations, messages, and failures.
//!
//! | idea | file |
//! |---|---|
//! | joining, groups and leaving | `mod.rs` |
//! | the agreement on the next operations | `agree.rs` |
//! | the execution of one operation | `execute.rs`, `plan.rs` |
//! | operations that the device carries out | `flight.rs`, `watch.rs` |
//! | the control | `control.rs` |
//! | the memory of the GPU | `memory.rs` |
//! | the calls of NCCL | `calls.rs`, `raw.rs` |
//!
//! # Operations on numbers in the GPU's memory
//!
//! NCCL has a stream of its own. An operation waits on the device for the work that the stream of
//! its numbers had when the operation was started, and does not wait for later work. The thread that
//! begins the operation waits for the other ranks' headers, unless the ranks have agreed on an
//! announced list of operations. It does not wait for the device, so several operations are under
//! way at a time. [`Pending::wait`](super::Pending::wait) waits on the host. `Pending::wait_on_stream` makes the stream
//! of the numbers wait instead.
//!
//! A thread of its own, the watch, looks for failures and the deadline while the device works. On
//! any failure it aborts NCCL's communicators, and with them all kernels that wait for another rank.
//! The memory of an operation is not given back before the device has passed its end.
//!
//! An all-reduce, a broadcast and a reduce use the numbers in place and allocate nothing. The result
//! of any other operation is new memory.
//!
//! # Operations on numbers on the host
//!
//! They are copied through memory on the device, and a returned operation is complete. Short
//! operations, for instance votes, use the control, because the copies take longer.
//!
//! # Differences from the other backends
//!
//! - Sums are NCCL's. Every rank gets the same bits of an all-reduce, but the library chooses the
//!   order of additions. So the bits differ from those of the other backends.
//! - NCCL may round each partial sum of `f16` and `bf16` to the type of the numbers, and for a mean
//!   it divides before it adds. The other backends add such numbers in `f32`, divide and round once.
//!   So the error of a sum over `N` ranks can grow with `N`. A short operation on the host uses the
//!   control and its precision.
//! - The minimum and maximum of floats are computed on the host from all ranks' values, because
//!   NCCL's ignore a NaN and ours keep it. Such an operation waits for the device.
//! - Messages use the control. A send of NCCL's blocks the stream until its receiver arrives, so
//!   two ranks that both send first would wait for each other without end. Here a send is complete
//!   at once, and a receive can accept a message from any rank, which NCCL does not support.
//! - The exchange of headers is already a barrier. An announced operation has none, so a rank may
//!   begin it, and return from `Pending::wait_on_stream`, before another rank has started it. A
//!   deadline that passes in such an operation does not name the rank that is late.
//! - A rank that leaves waits for its own operations, and not for the other ranks (NCCL 2.28.9). If a failure is
//!   known by then and no operation has returned it, the process prints the failure and exits with status 1.

mod agree;
mod calls;
mod control;
mod execute;
mod flight;
mod list;
mod memory;
mod plan;
mod raw;
mod watch;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::cuda::cuda_error;
use candle_core::{CudaDevice, Device};
use cudarc::driver::{CudaSlice, CudaStream};
use parking_lot::Mutex;

use self::control::{ControlGroup, NcclFailures, OverControl, in_operation};
use self::list::AnnouncedOperations;
use self::raw::{ID_BYTES, NcclComm};
use self::watch::DeviceWatch;
use super::collective::CollectiveHeader;
use super::failures::FirstFailure;
use super::group_info::OpContext;
use super::messages::Messages;
use super::threaded::{Connection, ThreadedGroup};
use super::transport::RankTransport;
use super::work::BackendWork;
use super::{Communicator, Group, Payload};
use crate::launch::exit_at_once;
use crate::{Error, Result};

/// Whether this build has the NCCL backend.
pub(crate) const COMPILED: bool = true;

/// Joins the ranks that `control` connects, each with its `device`, a GPU.
///
/// # Errors
/// A missing or failing library, two ranks on one GPU, a failure of another rank or a passed
/// deadline.
pub(crate) fn connect(
    control: Group,
    device: &Device,
    deadline: Duration,
) -> Result<Arc<dyn Communicator>> {
    let device = device.as_cuda_device()?.clone();
    control.leave_reports_to_the_caller();
    let connect = move |failure: &FirstFailure| {
        let (rank, world_size) = (control.rank(), control.world_size());
        let failures = NcclFailures::new(Arc::clone(&control), failure.clone());
        let transport = NcclTransport::connect(&control, failures.clone(), device, deadline)
            .inspect_err(|error| failures.tell(error))?;
        Ok(Connection { transport, rank, world_size, deadline, abort: Arc::new(failures) })
    };
    Ok(Arc::new(ThreadedGroup::start(connect)?))
}

/// The state that all groups of a rank share.
struct NcclJob {
    failures: NcclFailures,
    device: CudaDevice,
    /// NCCL's stream. candle's own stream runs in parallel.
    stream: Arc<CudaStream>,
    watch: DeviceWatch,
    /// Communicators of the world and of its groups that were left. They are ended when all ranks
    /// have left.
    left: Mutex<Vec<Arc<NcclComm>>>,
}

/// A group's ranks over NCCL.
struct NcclTransport {
    job: Arc<NcclJob>,
    control: ControlGroup,
    /// `None` after the group has been left.
    comm: Option<Arc<NcclComm>>,
    /// Device memory for numbers of the host, which is reused.
    input: Option<CudaSlice<u8>>,
    output: Option<CudaSlice<u8>>,
    rank: usize,
    ranks: Vec<usize>,
    /// The operations that this rank has announced.
    list: AnnouncedOperations,
}

impl NcclTransport {
    fn connect(
        world: &Group,
        failures: NcclFailures,
        device: CudaDevice,
        deadline: Duration,
    ) -> Result<Self> {
        let joining = |error| in_operation(error, &"joining NCCL's ranks");
        let (rank, world_size) = (world.rank(), world.world_size());
        let stream = device.cuda_stream().context().new_stream();
        let stream = stream.map_err(|error| cuda_error("cuStreamCreate", error))?;
        let mut id = [0; ID_BYTES];
        if rank == 0 {
            id = raw::unique_id()?;
        }
        world.broadcast(&mut id, 0).map_err(joining)?;
        let group = world.split(Some(0), 0).map_err(joining)?.ok_or_else(Error::no_member)?;
        let guard = || failures.check();
        let comm = NcclComm::init(&id, rank, world_size, Arc::clone(&stream), deadline, &guard);
        let comm = comm.map_err(joining)?;
        let watch = DeviceWatch::start(failures.clone(), rank, deadline)?;
        let job = NcclJob { failures, device, stream, watch, left: Mutex::default() };
        Ok(Self::new(Arc::new(job), group, comm))
    }

    fn new(job: Arc<NcclJob>, group: Group, comm: NcclComm) -> Self {
        let (rank, ranks) = (group.rank(), group.ranks().to_vec());
        let (control, comm) = (ControlGroup::new(group), Some(Arc::new(comm)));
        Self {
            job,
            control,
            comm,
            input: None,
            output: None,
            rank,
            ranks,
            list: AnnouncedOperations::default(),
        }
    }

    fn comm(&self) -> Result<&Arc<NcclComm>> {
        self.comm.as_ref().ok_or(Error::Stopped { rank: self.rank })
    }

    /// Reports a failure of NCCL or of the driver: other ranks' kernels wait for this rank's kernels
    /// until the failure is reported or the deadline passes.
    fn report<R>(&self, result: Result<R>) -> Result<R> {
        result.inspect_err(|error| {
            use candelabrum_memory::Error::Cuda;
            if matches!(error, Error::Nccl { .. } | Error::Memory(Cuda { .. })) {
                self.job.failures.tell(error);
            }
        })
    }

    /// Ends NCCL's communicators. The end of each may wait for all of its ranks, depending on the version of NCCL,
    /// and each rank may have left its groups in another order, so all are begun before one is waited for.
    fn end(&self) -> Result<()> {
        let NcclJob { failures, watch, left, .. } = &*self.job;
        watch.drain()?;
        let left = left.lock();
        let begun = left.iter().try_for_each(|comm| comm.begin_end());
        let ended =
            begun.and_then(|()| left.iter().try_for_each(|comm| comm.end(&|| failures.check())));
        ended.map_err(|error| in_operation(error, &"leaving the job"))
    }
}

impl RankTransport for NcclTransport {
    const TAKES_ANNOUNCEMENTS: bool = true;

    fn backend(&self) -> &'static str {
        "nccl"
    }

    fn takes_device_memory(&self) -> bool {
        true
    }

    fn messages(&self) -> Arc<dyn Messages> {
        let (control, device) = (self.control.clone(), Device::Cuda(self.job.device.clone()));
        Arc::new(OverControl { control, device })
    }

    fn announce(&mut self, headers: Vec<CollectiveHeader>) {
        self.list.announce(headers);
    }

    fn execute(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload> {
        let result = self.collective(header, payload, None);
        self.report(result)?.wait()
    }

    fn begin(
        &mut self,
        header: CollectiveHeader,
        payload: Payload,
        context: &Arc<OpContext>,
    ) -> Result<Box<dyn BackendWork>> {
        let result = self.collective(header, payload, Some(context));
        self.report(result)
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let position = |members: &[usize]| members.iter().position(|&m| m == self.rank);
        let place = members.and_then(|members| Some((*members.first()?, position(members)?)));
        let (colour, key) = (place.map(|(first, _)| first as u64), place.map_or(0, |p| p.1 as i64));
        let group = self.control.run(&"split", |group| group.split(colour, key))?;
        let guard = || self.job.failures.check();
        let comm = self.comm()?.split(place, &guard);
        let comm = self.report(comm.map_err(|error| in_operation(error, &"split")))?;
        let (Some(group), Some(comm)) = (group, comm) else { return Ok(None) };
        Ok(Some(Self::new(Arc::clone(&self.job), group, comm)))
    }

    /// Other ranks may still be in the last operation, so NCCL's communicator is not ended yet.
    fn leave(&mut self) {
        self.leave_list();
        self.job.left.lock().extend(self.comm.take());
        self.control.leave();
    }

    /// A failure of another rank ends this process with an error, because the program has no later
    /// operation that could return it.
    fn finish(&mut self) {
        if self.job.failures.is_known_to_the_program() {
            return;
        }
        let Err(error) = self.end() else { return };
        self.job.failures.tell(&error);
        let line = format!("error of rank {} while leaving NCCL: {error}\n", self.rank);
        // Without standard error, the exit status alone reports the failure.
        let _ = std::io::stderr().write_all(line.as_bytes());
        exit_at_once(1);
    }
}
