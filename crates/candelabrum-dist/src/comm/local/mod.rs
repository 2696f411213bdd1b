//! The backend for ranks of one host: an anonymous shared-memory segment and a mesh of Unix
//! sockets. The backend needs no installation and leaves no files behind.
//!
//! Numbers are exchanged through memory. A buffer from [`Communicator::alloc`] lies *in* the
//! segment and is reduced there: each rank reduces its own slice of all ranks' buffers. Other
//! numbers pass through one slot per rank, piece by piece ([`slots`], [`collectives`]). The ranks
//! meet at a barrier of one counter per rank ([`cells`]). The socket between two ranks carries
//! messages and reports the death of a rank at once ([`network`](super::network)). A long message lies
//! in the segment, and the socket carries only its place ([`parcels`]). Rank 0 also
//! sends the segment's file over it.
//!
//! A group has its own cells and slots in the same segment, but shares the sockets. So every group
//! notices the death of a rank, even of a rank outside the group.
//!
//! The rank that owns a slice adds the values in rank order. So every rank and every run gets the
//! same bits.

mod cell;
mod cells;
mod collectives;
mod exchange;
mod parcels;
mod reduction;
mod region;
mod rendezvous;
mod segment;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::{FlatTensor, thread_pool};

use self::cell::BarrierCell;
use self::cells::BarrierCells;
use self::exchange::CellExchange;
use self::parcels::LocalParcels;
use self::region::{LocalMember, stride};
use self::segment::{Segment, WORLD};
use self::slots::{SLOT, SlotTable};
use super::collective::CollectiveHeader;
use super::failures::FirstFailure;
use super::member::JobMember;
use super::messages::Messages;
use super::network::NetworkLines;
use super::threaded::{Connection, ThreadedGroup};
use super::transport::RankTransport;
use super::{BorrowedElements, Communicator, Payload};
use crate::{Error, Result};

/// An operation on fewer bytes takes less time than waking a thread for it.
const LIGHT: usize = 256 * 1024;

/// The bytes per rank of a group's two regions: the cells and the slots.
const GROUP: [usize; 2] = [size_of::<BarrierCell>(), SLOT];

/// Connects this rank with the other ranks of `config.job`.
pub(crate) fn connect(config: JobMember) -> Result<Arc<dyn Communicator>> {
    let connect = move |failure: &FirstFailure| {
        let transport = LocalTransport::connect(&config, failure)?;
        let abort = Arc::clone(&transport.exchange.network);
        let JobMember { rank, world_size, deadline, .. } = config;
        Ok(Connection { transport, rank, world_size, deadline, abort })
    };
    Ok(Arc::new(ThreadedGroup::start(connect)?))
}

/// This rank's side of a group.
struct LocalTransport {
    member: LocalMember,
    exchange: CellExchange,
    slots: SlotTable,
}

impl LocalTransport {
    /// Connects all ranks. Rank 0 creates the segment and sends it to the other ranks.
    fn connect(config: &JobMember, failure: &FirstFailure) -> Result<Self> {
        let &JobMember { rank, world_size, deadline, .. } = config;
        let sockets = rendezvous::meet(config)?;
        let segment = match sockets.first().and_then(Option::as_ref) {
            Some(root) => Segment::received(rendezvous::receive_file(root, config)?, world_size)?,
            None => {
                let segment = Segment::create()?;
                new_group(&segment, world_size)?;
                for socket in sockets.iter().flatten() {
                    rendezvous::send_file(socket, segment.fd())?;
                }
                segment
            }
        };
        let sockets = sockets.into_iter().map(|socket| socket.map(Into::into)).collect();
        let segment = Arc::new(segment);
        let parcels = LocalParcels::new(Arc::clone(&segment));
        let network = NetworkLines::start(rank, sockets, Some(parcels), false, deadline, failure)?;
        let member = LocalMember { group: WORLD, rank, world_size };
        let ranks = (0..world_size).collect();
        Self::join(network, segment, ranks, member, deadline)
    }

    /// Makes this rank a member of a group that [`new_group`] has allocated.
    fn join(
        network: Arc<NetworkLines>,
        segment: Arc<Segment>,
        ranks: Arc<[usize]>,
        member: LocalMember,
        deadline: Duration,
    ) -> Result<Self> {
        let [cell, slot] = GROUP;
        let cells = BarrierCells::new(segment.map(member.group, cell, member)?);
        let mut exchange = CellExchange::new(cells, network, segment, ranks, deadline);
        let start = member.group + (stride(cell) * member.world_size) as u64;
        let reserved = exchange.segment.reserve(start, slot, member.rank..member.rank + 1);
        let header = exchange.current();
        succeed_together(&mut exchange, header, reserved, slot)?;
        let slots = SlotTable::new(exchange.segment.map(start, slot, member)?);
        Ok(Self { member, exchange, slots })
    }

    /// Rank `root` allocates room in the segment with `take`. Every rank that names this `root`
    /// gets the start of that room. All ranks of this group must call this function together, with
    /// the same `header`. `bytes` is for the error message.
    fn taken_by(
        &mut self,
        root: usize,
        header: CollectiveHeader,
        bytes: usize,
        take: impl FnOnce(&Segment) -> Result<u64>,
    ) -> Result<u64> {
        let own = (root == self.member.rank).then(|| take(&self.exchange.segment));
        // No region starts at 0, so 0 reports that there was no room.
        let start = own.as_ref().and_then(|start| start.as_ref().ok()).copied().unwrap_or(0);
        let agreed = self.exchange.agree(header, start);
        if let Some(own) = own {
            return agreed.and(own);
        }
        agreed?;
        match self.exchange.number_of(root) {
            0 => Err(no_room(self.exchange.ranks[root], bytes)),
            start => Ok(start),
        }
    }
}

impl RankTransport for LocalTransport {
    const FINDS_BAD_NUMBERS: bool = true;

    fn backend(&self) -> &'static str {
        "local"
    }

    fn is_left_to_a_wait(bytes: usize, ranks: usize) -> bool {
        // All ranks are on this host, and an operation keeps a core busy.
        bytes < LIGHT || !thread_pool::leaves_a_core_to_each(ranks)
    }

    fn messages(&self) -> Arc<dyn Messages> {
        self.exchange.network.messages(self.member.group, &self.exchange.ranks)
    }

    fn execute(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload> {
        let result = self.collective(header, payload);
        result.inspect_err(|_| self.exchange.segment.keep_everything())
    }

    fn execute_in_place(
        &mut self,
        header: CollectiveHeader,
        values: &mut BorrowedElements<'_>,
    ) -> Result<()> {
        let result = self.in_place(header, values);
        result.inspect_err(|_| self.exchange.segment.keep_everything())
    }

    fn alloc(&mut self, header: CollectiveHeader) -> Result<Payload> {
        let CollectiveHeader { element, len, .. } = header;
        let member = self.member;
        let part = (len * element.size()).max(1);
        let take = |segment: &Segment| segment.take(&[part], member.world_size);
        let start = self.taken_by(0, header, part, take)?;
        let reserved = self.exchange.segment.reserve(start, part, member.rank..member.rank + 1);
        succeed_together(&mut self.exchange, header, reserved, part)?;
        let region = self.exchange.segment.map(start, part, member)?.give_back_on_drop();
        Ok(FlatTensor::shared(element, len, Box::new(region)).into())
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        // The ranks have just agreed on this header, to gather the members of each group.
        let header = self.exchange.current();
        let Some((&root, members)) = members.and_then(|all| Some((all.first()?, all))) else {
            self.exchange.agree(header, 0)?;
            return Ok(None);
        };
        let bytes = GROUP.iter().sum();
        let take = |segment: &Segment| new_group(segment, members.len());
        let group = self.taken_by(root, header, bytes, take)?;
        let rank = members.iter().position(|&member| member == self.member.rank).unwrap_or(0);
        let CellExchange { network, segment, ranks, deadline, .. } = &self.exchange;
        let ranks = members.iter().map(|&member| ranks[member]).collect();
        let member = LocalMember { group, rank, world_size: members.len() };
        Self::join(Arc::clone(network), Arc::clone(segment), ranks, member, *deadline).map(Some)
    }

    fn leave(&mut self) {
        // The memory is returned after all ranks have left, because they may read it until then.
        let regions = [self.exchange.cells(), self.slots.region()].map(Arc::clone);
        let give_back = move || regions.iter().for_each(|region| region.give_back());
        let CellExchange { network, ranks, .. } = &self.exchange;
        network.leave(self.member.group, ranks, Box::new(give_back));
    }

    fn finish(&mut self) {
        self.exchange.network.finish();
    }
}

/// Allocates room for the cells and slots of a group. Reserves the cells, because the ranks need
/// them to agree on everything else. Returns the number of the group.
fn new_group(segment: &Segment, world_size: usize) -> Result<u64> {
    let group = segment.take(&GROUP, world_size)?;
    segment.reserve(group, GROUP[0], 0..world_size)?;
    Ok(group)
}

/// Returns an error on every rank of a group if one of them could not reserve its part of `bytes`
/// bytes. All ranks must call this function together, with the same `header`.
fn succeed_together(
    exchange: &mut CellExchange,
    header: CollectiveHeader,
    reserved: Result<()>,
    bytes: usize,
) -> Result<()> {
    let agreed = exchange.agree(header, u64::from(reserved.is_err()));
    reserved?;
    agreed?;
    match (0..exchange.ranks.len()).find(|&rank| exchange.number_of(rank) != 0) {
        None => Ok(()),
        Some(rank) => Err(no_room(exchange.ranks[rank], bytes)),
    }
}

/// The error of the other ranks if `peer` has no memory. It is an echo, because `peer` itself
/// returns the system's error.
fn no_room(peer: usize, bytes: usize) -> Error {
    Error::PeerFailed { peer, message: format!("no room for {bytes} bytes of shared memory") }
}
