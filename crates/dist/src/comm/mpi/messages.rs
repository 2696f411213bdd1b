//! Messages of one rank to another: a letter with a header and the beginning, and the rest.
//!
//! Any thread asks for them. Whoever has the engine's turn moves them on: between two operations, and
//! while an operation waits for others. The library matches receives with messages, in the order in
//! which the receives were posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::leave::Job;
use super::mail::{HEADER_BYTES, enclosed, words};
use super::raw::{Batch, Letter, MpiGroup, Tag};
use crate::comm::collective::Header;
use crate::comm::pending::Started;
use crate::comm::transport::Messages;
use crate::comm::{Collective, ElementType, Payload, Pending};
use crate::{Error, Result};

/// The messages of a group, as its handle sees them.
pub(super) struct GroupMessages {
    pub(super) job: Arc<Job>,
    pub(super) group: Arc<MessageGroup>,
}

impl Messages for GroupMessages {
    fn start(&self, header: Header, payload: Payload) -> Pending {
        let (reply, answer) = oneshot::channel();
        let group = Arc::clone(&self.group);
        self.job.messages.ask(Request { group, header, payload, reply: Some(reply) });
        let rank = self.group.group.ranks[self.group.rank];
        Pending::new(Asked { rank, answer })
    }
}

/// A message that was asked for.
struct Asked {
    rank: usize,
    answer: oneshot::Receiver<Result<Payload>>,
}

impl Started for Asked {
    fn is_complete(&mut self) -> bool {
        self.answer.has_message() || self.answer.is_closed()
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let rank = self.rank;
        self.answer.recv().unwrap_or(Err(Error::Stopped { rank }))
    }
}

/// A group, and how many messages its ranks have sent each other.
pub(super) struct MessageGroup {
    pub(super) group: MpiGroup,
    pub(super) rank: usize,
    /// By rank.
    counts: Vec<Counts>,
    /// Receives that have not got their message.
    awaited: AtomicUsize,
}

struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    /// How many messages of a rank that has left there are in all; [`HERE`] while it has not.
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

    /// Why no message will come from this rank, or from any, if so.
    fn trouble(&self, from: Option<usize>, header: Header) -> Result<()> {
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
    /// Messages that were asked for or are under way.
    count: AtomicUsize,
    asked: Mutex<Vec<Request>>,
    underway: Mutex<Underway>,
}

struct Request {
    group: Arc<MessageGroup>,
    header: Header,
    payload: Payload,
    reply: Reply,
}

/// Nobody waits for a message that is forgotten.
type Reply = Option<oneshot::Sender<Result<Payload>>>;

#[derive(Default)]
struct Underway {
    /// They have been answered.
    sends: Vec<Batch>,
    receives: Vec<Receive>,
}

impl AllMessages {
    /// Receives so many messages of a member that has left, and forgets them.
    pub(super) fn forget(&self, group: &Arc<MessageGroup>, from: usize, count: u64) {
        for _ in 0..count {
            let (group, payload) = (Arc::clone(group), Payload::empty());
            let header = Header::of(0, Collective::Recv { from }, &payload);
            self.ask(Request { group, header, payload, reply: None });
        }
    }

    fn ask(&self, request: Request) {
        if !matches!(request.header.op, Collective::Send { .. }) {
            request.group.awaited.fetch_add(1, Ordering::Relaxed);
        }
        let mut asked = self.asked.lock();
        asked.push(request);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Moves them on; whether there still are any. For the thread that has the turn.
    pub(super) fn progress(&self, job: &Job) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut guard = self.underway.lock();
        let Underway { sends, receives } = &mut *guard;
        let asked = std::mem::take(&mut *self.asked.lock());
        let before = asked.len() + sends.len() + receives.len();
        for Request { group, header, payload, reply } in asked {
            match header.op {
                // It is answered at once, so that ranks which all send before they receive do not
                // wait for each other.
                Collective::Send { to } => {
                    let sent = send(&group, header, payload, to).map(|batch| {
                        sends.push(batch);
                        Payload::empty()
                    });
                    drop(reply.map(|reply| reply.send(sent)));
                }
                op => {
                    let (letter, rest, from) = (Letter::new(), None, op.rank_named());
                    let mut receive = Receive { group, from, header, payload, letter, rest, reply };
                    match receive.begin() {
                        Ok(()) => receives.push(receive),
                        Err(error) => receive.end(Err(error), job),
                    }
                }
            }
        }
        // A failed send shows at the receiver, which does not get it.
        sends.retain_mut(|batch| matches!(batch.poll(), Ok(None)));
        *receives = std::mem::take(receives)
            .into_iter()
            .filter_map(|mut receive| match receive.poll().transpose() {
                None => Some(receive),
                Some(result) => {
                    receive.end(result, job);
                    None
                }
            })
            .collect();
        let after = sends.len() + receives.len();
        self.count.fetch_sub(before - after, Ordering::Relaxed);
        after > 0
    }

    /// Whether messages that were sent are still on their way.
    pub(super) fn are_sending(&self, job: &Job) -> bool {
        self.progress(job) && !self.underway.lock().sends.is_empty()
    }
}

fn send(group: &MessageGroup, header: Header, payload: Payload, to: usize) -> Result<Batch> {
    group.counts[to].sent.fetch_add(1, Ordering::Relaxed);
    let all = 0..payload.bytes().len();
    let first = enclosed(&all);
    let mut letter = Payload::zeros(ElementType::U8, HEADER_BYTES + first);
    let (head, beginning) = letter.bytes_mut().split_at_mut(HEADER_BYTES);
    head.copy_from_slice(bytemuck::cast_slice(&header.encode()));
    beginning.copy_from_slice(&payload.bytes()[..first]);
    let mut batch = Batch::new(&group.group, [letter, payload]);
    batch.send(0, 0..HEADER_BYTES + first, to, Tag::MessageHeader)?;
    batch.send(1, first..all.end, to, Tag::Message)?;
    Ok(batch)
}

/// A receive under way.
struct Receive {
    group: Arc<MessageGroup>,
    from: Option<usize>,
    header: Header,
    /// Empty once it is in the batch.
    payload: Payload,
    letter: Letter,
    /// Who has sent the letter, and what receives the rest.
    rest: Option<(usize, Batch)>,
    reply: Reply,
}

impl Receive {
    fn begin(&mut self) -> Result<()> {
        self.letter.receive(&self.group.group, self.from, Tag::MessageHeader)
    }

    /// The payload, once it is complete.
    fn poll(&mut self) -> Result<Option<Payload>> {
        if self.rest.is_none() {
            let Some(source) = self.letter.poll_source()? else {
                self.group.trouble(self.from, self.header)?;
                return Ok(None);
            };
            let source = self.group.group.member(source);
            self.rest = Some((source, self.receive_rest(source)?));
        }
        let Some((source, batch)) = &mut self.rest else { return Ok(None) };
        Ok(batch.poll()?.map(|[_, payload]| payload.with_source(*source)))
    }

    /// Receives what comes after the letter, whose numbers it takes.
    fn receive_rest(&mut self, source: usize) -> Result<Batch> {
        self.group.counts[source].received.fetch_add(1, Ordering::Relaxed);
        let Some(message) = Header::decode(words(self.letter.bytes())) else {
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
        let beginning = &self.letter.bytes()[HEADER_BYTES..HEADER_BYTES + first];
        payload.bytes_mut()[..first].copy_from_slice(beginning);
        let mut batch = Batch::new(&self.group.group, [Payload::empty(), payload]);
        batch.receive(1, first..all.end, source, Tag::Message)?;
        Ok(batch)
    }

    fn end(self, result: Result<Payload>, job: &Job) {
        self.group.awaited.fetch_sub(1, Ordering::Relaxed);
        let failed = result.is_err();
        // The answer to a thread that does not wait for it is dropped.
        let heard = self.reply.is_some_and(|reply| reply.send(result).is_ok());
        if failed && heard {
            job.fail();
        }
    }
}
