//! The backend for ranks of one host: an anonymous shared-memory segment and a mesh of Unix
//! sockets, nothing to install and nothing left behind.
//!
//! Payload goes through memory: a buffer from [`Communicator::alloc`] lies *in* the segment and is
//! reduced there, each rank reducing its own slice of all copies; other buffers pass through a slot
//! per rank, piece by piece ([`collectives`]). Ranks meet at a barrier of one cache line each
//! ([`cells`]). A socket between every two ranks hands the segment over, carries messages, and tells
//! at once when a peer dies ([`network`](super::network)).
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
mod rendezvous;

use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::Flat;

use self::cells::{Cell, Cells};
use self::exchange::Exchange;
use self::memory::{FIRST, Memory, Place, Region, stride};
use super::collective::Header;
use super::members::Failure;
use super::network::Network;
use super::threaded::{Connected, Threaded};
use super::transport::{Messages, Transport};
use super::{Communicator, Payload};
use crate::{Error, Result};

/// Bytes of each rank's slot, through which buffers pass that are not in the segment.
const SLOT: usize = 256 * 1024;

/// An operation on fewer bytes takes less time than waking a thread for it.
const LIGHT: usize = 256 * 1024;

/// Bytes per rank of what a group needs.
const GROUP: [usize; 2] = [size_of::<Cell>(), SLOT];

/// Who meets, and how long anybody waits.
#[derive(Clone, Debug)]
pub(crate) struct LocalConfig {
    /// A word that all ranks of this job know, and nobody else uses.
    pub(crate) job: String,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
}

/// Joins the ranks of `config.job`.
pub(crate) fn connect(config: LocalConfig) -> Result<Arc<dyn Communicator>> {
    let connect = move |failure: &Failure| {
        let transport = Local::connect(&config, failure)?;
        let abort = Arc::clone(&transport.network);
        let LocalConfig { rank, world_size, deadline, .. } = config;
        Ok(Connected { transport, rank, world_size, deadline, abort })
    };
    Ok(Arc::new(Threaded::start(connect)?))
}

/// This rank's side of a group.
struct Local {
    network: Arc<Network>,
    memory: Arc<Memory>,
    /// The members' ranks in the world.
    ranks: Arc<[usize]>,
    place: Place,
    exchange: Exchange,
    slots: Region,
}

impl Local {
    /// Meets all ranks; rank 0 makes the segment and hands it to the others.
    fn connect(config: &LocalConfig, failure: &Failure) -> Result<Self> {
        let &LocalConfig { rank, world_size, deadline, .. } = config;
        let sockets = rendezvous::meet(config)?;
        let memory = match sockets.first().and_then(Option::as_ref) {
            Some(root) => Memory::received(rendezvous::receive_file(root, config)?)?,
            None => {
                let memory = Memory::create()?;
                memory.reserve(&GROUP, world_size)?;
                for socket in sockets.iter().flatten() {
                    rendezvous::send_file(socket, memory.fd())?;
                }
                memory
            }
        };
        let sockets = sockets.into_iter().map(|socket| socket.map(Into::into)).collect();
        let network = Network::start(rank, sockets, false, deadline, failure)?;
        let place = Place { group: FIRST, rank, world_size };
        Self::join(network, Arc::new(memory), (0..world_size).collect(), place, deadline)
    }

    /// Takes this rank's place in a group whose memory has been reserved.
    fn join(
        network: Arc<Network>,
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
        let (news, kept) = (Arc::clone(&network), Arc::clone(&memory));
        let exchange = Exchange::new(cells, news, kept, place.group, names, deadline);
        Ok(Self { network, memory, ranks, place, exchange, slots })
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
}

impl Transport for Local {
    fn backend(&self) -> &'static str {
        "local"
    }

    fn light_below(&self) -> usize {
        LIGHT
    }

    fn messages(&self) -> Arc<dyn Messages> {
        self.network.messages(self.place.group, &self.ranks)
    }

    fn execute(&mut self, header: Header, payload: Payload) -> Result<Payload> {
        let result = self.collective(header, payload);
        if result.is_err() {
            self.memory.keep_everything();
        }
        result
    }

    fn alloc(&mut self, header: Header) -> Result<Payload> {
        self.exchange.agree(header, 0)?;
        let part = (header.len * header.element.size()).max(1);
        let start = self.reserve_together(0, &[part], self.place.world_size)?;
        let region = self.memory.map(start, part, self.place)?.give_back_on_drop();
        Ok(Flat::shared(header.element, header.len, Box::new(region)).into())
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
        let (network, memory) = (Arc::clone(&self.network), Arc::clone(&self.memory));
        Self::join(network, memory, ranks, place, self.exchange.deadline()).map(Some)
    }

    fn leave(&mut self) {
        let own = self.ranks[self.place.rank];
        let peers: Vec<usize> = self.ranks.iter().copied().filter(|&rank| rank != own).collect();
        self.network.leave(self.place.group, &peers, self.exchange.give_back_cells());
    }

    fn finish(&mut self) {
        self.network.finish();
    }
}
