//! The backend for ranks of several hosts that have nothing but TCP: a star with rank 0 in the
//! middle.
//!
//! Everything is one gathering: each rank's header and what it contributes go to the group's first
//! rank, which sends all of it to everybody, and every rank takes its result out of that by itself.
//! Sums are added in rank order, so every rank gets the same bits, and they are the other backends'.
//! An all-reduce moves `N·n` bytes in and out of rank 0 for each of `N` ranks: this is meant for
//! the few small messages by which another backend's ranks meet and agree (NCCL's id and headers),
//! not for gradients.

mod rendezvous;
mod star;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use candelabrum_memory::reduce;
use sha2::{Digest, Sha256};

use self::star::{Channel, Message, Star, WORLD};
use super::collective::{Header, check_agreement};
use super::rendezvous::JobId;
use super::threaded::{Connected, Threaded};
use super::transport::Transport;
use super::{Collective, Communicator, ElementType, Payload};
use crate::{Error, Result};

/// Bytes of an encoded header.
const HEADER: usize = Header::WORDS * 8;

/// Who meets where, and how long anybody waits.
#[derive(Clone, Debug)]
pub(crate) struct TcpConfig {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
    /// Rank 0's host: a name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The only address that rank 0 listens at, if there is one.
    pub(crate) interface: Option<IpAddr>,
}

/// Joins the ranks of `config.job`.
///
/// # Errors
/// A port in use, ranks that do not come or that differ in version or number.
pub(crate) fn connect(config: TcpConfig) -> Result<Arc<dyn Communicator>> {
    let connect = move || {
        let (rank, world_size) = (config.rank, config.world_size);
        let star = Arc::new(Star::connect(&config)?);
        let abort = star.handle();
        let ranks = (0..world_size).collect();
        let transport =
            Tcp { star, channel: WORLD, ranks, rank, gatherings: 0, splits: 0, failed: false };
        Ok(Connected { transport, rank, world_size, abort })
    };
    Ok(Arc::new(Threaded::start(connect)?))
}

/// A group's ranks over the star.
struct Tcp {
    star: Arc<Star>,
    channel: Channel,
    /// By rank in the group: its number in the world.
    ranks: Vec<usize>,
    rank: usize,
    gatherings: u64,
    splits: u64,
    failed: bool,
}

impl Tcp {
    fn collective(&mut self, header: Header, buffer: Payload) -> Result<Payload> {
        self.gatherings += 1;
        let mut own = bytemuck::bytes_of(&header.encode()).to_vec();
        let parts: Vec<u64> =
            buffer.parts().unwrap_or_default().iter().map(|&len| len as u64).collect();
        if header.op == Collective::AllToAllV {
            own.extend(bytemuck::cast_slice::<u64, u8>(&parts));
        }
        if contributes(header.op, self.rank) {
            own.extend(buffer.bytes());
        }
        let during = header.to_string();
        let (channel, number) = (self.channel, self.gatherings);
        let all = self.star.gather(channel, &self.ranks, number, own, &during)?;
        let mut headers = Vec::with_capacity(all.len());
        let mut bodies = Vec::with_capacity(all.len());
        for (part, &rank) in all.iter().zip(&self.ranks) {
            let what = || format!("rank {rank} sent less than a header");
            let (words, body) = part
                .split_first_chunk::<HEADER>()
                .ok_or_else(|| Error::Protocol { what: what() })?;
            headers.push(bytemuck::pod_read_unaligned(words));
            bodies.push(body);
        }
        check_agreement(&headers, &self.ranks)?;
        self.result(header, buffer, &bodies)
    }

    /// This rank's result, given what all ranks contributed.
    fn result(&self, header: Header, buffer: Payload, bodies: &[&[u8]]) -> Result<Payload> {
        let Header { op, element, len, .. } = header;
        let (rank, n) = (self.rank, self.ranks.len());
        let whole = len * element.size();
        match op {
            Collective::AllReduce(how) | Collective::ReduceScatter(how) => {
                let range = match op {
                    Collective::AllReduce(_) => 0..whole,
                    _ => rank * whole / n..(rank + 1) * whole / n,
                };
                let parts = self.cut(bodies, &|_| range.clone())?;
                Ok(replace(buffer, reduced(element, how, &parts)))
            }
            Collective::Reduce { op: how, root } if root == rank => {
                let parts = self.cut(bodies, &|_| 0..whole)?;
                Ok(replace(buffer, reduced(element, how, &parts)))
            }
            Collective::Broadcast { root } => {
                Ok(replace(buffer, filled(element, &[self.part(bodies, root, 0..whole)?])))
            }
            Collective::AllGather => Ok(filled(element, &self.cut(bodies, &|_| 0..whole)?)),
            Collective::Gather { root } if root == rank => {
                Ok(filled(element, &self.cut(bodies, &|_| 0..whole)?))
            }
            Collective::Scatter { root } => {
                let part = bodies[root].len() / n;
                let range = rank * part..(rank + 1) * part;
                Ok(filled(element, &[self.part(bodies, root, range)?]))
            }
            Collective::AllToAll => {
                let range = rank * whole / n..(rank + 1) * whole / n;
                Ok(filled(element, &self.cut(bodies, &|_| range.clone())?))
            }
            Collective::AllGatherV => with_parts(element, bodies),
            Collective::AllToAllV => {
                let mut mine = Vec::with_capacity(n);
                for source in 0..n {
                    mine.push(self.part_of_v(bodies, source, element)?);
                }
                with_parts(element, &mine)
            }
            Collective::Gather { .. } | Collective::Reduce { .. } => Ok(Payload::zeros(element, 0)),
            Collective::Barrier => Ok(buffer),
            Collective::Send { .. } | Collective::Recv { .. } | Collective::RecvAny => {
                Err(Error::Unsupported { what: format!("{op} as a gathering") })
            }
        }
    }

    /// The part for this rank of what `source` sends everybody in different amounts.
    fn part_of_v<'a>(
        &self,
        bodies: &[&'a [u8]],
        source: usize,
        element: ElementType,
    ) -> Result<&'a [u8]> {
        let table = self.part(bodies, source, 0..8 * self.ranks.len())?;
        let lens =
            table.chunks_exact(8).map(|len| bytemuck::pod_read_unaligned::<u64>(len) as usize);
        let bytes: Vec<usize> = lens.map(|len| len.saturating_mul(element.size())).collect();
        let before = bytes[..self.rank].iter().fold(table.len(), |sum, &b| sum.saturating_add(b));
        self.part(bodies, source, before..before.saturating_add(bytes[self.rank]))
    }

    /// A range of bytes of every rank's contribution.
    fn cut<'a>(
        &self,
        bodies: &[&'a [u8]],
        range: &dyn Fn(usize) -> std::ops::Range<usize>,
    ) -> Result<Vec<&'a [u8]>> {
        (0..bodies.len()).map(|rank| self.part(bodies, rank, range(rank))).collect()
    }

    fn part<'a>(
        &self,
        bodies: &[&'a [u8]],
        rank: usize,
        range: std::ops::Range<usize>,
    ) -> Result<&'a [u8]> {
        let rank_in_world = self.ranks[rank];
        bodies[rank].get(range).ok_or_else(|| Error::Protocol {
            what: format!("rank {rank_in_world} sent less than its header says"),
        })
    }

    fn receive(&self, header: Header, from: Option<usize>, buffer: Payload) -> Result<Payload> {
        let sources = match from {
            Some(from) => vec![self.ranks[from]],
            None => self.ranks.clone(),
        };
        let message = self.star.receive(self.channel, &sources, &header.to_string())?;
        let Message { from: source, tag, bytes } = message;
        let what = || format!("rank {source} sent an unknown element type");
        let element =
            ElementType::from_code(tag).ok_or_else(|| Error::Protocol { what: what() })?;
        if element != header.element {
            return Err(Error::element_type(element, header.element));
        }
        if from.is_some() && bytes.len() != buffer.bytes().len() {
            let (expected, got) = (bytes.len() / element.size(), header.len);
            return Err(Error::Length { op: header.op.name(), expected, got });
        }
        let received = replace(buffer, filled(element, &[&bytes]));
        let source = self.ranks.iter().position(|&rank| rank == source).unwrap_or_default();
        Ok(received.with_source(source))
    }
}

impl Transport for Tcp {
    fn backend(&self) -> &'static str {
        "tcp"
    }

    fn execute(&mut self, header: Header, buffer: Payload) -> Result<Payload> {
        let result = match header.op {
            Collective::Send { to } => self
                .star
                .message(
                    self.channel,
                    self.ranks[to],
                    header.element.code(),
                    buffer.bytes().to_vec(),
                )
                .map(|()| Payload::empty()),
            Collective::Recv { from } => self.receive(header, Some(from), buffer),
            Collective::RecvAny => self.receive(header, None, buffer),
            _ => self.collective(header, buffer),
        };
        self.failed |= result.is_err();
        result
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        self.splits += 1;
        let Some(members) = members else { return Ok(None) };
        let ranks: Vec<usize> = members.iter().map(|&member| self.ranks[member]).collect();
        let own = self.ranks[self.rank];
        let what = || Error::Unsupported { what: "a group without this rank".to_owned() };
        let rank = ranks.iter().position(|&rank| rank == own).ok_or_else(what)?;
        let channel = channel_of(self.channel, self.splits, ranks[0]);
        let star = Arc::clone(&self.star);
        Ok(Some(Self { star, channel, ranks, rank, gatherings: 0, splits: 0, failed: false }))
    }

    fn leave(&mut self) {
        self.star.leave(self.channel, &self.ranks, self.gatherings);
    }

    fn finish(&mut self) {
        self.star.finish(self.failed);
    }
}

/// Whether this rank's numbers are needed.
fn contributes(op: Collective, rank: usize) -> bool {
    match op {
        Collective::Broadcast { root } | Collective::Scatter { root } => rank == root,
        Collective::Barrier => false,
        _ => true,
    }
}

/// A new group's number: its members come to the same one, and no other group of theirs has it.
fn channel_of(parent: Channel, split: u64, first: usize) -> Channel {
    let mut digest = Sha256::new();
    for word in [parent, split, first as u64] {
        digest.update(word.to_le_bytes());
    }
    let digest = digest.finalize();
    let word = digest.first_chunk::<8>().map_or(1, |bytes| u64::from_le_bytes(*bytes));
    // The world's is no group's.
    word.max(WORLD + 1)
}

/// The reduction of equally long parts.
fn reduced(element: ElementType, op: super::ReduceOp, parts: &[&[u8]]) -> Payload {
    let len = parts.first().map_or(0, |part| part.len()) / element.size();
    // The arithmetic wants memory that is aligned for its numbers.
    let mut all: Vec<Payload> = parts.iter().map(|part| filled(element, &[part])).collect();
    let mut slices: Vec<&mut [u8]> = all.iter_mut().map(|part| part.bytes_mut()).collect();
    reduce::reduce_into_all(element, op, &mut slices);
    all.into_iter().next().unwrap_or_else(|| Payload::zeros(element, len))
}

/// A buffer of these parts, one after the other.
fn filled(element: ElementType, parts: &[&[u8]]) -> Payload {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut buffer = Payload::zeros(element, bytes / element.size());
    let mut rest = buffer.bytes_mut();
    for part in parts {
        let count = part.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(count);
        head.copy_from_slice(&part[..count]);
        rest = tail;
    }
    buffer
}

/// The same, and it tells how long each part is.
fn with_parts(element: ElementType, parts: &[&[u8]]) -> Result<Payload> {
    let lens: Vec<usize> = parts.iter().map(|part| part.len() / element.size()).collect();
    filled(element, parts).with_parts(lens)
}

/// The result in the memory of the caller's buffer where it has that length.
fn replace(mut buffer: Payload, result: Payload) -> Payload {
    if buffer.len() != result.len() || buffer.element_type() != result.element_type() {
        return result;
    }
    buffer.bytes_mut().copy_from_slice(result.bytes());
    buffer
}
