//! The NCCL backend, for ranks that each have a GPU.
//!
//! NCCL only moves numbers. It hangs if ranks call different operations, or if a rank dies.
//! Therefore this backend uses a second communicator, the *control*: the local backend on one host,
//! MPI if an MPI launcher started the ranks, otherwise TCP. The control carries the id by which
//! NCCL's ranks find each other, the headers before each operation, messages, and news of failures.
//! Failures are checked while the device works, so no rank waits for one that is gone.
//!
//! A returned operation is complete. The thread that runs it polls a CUDA event and NCCL's own
//! errors with growing pauses, up to the deadline. On any error NCCL's communicator is aborted, and
//! with it all kernels that wait for another rank.
//!
//! Numbers on the host are copied through memory on the device. A buffer on the device is used in
//! place, and its result is on the device too.
//!
//! - Sums are NCCL's. Every rank gets the same bits of an all-reduce, but the library chooses the
//!   order of additions, and adds half precision in half precision. So the bits differ from those
//!   of the other backends.
//! - The minimum and maximum of floats are computed on the host from all ranks' values, because
//!   NCCL's ignore a NaN and ours keep it.
//! - Short operations on host memory, for instance votes, use the control, because the copies to
//!   the device and back take longer.
//! - Messages use the control. A send of NCCL's blocks the stream until its receiver arrives, so
//!   two ranks that both send first would wait for each other without end. Here a send is complete
//!   at once, and a receive can accept a message from any rank, which NCCL does not support.
//! - The exchange of headers is already a barrier.

mod control;
mod plan;
mod raw;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::cuda::{self, CudaMemory, allocate, cuda_error, download, upload};
use candelabrum_memory::{Flat, reduce};
use candle_core::{CudaDevice, Device};
use cudarc::driver::{CudaSlice, CudaStream};
use parking_lot::Mutex;

use self::control::{Control, News, OverControl, in_operation};
use self::plan::{Outcome, Participant, Plan};
use self::raw::{ID_BYTES, NcclComm};
use super::collective::{Header, check_agreement};
use super::members::Failure;
use super::threaded::{Connected, Threaded};
use super::transport::{Messages, Transport};
use super::{Collective, Communicator, Group, Payload};
use crate::{Error, Result};

/// Operations on fewer bytes use the control.
const SHORT: usize = 64 * 1024;

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
    let connect = move |failure: &Failure| {
        let (rank, world_size) = (control.rank(), control.world_size());
        let news = News::new(Arc::clone(&control), failure.clone());
        let transport = Nccl::connect(&control, news.clone(), device, deadline)
            .inspect_err(|error| news.tell(error))?;
        Ok(Connected { transport, rank, world_size, deadline, abort: Arc::new(news) })
    };
    Ok(Arc::new(Threaded::start(connect)?))
}

fn to_device(device: &Device, payload: &Payload) -> Result<Payload> {
    let mut copy = cuda::zeros(device, payload.element_type(), payload.len())?;
    copy.copy_from_host(payload)?;
    Ok(copy.into())
}

/// A group's ranks over NCCL.
struct Nccl {
    news: News,
    control: Control,
    device: CudaDevice,
    /// NCCL's stream. candle's own stream runs in parallel.
    stream: Arc<CudaStream>,
    /// `None` after the group has been left.
    comm: Option<NcclComm>,
    /// Communicators of the world and of its groups that were left. They are ended when all ranks
    /// have left.
    left: Arc<Mutex<Vec<NcclComm>>>,
    /// Device memory for numbers of the host, which is reused.
    input: CudaSlice<u8>,
    output: CudaSlice<u8>,
    rank: usize,
    ranks: Vec<usize>,
}

impl Nccl {
    fn connect(world: &Group, news: News, device: CudaDevice, deadline: Duration) -> Result<Self> {
        let joining = |error| in_operation(error, &"joining NCCL's ranks");
        let (rank, world_size) = (world.rank(), world.world_size());
        let stream = device.cuda_stream().context().new_stream();
        let stream = stream.map_err(|error| cuda_error("cuStreamCreate", error))?;
        let mut id = [0; ID_BYTES];
        if rank == 0 {
            id = raw::unique_id()?;
        }
        world.broadcast(&mut id, 0).map_err(joining)?;
        let lost = || Error::Protocol { what: "a group without its member".to_owned() };
        let group = world.split(Some(0), 0).map_err(joining)?.ok_or_else(lost)?;
        let guard = || news.check();
        let comm = NcclComm::init(&id, rank, world_size, Arc::clone(&stream), deadline, &guard);
        let comm = comm.map_err(joining)?;
        let left = Arc::default();
        Self::new(news, group, device, stream, comm, left)
    }

    fn new(
        news: News,
        group: Group,
        device: CudaDevice,
        stream: Arc<CudaStream>,
        comm: NcclComm,
        left: Arc<Mutex<Vec<NcclComm>>>,
    ) -> Result<Self> {
        let (input, output) = (allocate(&stream, 0)?, allocate(&stream, 0)?);
        let (rank, ranks) = (group.rank(), group.ranks().to_vec());
        let (control, comm) = (Control::new(group), Some(comm));
        Ok(Self { news, control, device, stream, comm, left, input, output, rank, ranks })
    }

    fn collective(&mut self, header: Header, mut payload: Payload) -> Result<Payload> {
        let (headers, all_on_host) = self.agree(header, payload.is_on_device())?;
        let longest = headers.iter().map(|header| header.len * header.element.size()).max();
        if header.op != Collective::Barrier && all_on_host && longest < Some(SHORT) {
            return self.control.run(&header, |group| group.run(header.op, payload));
        }
        let size = header.element.size();
        let mut table = Vec::new();
        let mut parts = None;
        match header.op {
            Collective::Barrier => return Ok(payload),
            Collective::AllGatherV => {
                parts = Some(headers.iter().map(|header| header.len).collect::<Vec<usize>>());
            }
            Collective::AllToAllV => {
                table = self.exchange_parts(header, &payload)?;
                parts = Some(table.iter().map(|row| row[self.rank] / size).collect());
            }
            _ => {}
        }
        let plan = Participant { rank: self.rank, headers: &headers, table: &table }.plan()?;
        let result = self.carry_out(header, &plan, &mut payload)?;
        match (result, parts) {
            (None, _) => Ok(payload),
            (Some(result), Some(parts)) => result.with_parts(parts),
            (Some(result), None) => Ok(result),
        }
    }

    /// All ranks' headers, after a check that they agree, and whether all ranks have their numbers
    /// on the host.
    fn agree(&self, header: Header, on_device: bool) -> Result<(Vec<Header>, bool)> {
        const WORDS: usize = Header::WORDS + 1;
        let [sequence, what, len, tag] = header.encode();
        let words = [sequence, what, len, tag, u64::from(on_device)].map(|word| word as i64);
        let all = self.control.run(&header, |group| group.all_gather(&words))?;
        let (all, _) = all.as_chunks::<WORDS>();
        let all_on_host = all.iter().all(|words| words[Header::WORDS] == 0);
        let all: Vec<_> =
            all.iter().map(|&[a, b, c, d, _]| [a, b, c, d].map(|word| word as u64)).collect();
        check_agreement(&all, &self.ranks)?;
        Ok((all.into_iter().filter_map(Header::decode).collect(), all_on_host))
    }

    /// The number of bytes that each rank sends to each rank.
    fn exchange_parts(&self, header: Header, payload: &Payload) -> Result<Vec<Vec<usize>>> {
        let size = header.element.size();
        let own = payload.parts().unwrap_or_default();
        let own: Vec<i64> = own.iter().map(|&len| (len * size) as i64).collect();
        let all = self.control.run(&header, |group| group.all_gather(&own))?;
        let row = |row: &[i64]| row.iter().map(|&bytes| bytes as usize).collect();
        Ok(all.chunks(self.ranks.len()).map(row).collect())
    }

    /// The result; `None` if it is in the payload.
    fn carry_out(
        &mut self,
        header: Header,
        plan: &Plan,
        payload: &mut Payload,
    ) -> Result<Option<Payload>> {
        let Header { element, len, .. } = header;
        let whole = len * element.size();
        let on_device = payload.is_on_device();
        if on_device {
            // This memory becomes the result, so it is not reused.
            self.output = allocate(&self.device.cuda_stream(), plan.output)?;
        } else {
            grow(&self.stream, &mut self.input, whole)?;
            grow(&self.stream, &mut self.output, plan.output)?;
            if plan.uploads {
                upload(&self.stream, payload.bytes(), &mut self.input)?;
            }
        }
        // If this is true, it is true on all ranks, because they agree on the lengths that it
        // depends on.
        let nothing = whole == 0 && plan.output == 0;
        if !plan.calls.is_empty() && !nothing {
            let news = &self.news;
            let guard = || news.check();
            let input = match payload.device_memory::<CudaMemory>() {
                Some(memory) => &mut memory.0,
                None => &mut self.input,
            };
            let comm = self.comm.as_mut().ok_or(Error::Stopped { rank: self.rank })?;
            comm.run(element, &plan.calls, input, &mut self.output, &guard)
                .map_err(|error| in_operation(error, &header))?;
        }
        match plan.result {
            Outcome::Nothing => Ok(Some(Payload::zeros(element, 0))),
            Outcome::Input if on_device => Ok(None),
            Outcome::Input => {
                download(&self.stream, &self.input, payload.bytes_mut())?;
                Ok(None)
            }
            Outcome::Output if on_device => {
                let output = std::mem::replace(&mut self.output, allocate(&self.stream, 0)?);
                let memory = Box::new(CudaMemory(output));
                Ok(Some(Flat::on_device(element, plan.output / element.size(), memory).into()))
            }
            Outcome::Output => {
                let mut result = Payload::zeros(element, plan.output / element.size());
                download(&self.stream, &self.output, result.bytes_mut())?;
                Ok(Some(result))
            }
            Outcome::Reduced { op, start, end } => {
                let mut all = Payload::zeros(element, plan.output / element.size());
                download(&self.stream, &self.output, all.bytes_mut())?;
                let mut result = Payload::zeros(element, (end - start) / element.size());
                if whole > 0 {
                    let mut parts: Vec<&mut [u8]> = all.bytes_mut().chunks_mut(whole).collect();
                    reduce::reduce_into_all(element, op, &mut parts);
                    result.bytes_mut().copy_from_slice(&parts[0][start..end]);
                }
                let device = Device::Cuda(self.device.clone());
                if on_device { to_device(&device, &result).map(Some) } else { Ok(Some(result)) }
            }
        }
    }

    /// Ends NCCL's communicators. The end of each waits for all of its ranks, and each rank may have
    /// left its groups in another order, so all are begun before one is waited for.
    fn end(&mut self) -> Result<()> {
        let news = &self.news;
        let mut left = self.left.lock();
        left.iter().try_for_each(NcclComm::begin_end)?;
        left.iter_mut().try_for_each(|comm| comm.end(&|| news.check()))
    }
}

impl Transport for Nccl {
    fn backend(&self) -> &'static str {
        "nccl"
    }

    fn takes_device_memory(&self) -> bool {
        true
    }

    fn messages(&self) -> Arc<dyn Messages> {
        let (control, device) = (self.control.clone(), Device::Cuda(self.device.clone()));
        Arc::new(OverControl { control, device })
    }

    fn execute(&mut self, header: Header, payload: Payload) -> Result<Payload> {
        let result = self.collective(header, payload);
        // Other ranks' kernels wait for this rank's kernels until the failure is reported or the
        // deadline passes.
        if let Err(
            error @ (Error::Nccl { .. } | Error::Memory(candelabrum_memory::Error::Cuda { .. })),
        ) = &result
        {
            self.news.tell(error);
        }
        result
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let position = |members: &[usize]| members.iter().position(|&m| m == self.rank);
        let place = members.and_then(|members| Some((*members.first()?, position(members)?)));
        let (colour, key) = (place.map(|(first, _)| first as u64), place.map_or(0, |p| p.1 as i64));
        let group = self.control.run(&"split", |group| group.split(colour, key))?;
        let guard = || self.news.check();
        let comm = self.comm.as_mut().ok_or(Error::Stopped { rank: self.rank })?;
        let comm = comm.split(place, &guard).map_err(|error| in_operation(error, &"split"))?;
        let (Some(group), Some(comm)) = (group, comm) else { return Ok(None) };
        let (device, stream) = (self.device.clone(), Arc::clone(&self.stream));
        Self::new(self.news.clone(), group, device, stream, comm, Arc::clone(&self.left)).map(Some)
    }

    /// Other ranks may still be in the last operation, so NCCL's communicator is not ended yet.
    fn leave(&mut self) {
        self.left.lock().extend(self.comm.take());
        self.control.leave();
    }

    /// A failure of another rank ends this process with an error, because the program has no later
    /// operation that could return it.
    fn finish(&mut self) {
        if self.news.is_known_to_the_program() {
            return;
        }
        let Err(error) = self.end() else { return };
        let error = in_operation(error, &"leaving the job");
        self.news.tell(&error);
        let line = format!("error of rank {} while leaving NCCL: {error}\n", self.rank);
        // Without standard error, the exit status alone reports the failure.
        let _ = std::io::stderr().write_all(line.as_bytes());
        std::process::exit(1);
    }
}

/// Makes room for this many bytes.
fn grow(stream: &Arc<CudaStream>, memory: &mut CudaSlice<u8>, bytes: usize) -> Result<()> {
    if memory.len() < bytes {
        *memory = allocate(stream, bytes)?;
    }
    Ok(())
}
