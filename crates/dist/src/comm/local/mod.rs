//! The backend for ranks of one host: an anonymous shared-memory segment and a mesh of Unix
//! sockets, nothing to install and nothing left behind.
//!
//! Payload goes through memory: a buffer from [`Communicator::alloc`] lies *in* the segment and is
//! reduced there, each rank reducing its own slice of all copies; other buffers pass through a slot
//! per rank, piece by piece. Ranks meet at a barrier of one cache line each ([`cells`]). The
//! sockets ([`mesh`]) hand the segment over, carry point-to-point messages, and tell at once when a
//! peer dies.
//!
//! Sums are added in rank order by whichever rank owns the slice: every rank gets the same bits, and
//! so does every run.

mod cells;
mod exchange;
mod memory;
mod mesh;
mod rendezvous;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::cells::Cells;
use self::exchange::Exchange;
use self::memory::{Memory, Region};
use self::mesh::Mesh;
use super::collective::Header;
use super::threaded::{Connected, Threaded};
use super::transport::Transport;
use super::{Buffer, Collective, Communicator, ElementType, ReduceOp};
use crate::{Error, Result};

/// Bytes of each rank's slot, through which buffers pass that are not in the segment.
const SLOT: usize = 256 * 1024;

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
    let connect = move || {
        let transport = Local::connect(&config)?;
        let abort = transport.mesh.abort_handle();
        let (rank, world_size) = (config.rank, config.world_size);
        Ok(Connected { transport, rank, world_size, abort })
    };
    Ok(Arc::new(Threaded::start(connect)?))
}

struct Local {
    mesh: Mesh,
    memory: Memory,
    exchange: Exchange,
    slots: Region,
}

impl Local {
    fn connect(config: &LocalConfig) -> Result<Self> {
        let (rank, world_size) = (config.rank, config.world_size);
        let (mut mesh, handed_over) = Mesh::connect(config, || Memory::create(rank, world_size))?;
        let mut memory = handed_over.into_memory(rank, world_size)?;
        // Rank 0 sized the file for these two before it handed it over.
        let cells = Cells::map(&mut memory)?;
        let slots = memory.map_next(SLOT)?;
        mesh.watch()?;
        let exchange = Exchange::new(cells, mesh.watcher(), config.deadline);
        Ok(Self { mesh, memory, exchange, slots })
    }

    fn all_reduce(&mut self, header: Header, op: ReduceOp, mut buffer: Buffer) -> Result<Buffer> {
        let element = header.element;
        if let Some(shared) = buffer.shared_memory::<Region>() {
            let bytes = header.len * element.size();
            self.exchange.reduce(shared, bytes, element, op)?;
            return Ok(buffer);
        }
        for piece in buffer.bytes_mut().chunks_mut(SLOT) {
            self.slots.own_mut()[..piece.len()].copy_from_slice(piece);
            self.exchange.meet()?;
            self.exchange.reduce(&mut self.slots, piece.len(), element, op)?;
            piece.copy_from_slice(&self.slots.own()[..piece.len()]);
        }
        Ok(buffer)
    }

    fn reduce_scatter(&mut self, header: Header, op: ReduceOp, buffer: &Buffer) -> Result<Buffer> {
        let Header { element, len, .. } = header;
        let (rank, world_size) = (self.mesh.rank(), self.mesh.world_size());
        let mut out = Buffer::zeros(element, len / world_size);
        let own_start = rank * out.bytes().len();
        for (i, piece) in buffer.bytes().chunks(SLOT).enumerate() {
            self.slots.own_mut()[..piece.len()].copy_from_slice(piece);
            self.exchange.meet()?;
            self.exchange.reduce(&mut self.slots, piece.len(), element, op)?;
            let reduced = &self.slots.own()[..piece.len()];
            copy_overlap(reduced, i * SLOT, out.bytes_mut(), own_start);
        }
        Ok(out)
    }

    /// Puts `len` bytes of `input` (on the ranks that have one) in front of everybody, a piece at a
    /// time: `take(offset, slots)` sees the pieces that start at byte `offset`.
    fn show(
        &mut self,
        input: Option<&[u8]>,
        len: usize,
        mut take: impl FnMut(usize, &[&[u8]]),
    ) -> Result<()> {
        for offset in (0..len).step_by(SLOT) {
            let count = SLOT.min(len - offset);
            if let Some(input) = input {
                self.slots.own_mut()[..count].copy_from_slice(&input[offset..offset + count]);
            }
            self.exchange.show(&self.slots, count, |slots| take(offset, slots))?;
        }
        Ok(())
    }

    fn broadcast(&mut self, root: usize, mut buffer: Buffer) -> Result<Buffer> {
        let len = buffer.bytes().len();
        if self.mesh.rank() == root {
            self.show(Some(buffer.bytes()), len, |_, _| {})?;
        } else {
            let out = buffer.bytes_mut();
            self.show(None, len, |offset, slots| {
                out[offset..offset + slots[root].len()].copy_from_slice(slots[root]);
            })?;
        }
        Ok(buffer)
    }

    /// All-gather, or gather for the ranks that do not `keep`.
    fn gather(&mut self, header: Header, keep: bool, buffer: &Buffer) -> Result<Buffer> {
        let world_size = self.mesh.world_size();
        let len = if keep { header.len * world_size } else { 0 };
        let mut out = Buffer::zeros(header.element, len);
        let stride = buffer.bytes().len();
        let gathered = out.bytes_mut();
        self.show(Some(buffer.bytes()), stride, |offset, slots| {
            for (rank, slot) in slots.iter().enumerate().take(if keep { world_size } else { 0 }) {
                let start = rank * stride + offset;
                gathered[start..start + slot.len()].copy_from_slice(slot);
            }
        })?;
        Ok(out)
    }

    fn scatter(&mut self, root_header: Header, root: usize, buffer: &Buffer) -> Result<Buffer> {
        let (rank, world_size) = (self.mesh.rank(), self.mesh.world_size());
        let Header { element, len, .. } = root_header;
        let mut out = Buffer::zeros(element, len / world_size);
        let own_start = rank * out.bytes().len();
        let input = (rank == root).then(|| buffer.bytes());
        let part = out.bytes_mut();
        self.show(input, len * element.size(), |offset, slots| {
            copy_overlap(slots[root], offset, part, own_start);
        })?;
        Ok(out)
    }
}

impl Transport for Local {
    fn backend(&self) -> &'static str {
        "local"
    }

    fn execute(&mut self, header: Header, buffer: Buffer) -> Result<Buffer> {
        let rank = self.mesh.rank();
        self.exchange.begin(header);
        let root_header = match header.op {
            Collective::Send { to } => {
                self.mesh.send(to, header.element, buffer.bytes())?;
                return Ok(Buffer::empty());
            }
            Collective::Recv { from } => {
                let deadline = Instant::now() + self.exchange.deadline();
                return self.mesh.recv(from, header, buffer, deadline);
            }
            Collective::Scatter { root } => self.exchange.agree(header)?[root],
            _ => self.exchange.agree(header)?[0],
        };
        match header.op {
            Collective::AllReduce(op) => self.all_reduce(header, op, buffer),
            Collective::ReduceScatter(op) => self.reduce_scatter(header, op, &buffer),
            Collective::Broadcast { root } => self.broadcast(root, buffer),
            Collective::AllGather => self.gather(header, true, &buffer),
            Collective::Gather { root } => self.gather(header, rank == root, &buffer),
            Collective::Scatter { root } => self.scatter(root_header, root, &buffer),
            Collective::Barrier | Collective::Send { .. } | Collective::Recv { .. } => Ok(buffer),
            other => Err(Error::Unsupported { what: other.to_string() }),
        }
    }

    fn alloc(&mut self, sequence: u64, element: ElementType, len: usize) -> Result<Buffer> {
        let header = Header { sequence, op: Collective::Barrier, element, len };
        self.exchange.begin(header);
        self.exchange.agree(header)?;
        let stride = (len * element.size()).max(1);
        // Rank 0 grows the file for all; the others hear whether that worked.
        let grown = if self.mesh.rank() == 0 { self.memory.grow(stride) } else { Ok(()) };
        let failed = [u8::from(grown.is_err())];
        let mut root_failed = false;
        let input = (self.mesh.rank() == 0).then_some(&failed[..]);
        self.show(input, 1, |_, slots| root_failed = slots[0][0] != 0)?;
        grown?;
        if root_failed {
            let what = format!("{len} × {element} of shared memory: rank 0 had no room for them");
            return Err(Error::Launch { what });
        }
        let region = self.memory.map_next(stride)?;
        Ok(Buffer::shared(element, len, Box::new(region)))
    }

    fn finish(&mut self) {
        self.mesh.finish();
    }
}

/// Copies what `from`, which starts at byte `from_start` of some whole, and `to`, which starts at
/// `to_start`, have in common.
fn copy_overlap(from: &[u8], from_start: usize, to: &mut [u8], to_start: usize) {
    let start = from_start.max(to_start);
    let end = (from_start + from.len()).min(to_start + to.len());
    if start < end {
        to[start - to_start..end - to_start]
            .copy_from_slice(&from[start - from_start..end - from_start]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_overlap_is_copied() {
        let from = [1, 2, 3, 4];
        let cases: [(usize, [u8; 3]); 5] =
            [(8, [0, 0, 1]), (10, [1, 2, 3]), (12, [3, 4, 0]), (14, [0, 0, 0]), (2, [0, 0, 0])];
        for (to_start, expected) in cases {
            let mut to = [0; 3];
            copy_overlap(&from, 10, &mut to, to_start);
            assert_eq!(to, expected, "{to_start}");
        }
    }
}
