//! The MPI backend: ranks that `mpiexec` started, on one host or many.
//!
//! The communication thread initialises MPI (thread level `FUNNELED`), makes every call, and
//! finalises it; how a job ends otherwise is told in [`life`]. Nothing blocks inside MPI: operations
//! are started, then asked after with growing pauses ([`wait`]), because a blocking call polls a
//! whole core that the model needs, and because only so a deadline can pass.
//!
//! MPI moves bytes, the arithmetic is [`reduce`]'s: sums are added in rank order with f32
//! accumulation for half precision, NaN is kept, every rank gets the same bits, and they are the
//! local backend's bits too. `MPI_Allreduce` promises none of this: its order of additions is the
//! library's choice, by length and number of ranks, and it knows no half precision.
//!
//! An all-reduce is two rounds of messages: every rank gets everybody's part `rank`, reduces it,
//! and sends the result to all. That is `2 (N-1)/N · n` bytes in and out, as little as possible.
//! Short ones are one round of whole buffers. Over shared memory (Open MPI 4.1.4, 2 ranks on 2 busy
//! cores, medians, spinning) these two rounds took as long as a blocking `MPI_Allreduce` in place:
//! 2.4 and 2.5 µs for 4 KB, 56 and 55 µs for 256 KB, 314 and 316 µs for 1.7 MB; Open MPI's default
//! `MPI_Iallreduce` sends twice the bytes there and took 6.7, 105 and 582 µs.
//!
//! Before every collective each pair of ranks exchanges headers. The receives for these are always
//! posted, which tells who is missing when a deadline passes, and who has left. This makes `N - 1`
//! small messages per rank and operation: it is meant for tens of ranks, not thousands.

mod life;
mod raw;
mod wait;

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;

use self::raw::{Batch, Comm, Tag};
use self::wait::{Load, Wait};
use super::collective::{Header, check_agreement};
use super::threaded::{Connected, Threaded};
use super::transport::Transport;
use super::{Buffer, Collective, Communicator, ElementType, ReduceOp, reduce};
use crate::{Error, Result};

/// Up to so many bytes from all others together, an all-reduce is one round.
const ONE_ROUND: usize = 32 * 1024;

/// Bytes of each rank's part in one turn of the two rounds: small enough for its cache, and a bound
/// for the scratch memory. 25 MiB over 2 ranks took 5.9 ms (best) with it, 12 ms with 4 MiB.
const PART: usize = 512 << 10;

/// Encoded header.
type Words = [u64; Header::WORDS];

/// Bytes of an encoded header.
const HEADER_BYTES: usize = size_of::<Words>();

/// First word of what takes a header's place when a rank has finished.
const GOODBYE: u64 = u64::MAX;

/// How long MPI may take to see that a message has arrived when its receiver has left.
const STRAGGLER: Duration = Duration::from_millis(200);

/// Whether this build has the MPI backend.
pub(crate) const COMPILED: bool = true;

/// Joins the job that this process was started in, which must have `world_size` ranks. An
/// operation that takes longer than `deadline` fails.
///
/// From here on a panic, or an exit before the communicator is dropped, ends all ranks.
///
/// # Errors
/// A launcher that belongs to another MPI library than this program; MPI used by somebody else in
/// this process.
pub(crate) fn connect(world_size: usize, deadline: Duration) -> Result<Arc<dyn Communicator>> {
    Ok(Arc::new(Threaded::start(move || join(world_size, deadline))?))
}

fn join(expected: usize, deadline: Duration) -> Result<Connected<Mpi>> {
    let what = "MPI was initialised in this process before: only one world can use it";
    let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled)
        .ok_or_else(|| Error::Launch { what: what.to_owned() })?;
    let universe = ManuallyDrop::new(universe);
    life::begin();
    wait::wake_on_time();
    if threading < Threading::Funneled {
        let what = format!("{} was built without support for threads", raw::library());
        return Err(Error::Launch { what });
    }
    let comm = Comm::duplicate_world()?;
    let (rank, world_size) = (comm.rank()?, comm.size()?);
    if world_size != expected {
        if world_size == 1 && life::end() {
            drop(ManuallyDrop::into_inner(universe));
        }
        let what = format!(
            "the launcher started {expected} ranks, but MPI sees {world_size}: this program was \
             built with {}, and the launcher (mpiexec, srun) belongs to another MPI; start it with \
             the mpiexec of that library, or build it with MPICC set to the launcher's mpicc",
            raw::library()
        );
        return Err(Error::Launch { what });
    }
    let transport = Mpi::new(universe, comm, rank, world_size, deadline)?;
    Ok(Connected { transport, rank, world_size, abort: Arc::new(life::Aborter) })
}

/// This rank's end of the job.
struct Mpi {
    /// `Some` until MPI is finalised; never dropped otherwise, which would finalise it.
    universe: Option<ManuallyDrop<Universe>>,
    comm: Comm,
    rank: usize,
    world_size: usize,
    deadline: Duration,
    load: Load,
    failed: bool,
    /// By rank; our own is never used.
    inbox: Vec<Inbox>,
    /// Messages that nobody has received yet; their operations have been answered.
    outgoing: Vec<Batch>,
    /// By rank, messages sent to it.
    sent: Vec<u64>,
    /// By rank, messages of it that were asked for.
    asked: Vec<u64>,
    /// Used again and again for what others sent.
    scratch: Buffer,
}

impl Transport for Mpi {
    fn backend(&self) -> &'static str {
        "mpi"
    }

    /// MPI was initialised for calls of the communication thread alone.
    fn any_thread(&self) -> bool {
        false
    }

    fn execute(&mut self, header: Header, buffer: Buffer) -> Result<Buffer> {
        let result = match header.op {
            Collective::Send { to } => self.send(header, buffer, to),
            Collective::Recv { from } => self.recv(header, buffer, from),
            _ => self.collective(header, buffer),
        };
        self.failed |= result.is_err();
        result
    }

    fn progress(&mut self) -> bool {
        // A failed send shows at the receiver, which does not get it.
        self.outgoing.retain_mut(|batch| matches!(batch.poll(), Ok(None)));
        !self.outgoing.is_empty()
    }

    /// Leaves when everybody does: `MPI_Finalize` waits for all ranks, but polls a core meanwhile.
    /// After a failure MPI is not finalised, because that would hang; see [`life`].
    fn finish(&mut self) {
        if self.failed {
            return life::failed();
        }
        if let Err(error) = self.leave() {
            tracing::error!("leaving the MPI job: {error}");
            life::failed();
        }
    }
}

impl Mpi {
    fn new(
        universe: ManuallyDrop<Universe>,
        comm: Comm,
        rank: usize,
        world_size: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let mut inbox = Vec::with_capacity(world_size);
        for from in 0..world_size {
            inbox.push(if from == rank { Inbox::default() } else { Inbox::posted(comm, from)? });
        }
        let scratch = Buffer::zeros(ElementType::U8, 0);
        Ok(Self {
            universe: Some(universe),
            comm,
            rank,
            world_size,
            deadline,
            load: Load::default(),
            failed: false,
            inbox,
            outgoing: Vec::new(),
            sent: vec![0; world_size],
            asked: vec![0; world_size],
            scratch,
        })
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world_size).filter(move |&other| other != rank)
    }

    fn collective(&mut self, header: Header, buffer: Buffer) -> Result<Buffer> {
        let headers = self.exchange_headers(header)?;
        let ranks: Vec<usize> = (0..self.world_size).collect();
        check_agreement(&headers, &ranks)?;
        if self.world_size == 1 {
            return Ok(buffer);
        }
        match header.op {
            Collective::AllReduce(op) => self.all_reduce(header, op, buffer),
            Collective::Broadcast { root } => {
                let mut batch = Batch::new(self.comm, vec![buffer]);
                batch.broadcast(0, root)?;
                self.wait_for(batch, header).map(only)
            }
            Collective::AllGather => self.all_gather(header, &buffer),
            Collective::ReduceScatter(op) => self.reduce_scatter(header, op, buffer),
            Collective::Gather { root } => self.gather(header, buffer, root),
            Collective::Scatter { root } => {
                let len = headers[root][2] as usize / self.world_size;
                self.scatter(header, buffer, root, len)
            }
            Collective::Barrier => Ok(buffer),
            other => Err(Error::Unsupported { what: other.to_string() }),
        }
    }

    /// All ranks' headers: nobody has them before everybody is here.
    fn exchange_headers(&mut self, header: Header) -> Result<Vec<Words>> {
        self.tell_others(|_| header.encode())?;
        let wait = Wait::begin();
        loop {
            let mut missing = Vec::new();
            for other in self.others() {
                match self.inbox[other].peek()? {
                    Some([GOODBYE, ..]) => return Err(self.left(other, header)),
                    Some(_) => {}
                    None => missing.push(other),
                }
            }
            if missing.is_empty() {
                break;
            }
            self.pause(&wait, header, || missing)?;
        }
        let mut headers = vec![header.encode(); self.world_size];
        for other in self.others() {
            headers[other] = self.inbox[other].take(self.comm, other)?;
        }
        Ok(headers)
    }

    /// Sends words to every other rank, without waiting for them to arrive.
    fn tell_others(&mut self, words: impl Fn(usize) -> Words) -> Result<()> {
        let memory = (0..self.world_size).map(|to| words_buffer(words(to))).collect();
        let mut batch = Batch::new(self.comm, memory);
        for other in self.others() {
            batch.send(other, 0..HEADER_BYTES, other, Tag::Header)?;
        }
        if batch.poll()?.is_none() {
            self.outgoing.push(batch);
        }
        Ok(())
    }

    fn all_reduce(&mut self, header: Header, op: ReduceOp, mut buffer: Buffer) -> Result<Buffer> {
        let (size, len) = (header.element.size(), header.len);
        if len * size * (self.world_size - 1) <= ONE_ROUND {
            let whole = vec![0..len * size; self.world_size];
            return self.reduce_part(header, op, buffer, &whole);
        }
        let turn = PART / size * self.world_size;
        for start in (0..len).step_by(turn) {
            let count = turn.min(len - start);
            let cut = |rank: usize| (start + rank * count / self.world_size) * size;
            let parts: Vec<_> = (0..self.world_size).map(|rank| cut(rank)..cut(rank + 1)).collect();
            buffer = self.reduce_part(header, op, buffer, &parts)?;
            buffer = self.share_part(header, buffer, &parts)?;
        }
        Ok(buffer)
    }

    fn reduce_scatter(
        &mut self,
        header: Header,
        op: ReduceOp,
        mut buffer: Buffer,
    ) -> Result<Buffer> {
        let size = header.element.size();
        let part = header.len / self.world_size;
        let turn = PART / size;
        for start in (0..part).step_by(turn) {
            let count = turn.min(part - start);
            let range = |rank: usize| {
                let start = (rank * part + start) * size;
                start..start + count * size
            };
            let parts: Vec<_> = (0..self.world_size).map(range).collect();
            buffer = self.reduce_part(header, op, buffer, &parts)?;
        }
        let mut own = Buffer::zeros(header.element, part);
        let start = self.rank * part * size;
        own.bytes_mut().copy_from_slice(&buffer.bytes()[start..start + part * size]);
        Ok(own)
    }

    /// Sends to every rank its part (bytes) and replaces our own by its reduction.
    fn reduce_part(
        &mut self,
        header: Header,
        op: ReduceOp,
        buffer: Buffer,
        parts: &[Range<usize>],
    ) -> Result<Buffer> {
        let own = parts[self.rank].clone();
        // Whole words, so that every contribution is aligned for every element type.
        let stride = own.len().next_multiple_of(8);
        let mut scratch = std::mem::replace(&mut self.scratch, Buffer::empty());
        if scratch.len() < stride * (self.world_size - 1) {
            scratch = Buffer::zeros(ElementType::U8, stride * (self.world_size - 1));
        }
        let mut batch = Batch::new(self.comm, vec![buffer, scratch]);
        for (slot, other) in self.others().enumerate() {
            let at = slot * stride;
            batch.receive(1, at..at + own.len(), other, Tag::Data)?;
        }
        for other in self.others() {
            batch.send(0, parts[other].clone(), other, Tag::Data)?;
        }
        let [mut buffer, mut scratch] = both(self.wait_for(batch, header)?);
        if !own.is_empty() {
            let slots = scratch.bytes_mut().chunks_mut(stride).take(self.world_size - 1);
            let mut all: Vec<&mut [u8]> = slots.map(|slot| &mut slot[..own.len()]).collect();
            all.insert(self.rank, &mut buffer.bytes_mut()[own]);
            reduce::reduce_into_all(header.element, op, &mut all);
        }
        self.scratch = scratch;
        Ok(buffer)
    }

    /// Sends our own part (bytes) to every rank and receives theirs.
    fn share_part(
        &mut self,
        header: Header,
        buffer: Buffer,
        parts: &[Range<usize>],
    ) -> Result<Buffer> {
        let mut batch = Batch::new(self.comm, vec![buffer]);
        for other in self.others() {
            batch.receive(0, parts[other].clone(), other, Tag::Data)?;
        }
        for other in self.others() {
            batch.send(0, parts[self.rank].clone(), other, Tag::Data)?;
        }
        self.wait_for(batch, header).map(only)
    }

    fn all_gather(&mut self, header: Header, buffer: &Buffer) -> Result<Buffer> {
        let part = buffer.bytes().len();
        let mut all = Buffer::zeros(header.element, header.len * self.world_size);
        let parts: Vec<_> = (0..self.world_size).map(|r| r * part..(r + 1) * part).collect();
        all.bytes_mut()[parts[self.rank].clone()].copy_from_slice(buffer.bytes());
        self.share_part(header, all, &parts)
    }

    fn gather(&mut self, header: Header, buffer: Buffer, root: usize) -> Result<Buffer> {
        let part = buffer.bytes().len();
        if self.rank != root {
            let mut batch = Batch::new(self.comm, vec![buffer]);
            batch.send(0, 0..part, root, Tag::Data)?;
            self.wait_for(batch, header)?;
            return Ok(Buffer::zeros(header.element, 0));
        }
        let mut all = Buffer::zeros(header.element, header.len * self.world_size);
        all.bytes_mut()[root * part..(root + 1) * part].copy_from_slice(buffer.bytes());
        let mut batch = Batch::new(self.comm, vec![all]);
        for other in self.others() {
            batch.receive(0, other * part..(other + 1) * part, other, Tag::Data)?;
        }
        self.wait_for(batch, header).map(only)
    }

    fn scatter(
        &mut self,
        header: Header,
        buffer: Buffer,
        root: usize,
        len: usize,
    ) -> Result<Buffer> {
        let mut own = Buffer::zeros(header.element, len);
        let part = own.bytes().len();
        if self.rank != root {
            let mut batch = Batch::new(self.comm, vec![own]);
            batch.receive(0, 0..part, root, Tag::Data)?;
            return self.wait_for(batch, header).map(only);
        }
        own.bytes_mut().copy_from_slice(&buffer.bytes()[root * part..(root + 1) * part]);
        let mut batch = Batch::new(self.comm, vec![buffer]);
        for other in self.others() {
            batch.send(0, other * part..(other + 1) * part, other, Tag::Data)?;
        }
        self.wait_for(batch, header)?;
        Ok(own)
    }

    /// Is answered at once, so that ranks which all send before they receive do not wait for each
    /// other; the message goes on its way in the background.
    fn send(&mut self, header: Header, buffer: Buffer, to: usize) -> Result<Buffer> {
        self.sent[to] += 1;
        let bytes = buffer.bytes().len();
        let mut batch = Batch::new(self.comm, vec![words_buffer(header.encode()), buffer]);
        batch.send(0, 0..HEADER_BYTES, to, Tag::MessageHeader)?;
        batch.send(1, 0..bytes, to, Tag::Message)?;
        if batch.poll()?.is_none() {
            self.outgoing.push(batch);
        }
        Ok(Buffer::empty())
    }

    fn recv(&mut self, header: Header, buffer: Buffer, from: usize) -> Result<Buffer> {
        self.asked[from] += 1;
        let mut batch = Batch::new(self.comm, vec![words_buffer(Words::default())]);
        batch.receive(0, 0..HEADER_BYTES, from, Tag::MessageHeader)?;
        let words = only(self.wait_for(batch, header)?);
        let Some(message) = Header::decode(words_of(&words)) else {
            let what = format!("rank {from} sent a message with an unreadable header");
            return Err(Error::Protocol { what });
        };
        if message.element != header.element {
            let (expected, got) = (message.element, header.element);
            return Err(Error::ElementType { expected, got });
        }
        if message.len != header.len {
            let (expected, got) = (message.len, header.len);
            return Err(Error::Length { op: header.op.name(), expected, got });
        }
        let bytes = buffer.bytes().len();
        let mut batch = Batch::new(self.comm, vec![buffer]);
        batch.receive(0, 0..bytes, from, Tag::Message)?;
        self.wait_for(batch, header).map(only)
    }

    /// The memory of `batch`, when all its requests are complete.
    fn wait_for(&mut self, mut batch: Batch, header: Header) -> Result<Vec<Buffer>> {
        let wait = Wait::begin();
        loop {
            if let Some(memory) = batch.poll()? {
                return Ok(memory);
            }
            self.pause(&wait, header, || batch.missing())?;
            // The parts of a collective all come from ranks that have joined it, but a message may
            // be waited for from a rank that has left without sending it.
            let Collective::Recv { from } = header.op else { continue };
            if let Some([GOODBYE, sent, _]) = self.inbox[from].peek()?
                && sent < self.asked[from]
            {
                return Err(self.left(from, header));
            }
        }
    }

    /// Passes some time of a wait, for which `missing` are to blame when the deadline passes.
    fn pause(
        &mut self,
        wait: &Wait,
        header: Header,
        missing: impl FnOnce() -> Vec<usize>,
    ) -> Result<()> {
        life::abort_if_asked();
        self.progress();
        let waited = wait.pause(&mut self.load);
        if waited <= self.deadline {
            return Ok(());
        }
        let missing: Vec<String> = missing().iter().map(usize::to_string).collect();
        Err(Error::Timeout {
            rank: self.rank,
            during: header.to_string(),
            missing: missing.join(", "),
            waited,
        })
    }

    fn left(&self, peer: usize, header: Header) -> Error {
        Error::PeerLeft { peer, rank: self.rank, during: header.to_string() }
    }

    /// Says goodbye, waits until everybody has, and finalises MPI.
    fn leave(&mut self) -> Result<()> {
        let sent = self.sent.clone();
        self.tell_others(|to| [GOODBYE, sent[to], 0])?;
        let wait = Wait::begin();
        loop {
            life::abort_if_asked();
            let mut all_left = true;
            for other in self.others() {
                match self.inbox[other].peek()? {
                    Some([GOODBYE, ..]) => {}
                    // It is in an operation that will never be complete, and our goodbye tells it
                    // so. Why we leave, `main` can print only after this.
                    Some(_) => {
                        let what = format!("rank {other} still needs this rank, which leaves");
                        return Err(Error::Protocol { what });
                    }
                    None => all_left = false,
                }
            }
            if all_left {
                break;
            }
            self.progress();
            wait.pause(&mut self.load);
        }
        let drained = Wait::begin();
        while self.progress() {
            if drained.pause(&mut self.load) > STRAGGLER {
                let what = "a message that was sent has never been received".to_owned();
                return Err(Error::Protocol { what });
            }
        }
        self.comm.free()?;
        if let (Some(universe), true) = (self.universe.take(), life::end()) {
            drop(ManuallyDrop::into_inner(universe));
        }
        Ok(())
    }
}

/// What another rank is about to do: one header ahead at most, since it needs ours to go on.
#[derive(Default)]
struct Inbox {
    posted: Option<Batch>,
    arrived: Option<Words>,
}

impl Inbox {
    fn posted(comm: Comm, from: usize) -> Result<Self> {
        let mut batch = Batch::new(comm, vec![words_buffer(Words::default())]);
        batch.receive(0, 0..HEADER_BYTES, from, Tag::Header)?;
        Ok(Self { posted: Some(batch), arrived: None })
    }

    /// The next header, if it has arrived.
    fn peek(&mut self) -> Result<Option<Words>> {
        if let Some(batch) = &mut self.posted
            && let Some(memory) = batch.poll()?
        {
            self.arrived = Some(words_of(&only(memory)));
            self.posted = None;
        }
        Ok(self.arrived)
    }

    /// Takes the header that has arrived and posts the receive for the one after it.
    fn take(&mut self, comm: Comm, from: usize) -> Result<Words> {
        let words = self.arrived.expect("taken after a look that found it");
        *self = Self::posted(comm, from)?;
        Ok(words)
    }
}

fn words_buffer(words: Words) -> Buffer {
    let mut buffer = Buffer::zeros(ElementType::U8, HEADER_BYTES);
    buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(&words));
    buffer
}

fn words_of(buffer: &Buffer) -> Words {
    bytemuck::pod_read_unaligned(buffer.bytes())
}

fn only(memory: Vec<Buffer>) -> Buffer {
    let [buffer] = <[Buffer; 1]>::try_from(memory).expect("a batch gives back what it was given");
    buffer
}

fn both(memory: Vec<Buffer>) -> [Buffer; 2] {
    memory.try_into().expect("a batch gives back what it was given")
}
