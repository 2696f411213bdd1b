//! The operations that wait for the sockets: messages under way, and receives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candelabrum_memory::SharedMemory;
use oneshot::RecvTimeoutError;

use super::frame::FrameHeader;
use super::{FrameBody, FrameKind, NAP, NetworkLines};
use crate::comm::collective::CollectiveHeader;
use crate::comm::mailbox::PostedReceive;
use crate::comm::messages::Messages;
use crate::comm::work::BackendWork;
use crate::comm::{Collective, Payload};
use crate::{Error, Result};

impl NetworkLines {
    /// The messages of a group.
    pub(in crate::comm) fn messages(
        self: &Arc<Self>,
        group: u64,
        ranks: &Arc<[usize]>,
    ) -> Arc<dyn Messages> {
        Arc::new(NetworkMessages { network: Arc::clone(self), group, ranks: Arc::clone(ranks) })
    }

    /// Posts a receive for a message from rank `from`, or from any rank of the group, or for a part
    /// of a collective.
    pub(in crate::comm) fn receive(
        self: &Arc<Self>,
        kind: FrameKind,
        (group, from): (u64, Option<usize>),
        ranks: &Arc<[usize]>,
        header: CollectiveHeader,
        payload: Payload,
    ) -> NetworkWork {
        let (reply, answer) = oneshot::channel();
        let any_length = kind == FrameKind::Part || header.op == Collective::RecvAny;
        let ranks_of = Arc::clone(ranks);
        let posted = PostedReceive { from, payload, any_length, ranks: ranks_of, answer: reply };
        let limits = self.peers.lock().post(kind, group, posted);
        self.tell_limits(limits);
        let mut peers = from.map_or_else(|| ranks.to_vec(), |from| vec![from]);
        peers.retain(|&peer| peer != self.rank);
        NetworkWork { network: Arc::clone(self), group, peers, header, answer, result: None }
    }
}

struct NetworkMessages {
    network: Arc<NetworkLines>,
    group: u64,
    /// The members' ranks in the world.
    ranks: Arc<[usize]>,
}

impl Messages for NetworkMessages {
    fn start(&self, header: CollectiveHeader, payload: Payload) -> Box<dyn BackendWork> {
        let Self { network, group, ranks } = self;
        let from = match header.op {
            Collective::Send { to } => return self.send(header, ranks[to], payload),
            Collective::Recv { from } => Some(ranks[from]),
            _ => None,
        };
        let place = (*group, from);
        Box::new(network.receive(FrameKind::Message, place, ranks, header, payload))
    }

    fn alloc(&self, len: usize) -> Option<Box<dyn SharedMemory>> {
        self.network.parcels.as_ref()?.alloc(len)
    }
}

impl NetworkMessages {
    fn send(
        &self,
        header: CollectiveHeader,
        to: usize,
        mut payload: Payload,
    ) -> Box<dyn BackendWork> {
        let &Self { ref network, group, .. } = self;
        let (written, answer) = oneshot::channel();
        let element = header.element.code();
        if to == network.rank {
            let head =
                FrameHeader { kind: FrameKind::Message, element, from: to, to, group, len: 0 };
            network.peers.lock().deliver(head, payload.bytes().to_vec().into());
            return Box::new(Ok(Payload::empty()));
        }
        if let Err(error) = network.trouble(group, &[to], || header.to_string()) {
            return Box::new(Err(error));
        }
        let note = network.parcels.as_ref().and_then(|parcels| parcels.pack(&mut payload));
        let (kind, body) = match note {
            Some(note) => (FrameKind::Parcel, note.encode().into()),
            None => (FrameKind::Message, FrameBody::Payload(payload)),
        };
        network.send(kind, (group, to), element, body, Some(written));
        let (network, peers) = (Arc::clone(network), vec![to]);
        Box::new(NetworkWork { network, group, peers, header, answer, result: None })
    }
}

/// An operation that waits for an action of another rank.
pub(in crate::comm) struct NetworkWork {
    network: Arc<NetworkLines>,
    group: u64,
    /// The ranks of which one must act.
    peers: Vec<usize>,
    header: CollectiveHeader,
    answer: oneshot::Receiver<Result<Payload>>,
    /// The result, once a wait has taken it from `answer` or knows that none comes.
    result: Option<Result<Payload>>,
}

impl NetworkWork {
    /// Waits for the answer, up to a limit. After the limit the operation has failed.
    pub(in crate::comm) fn wait_within(mut self, limit: Duration) -> Result<Payload> {
        let start = Instant::now();
        self.wait_for(limit);
        self.result.take().unwrap_or_else(|| Err(self.late(start.elapsed())))
    }

    fn trouble(&self) -> Result<()> {
        self.network.trouble(self.group, &self.peers, || self.header.to_string())
    }

    fn late(&self, waited: Duration) -> Error {
        let missing: Vec<String> = self.peers.iter().map(usize::to_string).collect();
        let (rank, during) = (self.network.rank, self.header.to_string());
        Error::Timeout { rank, during, missing: missing.join(", "), waited }
    }

    fn left(&self) -> Error {
        let (rank, during) = (self.network.rank, self.header.to_string());
        Error::PeerLeft { peer: self.peers.last().copied().unwrap_or(rank), rank, during }
    }
}

impl BackendWork for NetworkWork {
    fn is_complete(&mut self) -> bool {
        self.result.is_some() || self.answer.has_message() || self.answer.is_closed()
    }

    /// Waits while the answer can still arrive.
    fn wait_for(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.result.is_none() {
            let left = limit.saturating_sub(start.elapsed());
            let error = match self.answer.recv_timeout(left.min(NAP)) {
                Ok(result) => {
                    self.result = Some(result);
                    break;
                }
                Err(RecvTimeoutError::Timeout) => match self.trouble() {
                    Ok(()) if start.elapsed() < limit => continue,
                    Ok(()) => return false,
                    Err(error) => error,
                },
                // The network has dropped the receive, because all peers have left the group.
                Err(RecvTimeoutError::Disconnected) => match self.trouble() {
                    Ok(()) => self.left(),
                    Err(error) => error,
                },
            };
            // The messages that a rank sent before it left have arrived before the frame that says that it
            // left.
            self.result = Some(self.answer.try_recv().unwrap_or(Err(error)));
        }
        true
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let deadline = self.network.deadline;
        self.wait_within(deadline)
    }
}
