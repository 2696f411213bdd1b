//! Messages of one rank to another: a header and the first data, then the rest.
//!
//! Any thread may start a message. The thread that has the queue's turn sends and receives it
//! between two operations, and while an operation waits for other ranks. The library matches
//! receives with messages in the order in which the receives were posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::headers::{HEADER_BYTES, enclosed, words};
use super::raw::{HeaderMessage, MessageTag, MpiGroup, RequestBatch};
use crate::comm::collective::CollectiveHeader;
use crate::comm::messages::Messages;
use crate::comm::work::BackendWork;
use crate::comm::{Collective, ElementType, Payload};
use crate::{Error, Result};

/// The messages of a group, as its handle sees them.
pub(super) struct MpiMessages {
    pub(super) all: Arc<AllMessages>,
    pub(super) group: Arc<MessageGroup>,
}

impl Messages for MpiMessages {
    fn start(&self, header: CollectiveHeader, payload: Payload) -> Box<dyn BackendWork> {
        let (reply, answer) = oneshot::channel();
        let group = Arc::clone(&self.group);
        self.all.ask(MessageRequest { group, header, payload, reply: Some(reply) });
        let rank = self.group.group.ranks[self.group.rank];
        Box::new(MpiWork { rank, answer })
    }
}

/// A message that a thread has started.
struct MpiWork {
    rank: usize,
    answer: oneshot::Receiver<Result<Payload>>,
}

impl BackendWork for MpiWork {
    fn is_complete(&mut self) -> bool {
        self.answer.has_message() || self.answer.is_closed()
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let rank = self.rank;
        self.answer.recv().unwrap_or(Err(Error::Stopped { rank }))
    }
}

/// A group, and the numbers of messages between this rank and each member.
pub(super) struct MessageGroup {
    pub(super) group: MpiGroup,
    pub(super) rank: usize,
    /// By rank.
    counts: Vec<Counts>,
    /// The number of receives that are not complete.
    awaited: AtomicUsize,
}

struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    /// The number of all messages of a rank that has left; [`HERE`] before it leaves.
    in_all: AtomicU64,
}

const HERE: u64 = u64::MAX;

impl MessageGroup {
    pub(super) fn new(group: MpiGroup, rank: usize) -> Self {
        let none = AtomicU64::default;
        let counts = || Counts { sent: none(), received: none(), in_all: AtomicU64::new(HERE) };
        let counts = group.ranks.iter().map(|_| counts()).collect();
        Self { group, rank, counts, awaited: AtomicUsize::new(0) }
    }

    pub(super) fn awaits(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    pub(super) fn sent(&self, to: usize) -> u64 {
        self.counts[to].sent.load(Ordering::Relaxed)
    }

    pub(super) fn received(&self, from: usize) -> u64 {
        self.counts[from].received.load(Ordering::Relaxed)
    }

    pub(super) fn note_farewell(&self, rank: usize, sent: u64) {
        self.counts[rank].in_all.store(sent, Ordering::Relaxed);
    }

    /// An error if no message can arrive from this rank (`None`: from any rank).
    fn trouble(&self, from: Option<usize>, header: CollectiveHeader) -> Result<()> {
        let (sent, received) = (self.sent(self.rank), &self.counts[self.rank].received);
        let sources = from.map_or(0..self.group.ranks.len(), |from| from..from + 1);
        let mut peers = sources.clone().filter(|&source| source != self.rank);
        if sources.contains(&self.rank) && (sent > received.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let is_here = |peer: usize| {
            let counts = &self.counts[peer];
            counts.in_all.load(Ordering::Relaxed) != counts.received.load(Ordering::Relaxed)
        };
        let Some(last) = peers.clone().last() else { return Ok(()) };
        if peers.any(is_here) {
            return Ok(());
        }
        let (peer, rank) = (self.group.ranks[last], self.group.ranks[self.rank]);
        Err(Error::PeerLeft { peer, rank, during: header.to_string() })
    }
}

/// The messages of all groups of a rank.
#[derive(Default)]
pub(super) struct AllMessages {
    /// The number of messages in `asked` and in `underway`.
    count: AtomicUsize,
    asked: Mutex<Vec<MessageRequest>>,
    underway: Mutex<MovingMessages>,
}

struct MessageRequest {
    group: Arc<MessageGroup>,
    header: CollectiveHeader,
    payload: Payload,
    reply: ReplySender,
}

/// `None` for a message that is received only to be dropped.
type ReplySender = Option<oneshot::Sender<Result<Payload>>>;

#[derive(Default)]
struct MovingMessages {
    /// The results of these sends have been returned already.
    sends: Vec<RequestBatch>,
    receives: Vec<MpiReceive>,
}

impl AllMessages {
    /// Receives `count` messages of a member that has left, and drops them.
    pub(super) fn forget(&self, group: &Arc<MessageGroup>, from: usize, count: u64) {
        for _ in 0..count {
            let (group, payload) = (Arc::clone(group), Payload::empty());
            let header = CollectiveHeader::new(0, Collective::Recv { from }, &payload);
            self.ask(MessageRequest { group, header, payload, reply: None });
        }
    }

    fn ask(&self, request: MessageRequest) {
        if !matches!(request.header.op, Collective::Send { .. }) {
            request.group.awaited.fetch_add(1, Ordering::Relaxed);
        }
        let mut asked = self.asked.lock();
        asked.push(request);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Moves all messages on, on the thread that has the turn. Returns whether any are left.
    pub(super) fn progress(&self) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut guard = self.underway.lock();
        let MovingMessages { sends, receives } = &mut *guard;
        let asked = std::mem::take(&mut *self.asked.lock());
        let before = asked.len() + sends.len() + receives.len();
        for MessageRequest { group, header, payload, reply } in asked {
            match header.op {
                // A send is answered at once. Otherwise ranks that all send before they receive
                // would wait for each other.
                Collective::Send { to } => {
                    let sent = send(&group, header, payload, to).map(|batch| {
                        sends.push(batch);
                        Payload::empty()
                    });
                    drop(reply.map(|reply| reply.send(sent)));
                }
                op => {
                    let (head, rest, from) = (HeaderMessage::new(), None, op.rank_named());
                    let mut receive =
                        MpiReceive { group, from, header, payload, head, rest, reply };
                    match receive.begin() {
                        Ok(()) => receives.push(receive),
                        Err(error) => receive.end(Err(error)),
                    }
                }
            }
        }
        // A failed send is not reported here. Its receiver gets no message and fails.
        sends.retain_mut(|batch| matches!(batch.poll(), Ok(None)));
        *receives = std::mem::take(receives)
            .into_iter()
            .filter_map(|mut receive| match receive.poll().transpose() {
                None => Some(receive),
                Some(result) => {
                    receive.end(result);
                    None
                }
            })
            .collect();
        let after = sends.len() + receives.len();
        self.count.fetch_sub(before - after, Ordering::Relaxed);
        after > 0
    }

    /// Whether messages of this rank are still on their way.
    pub(super) fn are_sending(&self) -> bool {
        self.progress() && !self.underway.lock().sends.is_empty()
    }
}

fn send(
    group: &MessageGroup,
    header: CollectiveHeader,
    payload: Payload,
    to: usize,
) -> Result<RequestBatch> {
    group.counts[to].sent.fetch_add(1, Ordering::Relaxed);
    let all = 0..payload.bytes().len();
    let first = enclosed(&all);
    let mut message = Payload::zeros(ElementType::U8, HEADER_BYTES + first);
    let (head, beginning) = message.bytes_mut().split_at_mut(HEADER_BYTES);
    head.copy_from_slice(bytemuck::cast_slice(&header.encode()));
    beginning.copy_from_slice(&payload.bytes()[..first]);
    let mut batch = RequestBatch::new(&group.group, [message, payload]);
    batch.send(0, 0..HEADER_BYTES + first, to, MessageTag::MessageHeader)?;
    batch.send(1, first..all.end, to, MessageTag::Message)?;
    Ok(batch)
}

struct MpiReceive {
    group: Arc<MessageGroup>,
    from: Option<usize>,
    header: CollectiveHeader,
    /// Empty after it has been moved into the batch.
    payload: Payload,
    head: HeaderMessage,
    /// The sender of the header message, and the requests that receive the rest.
    rest: Option<(usize, RequestBatch)>,
    reply: ReplySender,
}

impl MpiReceive {
    fn begin(&mut self) -> Result<()> {
        self.head.receive(&self.group.group, self.from, MessageTag::MessageHeader)
    }

    /// The payload, once it is complete.
    fn poll(&mut self) -> Result<Option<Payload>> {
        if self.rest.is_none() {
            let Some(source) = self.head.poll_source()? else {
                let trouble = self.group.trouble(self.from, self.header);
                if trouble.is_err() {
                    self.head.withdraw()?;
                }
                return trouble.map(|()| None);
            };
            let source = self.group.group.member(source);
            self.rest = Some((source, self.receive_rest(source)?));
        }
        let Some((source, batch)) = &mut self.rest else { return Ok(None) };
        Ok(batch.poll()?.map(|[_, payload]| payload.with_source(*source)))
    }

    /// Copies the beginning of the message from the header message, and starts to receive the rest.
    fn receive_rest(&mut self, source: usize) -> Result<RequestBatch> {
        self.group.counts[source].received.fetch_add(1, Ordering::Relaxed);
        let Some(message) = CollectiveHeader::decode(words(self.head.bytes())) else {
            let rank = self.group.group.ranks[source];
            let what = format!("rank {rank} sent a message with an unreadable header");
            return Err(Error::Protocol { what });
        };
        let header = self.header;
        let forgets = self.reply.is_none();
        if message.element != header.element && !forgets {
            return Err(Error::element_type(message.element, header.element));
        }
        let mut payload = std::mem::replace(&mut self.payload, Payload::empty());
        if header.op == Collective::RecvAny || forgets {
            payload = Payload::zeros(message.element, message.len);
        }
        if message.len != payload.len() {
            return Err(Error::Length { op: "recv", expected: message.len, got: payload.len() });
        }
        let all = 0..payload.bytes().len();
        let first = enclosed(&all);
        let beginning = &self.head.bytes()[HEADER_BYTES..HEADER_BYTES + first];
        payload.bytes_mut()[..first].copy_from_slice(beginning);
        let mut batch = RequestBatch::new(&self.group.group, [Payload::empty(), payload]);
        batch.receive(1, first..all.end, source, MessageTag::Message)?;
        Ok(batch)
    }

    fn end(self, result: Result<Payload>) {
        self.group.awaited.fetch_sub(1, Ordering::Relaxed);
        // If no thread waits any more, the result is dropped, and an error has no effect.
        drop(self.reply.map(|reply| reply.send(result)));
    }
}
