//! The backend for ranks of one host: an anonymous shared-memory segment and a mesh of Unix
//! sockets, nothing to install and nothing left behind.
//!
//! Payload goes through memory: a buffer from [`Communicator::alloc`] lies *in* the segment and is
//! reduced there, each rank reducing its own slice of all copies; other buffers pass through a slot
//! per rank, piece by piece ([`collectives`]). Ranks meet at a barrier of one cache line each
//! ([`cells`]). The sockets ([`mesh`]) hand the segment over, carry point-to-point messages, and tell
//! at once when a peer dies.
//!
//! A group has cells and slots of its own in the same segment, and shares the sockets: a death is
//! noticed in every group, whether the dead rank belongs to it or not.
//!
//! Sums are added in rank order by whichever rank owns the slice: every rank gets the same bits, and
//! so does every run.

mod cells;
mod collectives;
mod exchange;
mod memory;
mod mesh;
mod rendezvous;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use self::cells::{Cell, Cells};
use self::exchange::Exchange;
use self::memory::{FIRST, Memory, Place, Region, stride};
use self::mesh::Mesh;
use super::collective::Header;
use super::rendezvous::JobId;
use super::threaded::{Connected, Threaded};
use super::transport::Transport;
use super::{Buffer, Collective, Communicator, ElementType};
use crate::{Error, Result};

/// Bytes of each rank's slot, through which buffers pass that are not in the segment.
const SLOT: usize = 256 * 1024;

/// Bytes per rank of what a group needs.
const GROUP: [usize; 2] = [size_of::<Cell>(), SLOT];

/// Who meets, and how long anybody waits.
#[derive(Clone, Debug)]
pub(crate) struct LocalConfig {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
}

/// Joins the ranks of `config.job`.
pub(crate) fn connect(config: LocalConfig) -> Result<Arc<dyn Communicator>> {
    let connect = move || {
        let transport = Local::connect(&config)?;
        let abort = transport.mesh.abort_handle();
        let (rank, world_size) = (config.rank, config.world_size);
        Ok(Connected { transport, rank, world_size, abort })
    };
    Ok(Arc::new(Threaded::start(connect)?))
}

/// This rank's side of a group.
struct Local {
    mesh: Arc<Mesh>,
    memory: Arc<Memory>,
    /// The members' ranks in the world.
    ranks: Arc<[usize]>,
    place: Place,
    exchange: Exchange,
    slots: Region,
}

impl Local {
    fn connect(config: &LocalConfig) -> Result<Self> {
        let (rank, world_size) = (config.rank, config.world_size);
        let make = || {
            let memory = Memory::create()?;
            memory.reserve(&GROUP, world_size)?;
            Ok(memory)
        };
        let (mesh, memory) = Mesh::connect(config, make)?;
        let (mesh, memory) = (Arc::new(mesh), Arc::new(memory));
        let place = Place { group: FIRST, rank, world_size };
        Self::join(mesh, memory, (0..world_size).collect(), place, config.deadline)
    }

    /// Takes this rank's place in a group whose memory has been reserved.
    fn join(
        mesh: Arc<Mesh>,
        memory: Arc<Memory>,
        ranks: Arc<[usize]>,
        place: Place,
        deadline: Duration,
    ) -> Result<Self> {
        let [cell, slot] = GROUP;
        let cells = memory.map(place.group, cell, place)?;
        let slots = place.group + (stride(cell) * place.world_size) as u64;
        let slots = memory.map(slots, slot, place)?.give_back_on_drop();
        let names = Arc::clone(&ranks);
        let cells = Cells::new(cells);
        let (watcher, kept) = (mesh.watcher(), Arc::clone(&memory));
        let exchange = Exchange::new(cells, watcher, kept, place.group, names, deadline);
        Ok(Self { mesh, memory, ranks, place, exchange, slots })
    }

    /// Reserves memory on rank `at`, and tells all ranks of the group where it starts. Those that
    /// have another `at` reserve and learn of other memory.
    fn reserve_together(&mut self, at: usize, parts: &[usize], ranks: usize) -> Result<u64> {
        let own = (at == self.place.rank).then(|| self.memory.reserve(parts, ranks));
        // 0 is not where a region starts: it says that there was no room.
        let start = own.as_ref().map_or(0, |start| *start.as_ref().unwrap_or(&0));
        let input = start.to_le_bytes();
        let mut starts = vec![[0_u8; 8]; self.place.world_size];
        self.show(Some(&input), input.len(), false, |_, slots| {
            for (start, slot) in starts.iter_mut().zip(slots) {
                start.copy_from_slice(slot);
            }
        })?;
        if let Some(own) = own {
            return own;
        }
        match u64::from_le_bytes(starts[at]) {
            0 => {
                let bytes: usize = parts.iter().map(|part| part * ranks).sum();
                // An echo: that rank has the system's own answer, and says it.
                let message = format!("no room for {bytes} bytes of shared memory");
                Err(Error::PeerFailed { peer: self.ranks[at], message })
            }
            start => Ok(start),
        }
    }

    fn recv(&mut self, from: &[usize], header: Header, mut buffer: Buffer) -> Result<Buffer> {
        let (group, limit) = (self.place.group, self.exchange.deadline());
        let watcher = self.mesh.watcher();
        let message = watcher.take_message(group, from, limit, || header.to_string())?;
        let element = message.element()?;
        if element != header.element {
            return Err(Error::ElementType { expected: element, got: header.element });
        }
        let len = message.bytes.len() / element.size();
        if header.op == Collective::RecvAny {
            buffer = Buffer::zeros(element, len);
        }
        if len != buffer.len() {
            return Err(Error::Length { op: "recv", expected: len, got: buffer.len() });
        }
        buffer.bytes_mut().copy_from_slice(&message.bytes);
        let source = self.ranks.iter().position(|&rank| rank == message.from).unwrap_or(0);
        Ok(buffer.with_source(source))
    }
}

impl Transport for Local {
    fn backend(&self) -> &'static str {
        "local"
    }

    fn is_on_processors(&self) -> bool {
        true
    }

    fn execute(&mut self, header: Header, buffer: Buffer) -> Result<Buffer> {
        self.exchange.begin(header);
        let result = match header.op {
            Collective::Send { to } => {
                let sent = self.mesh.send(self.place.group, self.ranks[to], header, buffer.bytes());
                sent.map(|()| Buffer::zeros(header.element, 0))
            }
            Collective::Recv { from } => self.recv(&[self.ranks[from]], header, buffer),
            Collective::RecvAny => self.recv(&Arc::clone(&self.ranks), header, buffer),
            _ => self.collective(header, buffer),
        };
        if result.is_err() {
            self.memory.keep_everything();
        }
        result
    }

    fn alloc(&mut self, sequence: u64, element: ElementType, len: usize) -> Result<Buffer> {
        let header = Header { sequence, op: Collective::Barrier, element, len };
        self.exchange.agree(header, 0)?;
        let part = (len * element.size()).max(1);
        let start = self.reserve_together(0, &[part], self.place.world_size)?;
        let region = self.memory.map(start, part, self.place)?.give_back_on_drop();
        Ok(Buffer::shared(element, len, Box::new(region)))
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        let first = members.and_then(|members| members.first().copied());
        // A rank that joins nothing takes part in telling all the same.
        let at = first.unwrap_or(self.place.world_size);
        let size = members.map_or(0, <[usize]>::len);
        let Some(members) = members.filter(|members| !members.is_empty()) else {
            self.show(Some(&[0; 8]), 8, false, |_, _| {})?;
            return Ok(None);
        };
        let group = self.reserve_together(at, &GROUP, size)?;
        let rank = members.iter().position(|&member| member == self.place.rank).unwrap_or(0);
        let ranks = members.iter().map(|&member| self.ranks[member]).collect();
        let place = Place { group, rank, world_size: size };
        let (mesh, memory) = (Arc::clone(&self.mesh), Arc::clone(&self.memory));
        Self::join(mesh, memory, ranks, place, self.exchange.deadline()).map(Some)
    }

    fn leave(&mut self) {
        self.mesh.leave(self.place.group, &self.ranks);
    }

    fn finish(&mut self) {
        self.mesh.finish();
    }
}
