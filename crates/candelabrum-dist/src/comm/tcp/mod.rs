//! The TCP backend, for ranks of several hosts that have nothing better: a star with rank 0 in the
//! centre.
//!
//! Every operation is one gathering. Each rank sends its header and its contribution to the group's
//! first rank, which sends all of them to every rank. Then each rank computes its own result. Sums
//! are added in rank order, so every rank gets the same bits, and the same as with the other
//! backends. An all-reduce moves `N·n` bytes in and out of rank 0 for each of `N` ranks. So this
//! backend is meant for the few small messages by which the ranks of another backend meet and agree
//! (NCCL's id and headers), not for gradients.

mod rendezvous;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candelabrum_memory::reduce;
use sha2::{Digest, Sha256};

use self::rendezvous::TO_HEAR_WHY;
use super::collective::{CollectiveHeader, check_agreement};
use super::failures::FirstFailure;
use super::member::{JobMember, TcpConfig};
use super::messages::Messages;
use super::network::{FrameBody, FrameKind, NetworkLines, NetworkWork};
use super::threaded::{Connection, ThreadedGroup};
use super::transport::RankTransport;
use super::work::BackendWork;
use super::{Collective, Communicator, ElementType, Payload};
use crate::{Error, Result};

/// Bytes of an encoded header.
const HEADER: usize = CollectiveHeader::WORDS * 8;

/// The number of the group of all ranks.
const WORLD: u64 = 0;

/// Joins the ranks of `config.job`.
///
/// # Errors
/// A port in use, ranks that do not arrive in time, or ranks that differ in version or number.
pub(crate) fn connect(config: TcpConfig) -> Result<Arc<dyn Communicator>> {
    let connect = move |failure: &FirstFailure| {
        let JobMember { rank, world_size, deadline, .. } = config.member;
        let sockets = rendezvous::meet(&config)?;
        let sockets = sockets.into_iter().map(|socket| socket.map(Into::into)).collect();
        let network = NetworkLines::start(rank, sockets, None, rank == 0, deadline, failure)?;
        let (abort, ranks) = (Arc::clone(&network), (0..world_size).collect());
        let transport = TcpTransport { network, group: WORLD, ranks, rank, splits: 0, deadline };
        Ok(Connection { transport, rank, world_size, deadline, abort })
    };
    Ok(Arc::new(ThreadedGroup::start(connect)?))
}

/// A group's ranks over the star.
struct TcpTransport {
    network: Arc<NetworkLines>,
    /// A number that all members of the group have, and no other group.
    group: u64,
    /// By rank in the group: the rank in the world.
    ranks: Arc<[usize]>,
    rank: usize,
    splits: u64,
    deadline: Duration,
}

impl TcpTransport {
    fn collective(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload> {
        let mut own = bytemuck::bytes_of(&header.encode()).to_vec();
        let parts: Vec<u64> =
            payload.parts().unwrap_or_default().iter().map(|&len| len as u64).collect();
        if header.op == Collective::AllToAllV {
            own.extend(bytemuck::cast_slice::<u64, u8>(&parts));
        }
        if header.op == Collective::AllGatherInPlace {
            own.extend(&payload.bytes()[payload.part_ranges()[self.rank].clone()]);
        } else if contributes(header.op, self.rank) {
            own.extend(payload.bytes());
        }
        let all = self.gather(header, own)?;
        let what = || format!("rank {} sent parts that make no sense", self.ranks[0]);
        let all = split(&all, self.ranks.len()).ok_or_else(|| Error::Protocol { what: what() })?;
        let mut headers = Vec::with_capacity(all.len());
        let mut bodies = Vec::with_capacity(all.len());
        for (part, &rank) in all.into_iter().zip(&*self.ranks) {
            let what = || format!("rank {rank} sent less than a header");
            let (words, body) = part
                .split_first_chunk::<HEADER>()
                .ok_or_else(|| Error::Protocol { what: what() })?;
            headers.push(bytemuck::pod_read_unaligned(words));
            bodies.push(body);
        }
        check_agreement(&headers, &self.ranks)?;
        self.result(header, payload, &bodies)
    }

    /// The contributions of all ranks, [joined](join) in rank order. The group's first rank gathers
    /// them and sends them to the other ranks.
    fn gather(&self, header: CollectiveHeader, own: Vec<u8>) -> Result<Arc<Vec<u8>>> {
        let send = |to: usize, body| {
            self.network.send(
                FrameKind::Part,
                (self.group, to),
                ElementType::U8.code(),
                body,
                None,
            );
        };
        if self.rank != 0 {
            send(self.ranks[0], own.into());
            let all = self.ask(header, self.ranks[0]).wait_within(self.deadline + TO_HEAR_WHY)?;
            return Ok(Arc::new(all.to_vec()?));
        }
        let parts = self.gather_parts(header, &own)?;
        let all = Arc::new(join(&parts));
        for &rank in &self.ranks[1..] {
            send(rank, FrameBody::Shared(Arc::clone(&all)));
        }
        Ok(all)
    }

    /// The contributions of all ranks, on the group's first rank.
    fn gather_parts(&self, header: CollectiveHeader, own: &[u8]) -> Result<Vec<Payload>> {
        let start = Instant::now();
        let mut asked: VecDeque<_> =
            self.ranks[1..].iter().map(|&rank| (rank, self.ask(header, rank))).collect();
        let mut parts = vec![Payload::from_slice(own)];
        while let Some((_, part)) = asked.pop_front() {
            let part = part.wait_within(self.deadline.saturating_sub(start.elapsed()));
            parts.push(part.map_err(|error| match error {
                Error::Timeout { rank, during, mut missing, .. } => {
                    asked.retain_mut(|(_, part)| !part.is_complete());
                    asked.iter().for_each(|(rank, _)| missing += &format!(", {rank}"));
                    Error::Timeout { rank, during, missing, waited: start.elapsed() }
                }
                other => other,
            })?);
        }
        Ok(parts)
    }

    fn ask(&self, header: CollectiveHeader, from: usize) -> NetworkWork {
        let place = (self.group, Some(from));
        self.network.receive(FrameKind::Part, place, &self.ranks, header, Payload::empty())
    }

    /// This rank's result, computed from the contributions of all ranks.
    fn result(
        &self,
        header: CollectiveHeader,
        payload: Payload,
        bodies: &[&[u8]],
    ) -> Result<Payload> {
        let CollectiveHeader { op, element, len, .. } = header;
        let (rank, n) = (self.rank, self.ranks.len());
        let whole = len * element.size();
        match op {
            Collective::AllReduce(how) | Collective::ReduceScatter(how) => {
                let range = match op {
                    Collective::AllReduce(_) => 0..whole,
                    _ => rank * whole / n..(rank + 1) * whole / n,
                };
                let parts = self.cut(bodies, &|_| range.clone())?;
                Ok(replace(payload, reduced(element, how, &parts)))
            }
            Collective::ReduceScatterV(how) => {
                let own = payload.part_ranges()[rank].clone();
                let parts = self.cut(bodies, &|_| own.clone())?;
                Ok(overwritten(payload, &own, reduced(element, how, &parts).bytes()))
            }
            Collective::AllGatherInPlace => {
                let mut all = payload;
                for (rank, range) in all.part_ranges().into_iter().enumerate() {
                    let part = self.part(bodies, rank, 0..range.len())?;
                    all = overwritten(all, &range, part);
                }
                Ok(all)
            }
            Collective::Reduce { op: how, root } if root == rank => {
                let parts = self.cut(bodies, &|_| 0..whole)?;
                Ok(replace(payload, reduced(element, how, &parts)))
            }
            Collective::Broadcast { root } => {
                Ok(replace(payload, filled(element, &[self.part(bodies, root, 0..whole)?])))
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
            Collective::Barrier => Ok(payload),
            Collective::Send { .. } | Collective::Recv { .. } | Collective::RecvAny => {
                Err(Error::Unsupported { what: format!("{op} as a gathering") })
            }
        }
    }

    /// The part for this rank in the contribution of `source`, whose parts have any lengths.
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
}

impl RankTransport for TcpTransport {
    fn backend(&self) -> &'static str {
        "tcp"
    }

    fn messages(&self) -> Arc<dyn Messages> {
        self.network.messages(self.group, &self.ranks)
    }

    fn execute(&mut self, header: CollectiveHeader, payload: Payload) -> Result<Payload> {
        self.collective(header, payload)
    }

    fn split(&mut self, members: Option<&[usize]>) -> Result<Option<Self>> {
        self.splits += 1;
        let Some(members) = members else { return Ok(None) };
        let ranks: Arc<[usize]> = members.iter().map(|&member| self.ranks[member]).collect();
        let own = self.ranks[self.rank];
        let what = || Error::Unsupported { what: "a group without this rank".to_owned() };
        let rank = ranks.iter().position(|&rank| rank == own).ok_or_else(what)?;
        let group = number_of(self.group, self.splits, ranks[0]);
        let (network, deadline) = (Arc::clone(&self.network), self.deadline);
        Ok(Some(Self { network, group, ranks, rank, splits: 0, deadline }))
    }

    fn leave(&mut self) {
        self.network.leave(self.group, &self.ranks, Box::new(|| ()));
    }

    fn finish(&mut self) {
        self.network.finish();
    }
}

/// Whether the operation needs this rank's numbers.
fn contributes(op: Collective, rank: usize) -> bool {
    match op {
        Collective::Broadcast { root } | Collective::Scatter { root } => rank == root,
        Collective::Barrier => false,
        _ => true,
    }
}

/// All parts in one buffer, each after its length.
fn join(parts: &[Payload]) -> Vec<u8> {
    let mut all = Vec::with_capacity(parts.iter().map(|part| part.byte_len() + 8).sum());
    for part in parts {
        all.extend((part.byte_len() as u64).to_le_bytes());
        all.extend(part.bytes());
    }
    all
}

/// The parts of a joined buffer; `None` if it does not contain exactly `count` parts.
fn split(mut all: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    for _ in 0..count {
        let (len, rest) = all.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (part, rest) = rest.split_at_checked(len)?;
        parts.push(part);
        all = rest;
    }
    all.is_empty().then_some(parts)
}

/// The number of a new group. Its members compute the same number, and no other group of theirs has
/// it.
fn number_of(parent: u64, split: u64, first: usize) -> u64 {
    let mut digest = Sha256::new();
    for word in [parent, split, first as u64] {
        digest.update(word.to_le_bytes());
    }
    let digest = digest.finalize();
    let word = digest.first_chunk::<8>().map_or(1, |bytes| u64::from_le_bytes(*bytes));
    // The number of the world is reserved.
    word.max(WORLD + 1)
}

/// The reduction of equally long parts.
fn reduced(element: ElementType, op: super::ReduceOp, parts: &[&[u8]]) -> Payload {
    let len = parts.first().map_or(0, |part| part.len()) / element.size();
    // The reduction needs memory that is aligned for the numbers.
    let mut all: Vec<Payload> = parts.iter().map(|part| filled(element, &[part])).collect();
    let mut slices: Vec<&mut [u8]> = all.iter_mut().map(|part| part.bytes_mut()).collect();
    reduce::reduce_into_all(element, op, &mut slices);
    all.into_iter().next().unwrap_or_else(|| Payload::zeros(element, len))
}

/// A payload of these parts, one after the other.
fn filled(element: ElementType, parts: &[&[u8]]) -> Payload {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut payload = Payload::zeros(element, bytes / element.size());
    let mut rest = payload.bytes_mut();
    for part in parts {
        let count = part.len().min(rest.len());
        let (head, tail) = rest.split_at_mut(count);
        head.copy_from_slice(&part[..count]);
        rest = tail;
    }
    payload
}

/// As [`filled`], with the lengths of the parts.
fn with_parts(element: ElementType, parts: &[&[u8]]) -> Result<Payload> {
    let lens: Vec<usize> = parts.iter().map(|part| part.len() / element.size()).collect();
    filled(element, parts).with_parts(lens)
}

/// The payload with other bytes in `range`.
fn overwritten(mut payload: Payload, range: &std::ops::Range<usize>, bytes: &[u8]) -> Payload {
    payload.bytes_mut()[range.clone()].copy_from_slice(bytes);
    payload
}

/// The result, in the memory of the caller's payload if type and length are the same.
fn replace(mut payload: Payload, result: Payload) -> Payload {
    if payload.len() != result.len() || payload.element_type() != result.element_type() {
        return result;
    }
    payload.bytes_mut().copy_from_slice(result.bytes());
    payload
}
