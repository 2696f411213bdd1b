//! The values of parameters of which each rank keeps its shard alone, in the memory of the parameters' device: in f32, but
//! those of a frozen parameter in the parameter's type.
//!
//! A rank that needs a parameter asks the others for their shards, by a message, and a thread of each rank answers. So
//! a rank may read any parameter at any time, whatever the other ranks do: one that has no batch left, or has failed,
//! or waits for this rank's checkpoint, need not know that another one reads.
//!
//! **Invariant** A rank gets the values that belong to its own place in the program. Values have a version, which every
//! rank counts up after the same changes. A request names the version of the rank that asks. A rank that is behind
//! answers when it has come so far. A rank cannot be ahead: an update needs the gradients of all ranks, which they
//! compute after they have read the parameters, and before another change all ranks wait for each other. A step that is
//! not taken counts, too, because some ranks may have to undo early updates. Where hosts have
//! copies of all shards, a rank reads from the ranks of its host alone, and so only these wait for each other. A thread
//! that reads while another thread of its rank takes a step may be behind the other ranks, or ask for what a rank is just
//! changing. It reads again when its rank has come so far.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use candelabrum_memory::{ElementType, FlatTensor, Location, Span, SpanMut};
use candelabrum_nn::{Param, ShardedValues, with_span};
use candle_core::DType;
use parking_lot::{Mutex, MutexGuard};

use crate::comm::{Collective, Communicator, Group, Payload, Pending, Service};
use crate::launch;
use crate::{Error, Result};

/// A part of the wait for the next request, which has no deadline.
const PART: Duration = Duration::from_secs(1);

/// Between two looks of a thread that waits for another one of its rank.
const BREAK: Duration = Duration::from_micros(200);

/// The first number of every message.
const MAGIC: u64 = 0x5A4E_D7A1_0E50_0001;

/// The first part of a message. A request is followed by the numbers of parameters, as u64, and an answer by the shards
/// of these parameters, in this order, as f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct ValuesHeader {
    magic: u64,
    kind: u64,
    /// The number of the request.
    ticket: u64,
    version: u64,
}

const HEADER: usize = size_of::<ValuesHeader>();

/// What messages are about, in errors.
const LABEL: &str = "values of parameters";

const READ: u64 = 1;
const VALUES: u64 = 2;
/// A rank reads nothing any more.
const GOODBYE: u64 = 3;

/// The shards of all ranks, as one rank sees them.
pub(super) struct ParamShards {
    /// The ranks that have all shards together. Parameters, which have the values, do not keep the ranks in the group.
    group: Weak<dyn Communicator>,
    /// Carries requests.
    requests: Group,
    table: Arc<ShardTable>,
    own: Arc<OwnShards>,
    kept: Arc<Mutex<ServedShards>>,
    reader: Mutex<ShardRequests>,
    /// Whether this rank reads nothing any more.
    closed: Arc<AtomicBool>,
}

/// Where the values are.
struct ShardTable {
    /// Carries answers.
    answers: Group,
    /// By parameter: the elements of each rank. Empty for a parameter that is not shared.
    owners: Vec<Vec<Range<usize>>>,
    /// By parameter, for messages.
    names: Vec<String>,
}

/// By parameter: this rank's shard, where the parameter is. An update of a large matrix takes long, and other parameters
/// can be read meanwhile.
type OwnShards = [Mutex<FlatTensor>];

/// What other ranks get.
struct ServedShards {
    version: u64,
    /// The parameters whose shards have values of the next version in part, in the middle of a step. Only a thread beside
    /// the one that takes the step asks for them.
    changing: BTreeSet<usize>,
    shards: ShardMemory,
    /// Requests of ranks that are ahead.
    deferred: Vec<ReadRequest>,
    /// Answers under way.
    sent: Vec<Pending>,
}

/// The shards of this rank, in the memory of the host.
enum ShardMemory {
    Themselves(Arc<OwnShards>),
    /// Copies of shards on a GPU. An answer must not wait for the GPU, which may wait for the gradients of the rank that
    /// has asked.
    Copies(Vec<FlatTensor>),
}

/// A request of another rank.
struct ReadRequest {
    from: usize,
    ticket: u64,
    version: u64,
    params: Vec<usize>,
}

/// The requests of this rank.
#[derive(Default)]
struct ShardRequests {
    tickets: u64,
    /// Answers that have not come, of any request.
    expected: VecDeque<Pending>,
    /// The answers that have come to requests whose values are wanted, by their tickets and by ranks.
    arrived: BTreeMap<u64, BTreeMap<usize, Payload>>,
    /// What will probably be read next.
    prefetched: Option<Ticket>,
}

/// A request to all ranks that have some of the values.
struct Ticket {
    number: u64,
    version: u64,
    params: Vec<usize>,
    ranks: usize,
}

impl ParamShards {
    /// Takes the shard of this rank of the values of `params`, of which the first `trained` ones are trained. `owners_of` says by a parameter's number which elements each
    /// rank owns: nothing of one that stays whole. The ranks of `group` have all shards together, and call it together.
    pub(super) fn new(
        group: &Group,
        params: &[Param],
        trained: usize,
        owners_of: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Result<Self> {
        let (requests, answers) = (group.channel()?, group.channel()?);
        let (mut own, mut owners) = (Vec::new(), Vec::new());
        for (number, param) in params.iter().enumerate() {
            let location = Location::from_device(param.device());
            let owned = owners_of(number);
            let range = owned.get(group.rank()).cloned().unwrap_or_default();
            // One that is frozen later has a master.
            let is_left_out = number >= trained;
            let element = match (is_left_out, param.dtype()) {
                (true, DType::F16) => ElementType::F16,
                (true, DType::BF16) => ElementType::Bf16,
                _ => ElementType::F32,
            };
            let mut values = FlatTensor::zeros_on(&location, element, range.len())?;
            if is_left_out {
                // It has no master, which would be made for this.
                with_span(param.var(), |all| set_shard(&mut values, all.range(range)))?;
            } else if !range.is_empty() {
                let mut to = values.span_mut()?;
                param.with_values(|values| to.copy_from(values.range(range)))?;
            }
            own.push(Mutex::new(values));
            owners.push(owned);
        }
        let own: Arc<OwnShards> = own.into();
        let shards = ShardMemory::new(&own)?;
        let (changing, deferred, sent) = (BTreeSet::new(), Vec::new(), Vec::new());
        let kept =
            Arc::new(Mutex::new(ServedShards { version: 0, changing, shards, deferred, sent }));
        let names = params.iter().map(|param| param.name().to_owned()).collect();
        let (table, closed) = (Arc::new(ShardTable { answers, owners, names }), Arc::default());
        let (group, reader) = (Arc::downgrade(group), Mutex::default());
        let values = Self { group, requests, table, own, kept, reader, closed };
        values.serve();
        Ok(values)
    }

    /// Starts the thread that answers.
    fn serve(&self) {
        let (requests, table, kept) =
            (Arc::clone(&self.requests), Arc::clone(&self.table), Arc::clone(&self.kept));
        let (closed, goodbye) = (Arc::clone(&self.closed), Arc::clone(&self.requests));
        let thread = thread::Builder::new().name("shared values".to_owned());
        let thread = thread.spawn(move || {
            // The group knows of a failure, and so does whoever uses it next.
            if let Err(error) = answer_all(&requests, &table, &kept) {
                tracing::debug!("no more parameters for other ranks: {error}");
                if !error.is_shared() {
                    requests.fail(&error);
                }
            }
        });
        match (thread, self.requests.services()) {
            (Ok(thread), Some(services)) => {
                let close = Box::new(move || say_goodbye(&goodbye, &closed));
                services.add(Service { close, thread });
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                self.requests.fail(&Error::io("start a thread", error.kind()));
            }
        }
    }

    /// Says that this rank reads nothing any more.
    pub(super) fn close(&self) {
        say_goodbye(&self.requests, &self.closed);
    }

    /// Whether the values of this parameter are divided among processes.
    pub(super) fn has(&self, param: usize) -> bool {
        !self.table.owners[param].is_empty()
    }

    /// Says that this rank is about to change its shard of a parameter in a step.
    pub(super) fn begin_change(&self, param: usize) {
        self.kept.lock().changing.insert(param);
    }

    /// Notes that the values have changed on all ranks.
    pub(super) fn advance(&self) -> Result<()> {
        let shards = ShardMemory::new(&self.own)?;
        let mut kept = self.kept.lock();
        kept.shards = shards;
        kept.advance(&self.table)
    }

    /// Calls `f` with the shards of these parameters, whose numbers rise.
    pub(super) fn with_shards<R>(
        &self,
        params: &[usize],
        f: impl FnOnce(Vec<SpanMut<'_>>) -> R,
    ) -> Result<R> {
        let mut own: Vec<_> = params.iter().map(|&number| self.own[number].lock()).collect();
        let shards = own.iter_mut().map(|shard| shard.span_mut());
        Ok(f(shards.collect::<candelabrum_memory::Result<_>>()?))
    }

    /// The bytes of this rank's shards.
    pub(super) fn bytes(&self) -> usize {
        self.own.iter().map(|shard| shard.lock().byte_len()).sum()
    }

    /// Returns an error if this rank reads nothing any more.
    fn check_open(&self, params: &[usize]) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(self.is_closed(params)) } else { Ok(()) }
    }

    fn is_closed(&self, params: &[usize]) -> Error {
        let name = params.first().map_or("", |&param| &self.table.names[param]);
        Error::Closed { name: name.to_owned() }
    }

    /// Asks the other ranks for their shards of these parameters.
    fn ask(&self, reader: &mut ShardRequests, version: u64, params: &[usize]) -> Result<Ticket> {
        self.check_open(params)?;
        reader.tickets += 1;
        let number = reader.tickets;
        let mut ranks = 0;
        for rank in others(&self.requests) {
            let wanted = params.iter().filter(|&&param| !self.table.owners[param][rank].is_empty());
            let wanted: Vec<u64> = wanted.map(|&param| param as u64).collect();
            if wanted.is_empty() {
                continue;
            }
            // The answer may come at once.
            let answer = Payload::zeros(ElementType::U8, 0).labelled(LABEL);
            reader.expected.push_back(self.table.answers.start(Collective::RecvAny, answer));
            let header = ValuesHeader { magic: MAGIC, kind: READ, ticket: number, version };
            let message = [bytemuck::bytes_of(&header), bytemuck::cast_slice(&wanted)].concat();
            self.requests.send(&message, rank)?;
            ranks += 1;
        }
        reader.arrived.insert(number, BTreeMap::new());
        Ok(Ticket { number, version, params: params.to_vec(), ranks })
    }

    /// Waits for all answers to a request.
    fn wait(
        &self,
        reader: &mut ShardRequests,
        ticket: &Ticket,
    ) -> Result<BTreeMap<usize, Payload>> {
        loop {
            let arrived = reader.arrived.get(&ticket.number).map_or(0, BTreeMap::len);
            if arrived == ticket.ranks {
                return Ok(reader.arrived.remove(&ticket.number).unwrap_or_default());
            }
            let Some(next) = reader.expected.pop_front() else {
                return Err(protocol("fewer answers than requests for parameters"));
            };
            let answer = next.wait()?;
            let (header, _) = header_of(answer.as_slice::<u8>()?)?;
            let from = answer.source().unwrap_or_default();
            // Nobody waits for the answers to a request that was given up.
            if let Some(answers) = reader.arrived.get_mut(&header.ticket) {
                answers.insert(from, answer);
            }
        }
    }

    /// The shards of the other ranks, with the version that this rank has: its values do not change before the guard is
    /// dropped.
    fn read_others(
        &self,
        params: &[usize],
    ) -> Result<(BTreeMap<usize, Payload>, MutexGuard<'_, ServedShards>)> {
        let start = Instant::now();
        loop {
            self.check_open(params)?;
            let mut reader = self.reader.lock();
            let version = self.kept.lock().version;
            let is_wanted = |ticket: &Ticket| ticket.version == version && ticket.params == params;
            let ticket = match reader.prefetched.take() {
                Some(ticket) if is_wanted(&ticket) => ticket,
                other => {
                    reader.give_up(other);
                    self.ask(&mut reader, version, params)?
                }
            };
            let answers = self.wait(&mut reader, &ticket)?;
            drop(reader);
            let kept = self.kept.lock();
            let ahead = ahead_of(&answers, version)?;
            let own = (self.requests.rank(), version + 1);
            let ahead = ahead.or(kept.is_changing(params).then_some(own));
            if kept.version == version && ahead.is_none() {
                return Ok((answers, kept));
            }
            drop(kept);
            if let Some((from, there)) = ahead {
                self.come_to(there, from, start)?;
            }
        }
    }

    /// Waits until this rank, of which another thread takes a step, has the version of the rank `from`.
    fn come_to(&self, version: u64, from: usize, start: Instant) -> Result<()> {
        let deadline = launch::timeout()?;
        loop {
            let own = self.kept.lock().version;
            if own >= version {
                return Ok(());
            }
            if let Some(error) = self.requests.failure() {
                return Err(error);
            }
            if start.elapsed() > deadline {
                let from = self.requests.ranks()[from];
                return Err(protocol(&format!(
                    "rank {from} has changed its parameters {version} times, this rank {own} times: all ranks must change them together"
                )));
            }
            thread::sleep(BREAK);
        }
    }

    fn read_all(&self, params: &[usize], take: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let (answers, kept) = self.read_others(params)?;
        let mut rest: BTreeMap<usize, &[u8]> = BTreeMap::new();
        for (&rank, answer) in &answers {
            let (header, values) = header_of(answer.as_slice::<u8>()?)?;
            if header.kind != VALUES {
                return Err(protocol("an answer without values of parameters"));
            }
            rest.insert(rank, values);
        }
        for &param in params {
            for (rank, range) in self.table.owners[param].iter().enumerate() {
                if rank == self.requests.rank() {
                    kept.shards
                        .with(param, |shard| with_f32(shard, |values| take(param, values)))?;
                    continue;
                }
                if range.is_empty() {
                    continue;
                }
                let bytes = rest.get_mut(&rank).and_then(|rest| {
                    let (values, tail) = rest.split_at_checked(range.len() * size_of::<f32>())?;
                    *rest = tail;
                    Some(values)
                });
                let bytes = bytes.ok_or_else(|| protocol("an answer with too few values"))?;
                match bytemuck::try_cast_slice::<u8, f32>(bytes) {
                    Ok(values) => take(param, values),
                    Err(_) => take(param, &numbers(bytes, f32::from_ne_bytes)),
                }
            }
        }
        match rest.into_values().all(<[u8]>::is_empty) {
            true => Ok(()),
            false => Err(protocol("an answer with too many values")),
        }
    }
}

impl ShardedValues for ParamShards {
    fn prefetch(&self, params: &[usize]) {
        let mut reader = self.reader.lock();
        let version = self.kept.lock().version;
        let old = reader.prefetched.take();
        reader.give_up(old);
        // A failure shows when the values are read.
        reader.prefetched = self.ask(&mut reader, version, params).ok();
    }

    fn read(
        &self,
        params: &[usize],
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> candle_core::Result<()> {
        let _span = tracing::trace_span!(target: "candelabrum::step", "fetch").entered();
        Ok(self.read_all(params, take)?)
    }

    fn own(&self, param: usize) -> Range<usize> {
        self.table.owners[param].get(self.requests.rank()).cloned().unwrap_or_default()
    }

    fn with_own(&self, param: usize, f: &mut dyn FnMut(SpanMut<'_>)) -> candle_core::Result<()> {
        let mut own = self.own[param].lock();
        Ok(change_f32(&mut own, f)?)
    }

    fn change_own(&self, param: usize, f: &mut dyn FnMut(SpanMut<'_>)) -> candle_core::Result<()> {
        self.check_open(&[param])?;
        // No rank may still need the old values. Only the ranks that have the other shards read this one.
        let group = self.group.upgrade().ok_or_else(|| self.is_closed(&[param]))?;
        let label = format!("change of `{}`", self.table.names[param]);
        group.run(Collective::Barrier, Payload::empty().labelled(label))?;
        // Nobody gets new values as those of the old version.
        let mut kept = self.kept.lock();
        let mut own = self.own[param].lock();
        change_f32(&mut own, f)?;
        let copy = own.is_on_device().then(|| own.to_host()).transpose()?;
        drop(own);
        if let (ShardMemory::Copies(copies), Some(copy)) = (&mut kept.shards, copy) {
            copies[param] = copy;
        }
        Ok(kept.advance(&self.table)?)
    }
}

impl ShardRequests {
    /// Drops the answers to a request, now and when they come.
    fn give_up(&mut self, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.arrived.remove(&ticket.number);
        }
    }
}

impl ServedShards {
    fn is_changing(&self, params: &[usize]) -> bool {
        params.iter().any(|param| self.changing.contains(param))
    }

    fn advance(&mut self, table: &ShardTable) -> Result<()> {
        self.version += 1;
        self.changing.clear();
        let version = self.version;
        let (due, later) =
            self.deferred.drain(..).partition(|request: &ReadRequest| request.version <= version);
        self.deferred = later;
        let due: Vec<ReadRequest> = due;
        due.into_iter().try_for_each(|request| self.answer(table, request))
    }

    /// Sends this rank's shards, now or when they have the version that is asked for.
    fn answer(&mut self, table: &ShardTable, request: ReadRequest) -> Result<()> {
        if request.version > self.version {
            self.deferred.push(request);
            return Ok(());
        }
        let rank = table.answers.rank();
        let range = |&param: &usize| table.owners.get(param).and_then(|owners| owners.get(rank));
        let lens = request.params.iter().map(|param| range(param).map(Range::len));
        let lens: Option<Vec<usize>> = lens.collect();
        let lens = lens.ok_or_else(|| protocol("a request for a parameter that is not shared"))?;
        let len = lens.iter().sum::<usize>() * size_of::<f32>();
        let mut message = table.answers.alloc_message(HEADER + len);
        let version = self.version + u64::from(self.is_changing(&request.params));
        let header = ValuesHeader { magic: MAGIC, kind: VALUES, ticket: request.ticket, version };
        let (start, mut rest) = message.bytes_mut().split_at_mut(HEADER);
        start.copy_from_slice(bytemuck::bytes_of(&header));
        for (&param, len) in request.params.iter().zip(lens) {
            let (place, tail) = rest.split_at_mut(len * size_of::<f32>());
            rest = tail;
            self.shards.with(param, |shard| {
                with_f32(shard, |values| place.copy_from_slice(bytemuck::cast_slice(values)))
            })?;
        }
        self.sent.retain_mut(|sent| !sent.is_complete());
        let message = message.labelled(LABEL);
        self.sent.push(table.answers.start(Collective::Send { to: request.from }, message));
        Ok(())
    }
}

impl ShardMemory {
    fn new(own: &Arc<OwnShards>) -> Result<Self> {
        if !own.iter().any(|shard| shard.lock().is_on_device()) {
            return Ok(Self::Themselves(Arc::clone(own)));
        }
        let copies = own.iter().map(|shard| shard.lock().to_host());
        Ok(Self::Copies(copies.collect::<candelabrum_memory::Result<_>>()?))
    }

    fn with<R>(&self, param: usize, f: impl FnOnce(&FlatTensor) -> Result<R>) -> Result<R> {
        match self {
            Self::Themselves(own) => f(&own[param].lock()),
            Self::Copies(copies) => f(&copies[param]),
        }
    }
}

/// Calls `f` with the values of a shard on the host, in f32.
fn with_f32<R>(shard: &FlatTensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    if shard.element_type() == ElementType::F32 {
        return Ok(f(shard.as_slice()?));
    }
    let mut values = FlatTensor::zeros(ElementType::F32, shard.len());
    shard.widen_into(values.span_mut()?)?;
    Ok(f(values.as_slice()?))
}

/// Calls `f` with the values of a shard in f32, to be changed.
fn change_f32(shard: &mut FlatTensor, f: impl FnOnce(SpanMut<'_>)) -> Result<()> {
    if shard.element_type() == ElementType::F32 {
        f(shard.span_mut()?);
        return Ok(());
    }
    let mut values = FlatTensor::zeros(ElementType::F32, shard.len());
    shard.widen_into(values.span_mut()?)?;
    f(values.span_mut()?);
    set_shard(shard, values.span()?)
}

/// Sets a shard to values in f32, which are rounded to its type.
fn set_shard(shard: &mut FlatTensor, values: Span<'_>) -> Result<()> {
    match shard.element_type() {
        ElementType::F32 => Ok(shard.span_mut()?.copy_from(values)?),
        _ => Ok(shard.narrow_from(values, 1.0)?),
    }
}

/// Answers the other ranks until all ranks have said goodbye.
fn answer_all(requests: &Group, table: &ShardTable, kept: &Mutex<ServedShards>) -> Result<()> {
    let mut goodbyes = 0;
    while goodbyes < requests.world_size() - 1 {
        let request = Payload::zeros(ElementType::U8, 0).labelled(LABEL);
        let mut next = requests.start(Collective::RecvAny, request);
        while !next.wait_for(PART) {}
        let message = next.wait()?;
        let (header, params) = header_of(message.as_slice::<u8>()?)?;
        match (header.kind, message.source()) {
            (GOODBYE, _) => goodbyes += 1,
            (READ, Some(from)) => {
                let params = numbers(params, |bytes| u64::from_ne_bytes(bytes) as usize);
                let ValuesHeader { ticket, version, .. } = header;
                kept.lock().answer(table, ReadRequest { from, ticket, version, params })?;
            }
            _ => return Err(protocol("a message that is no request for parameters")),
        }
    }
    // The last answers.
    let sent = std::mem::take(&mut kept.lock().sent);
    sent.into_iter().try_for_each(|sent| sent.wait().map(drop))
}

/// The other ranks of a group.
fn others(group: &Group) -> impl Iterator<Item = usize> {
    let own = group.rank();
    (0..group.world_size()).filter(move |&rank| rank != own)
}

/// Tells the other ranks that this one reads nothing any more.
fn say_goodbye(requests: &Group, closed: &AtomicBool) {
    if closed.swap(true, Ordering::AcqRel) {
        return;
    }
    let header = ValuesHeader { magic: MAGIC, kind: GOODBYE, ticket: 0, version: 0 };
    for rank in others(requests) {
        if let Err(error) = requests.send(bytemuck::bytes_of(&header), rank) {
            tracing::debug!("no goodbye to rank {rank}: {error}");
        }
    }
}

/// A rank that has answered with values of a later version, and this version.
fn ahead_of(answers: &BTreeMap<usize, Payload>, version: u64) -> Result<Option<(usize, u64)>> {
    let mut ahead = None;
    for (&from, answer) in answers {
        let (header, _) = header_of(answer.as_slice::<u8>()?)?;
        if header.version > version {
            ahead = ahead.max(Some((header.version, from)));
        }
    }
    Ok(ahead.map(|(version, from)| (from, version)))
}

fn header_of(message: &[u8]) -> Result<(ValuesHeader, &[u8])> {
    let parts = message.split_at_checked(HEADER);
    let parts =
        parts.map(|(header, rest)| (bytemuck::pod_read_unaligned::<ValuesHeader>(header), rest));
    let parts = parts.filter(|(header, _)| header.magic == MAGIC);
    parts.ok_or_else(|| protocol("a message that is none of the parameters' values"))
}

/// Numbers of `N` bytes each, wherever they lie.
fn numbers<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|&bytes| read(bytes)).collect()
}

fn protocol(what: &str) -> Error {
    Error::Protocol { what: what.to_owned() }
}

impl fmt::Debug for ParamShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParamShards").field("version", &self.kept.lock().version).finish()
    }
}

/// The shared values of an optimizer. When it is dropped, this rank reads none of them any more.
#[derive(Debug)]
pub(super) struct OpenValues(pub(super) Arc<ParamShards>);

impl Drop for OpenValues {
    fn drop(&mut self) {
        self.0.close();
    }
}
