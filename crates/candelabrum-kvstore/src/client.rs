//! A worker's requests: in what order they leave, and which answers belong to them.
//!
//! The requests for one key keep their order. Among keys, the highest priority leaves first, and of
//! equal priorities the oldest. So that a priority can matter, a worker sends nothing to a server that has
//! not confirmed [`WINDOW`] bytes. The thread that calls the store sends and receives: there is no thread
//! for it. Confirmations do not wait for other workers, so no two workers can wait for each other's
//! pushes with full windows.
//!
//! Where servers keep pushes until other workers have caught up, at most [`MOST_AHEAD`] pushes of one key
//! are sent ahead. Then the requests for this key wait in their *lane* until the server has room, and those
//! for other keys leave. So this wait is for pushes of the same key alone, which no worker can keep from
//! another one. Answers to pulls tell the number of pushes that a server still keeps; a worker that does not
//! pull asks for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::link::ShardLink;
use crate::wire::{MOST_AHEAD, MessageHeader, MessageKind, WireMessage};
use crate::{Error, Result};

/// No further request leaves while this many bytes of long messages are unconfirmed by their server.
const WINDOW: usize = 4 << 20;

/// A message of at least this length is confirmed by the server when it arrives.
pub(crate) const CONFIRMED_FROM: usize = 64 << 10;

/// The time between two looks at the clock while this worker waits.
const NAP: Duration = Duration::from_millis(20);

/// The least time by which a worker is more patient than a server, which looks at the clock now and
/// then, and knows better for whom they wait.
const LATENESS: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    rank: usize,
    link: Box<dyn ShardLink>,
    deadline: Duration,
    last_ticket: u64,
    /// By server.
    queues: Vec<RequestQueue>,
    /// Requests whose answers a caller wants, and those answers that have arrived.
    wanted: HashMap<u64, Option<Result<WireMessage>>>,
    /// Requests whose answers nobody needs, because the caller has got an error.
    ignored: HashSet<u64>,
    /// An error of a request that no caller waits for.
    failure: Option<Error>,
    /// Whether a server was silent for longer than the deadline.
    has_given_up: bool,
    /// Whether no caller is left that could get an error.
    is_leaving: bool,
    /// The time that callers have waited.
    pub(crate) waited: Duration,
}

/// The requests to one server that have not left.
#[derive(Debug, Default)]
struct RequestQueue {
    /// By key.
    lanes: BTreeMap<u32, VecDeque<(i32, u64, WireMessage)>>,
    /// The first request of each lane: priority, age, key.
    first: BinaryHeap<(i32, Reverse<u64>, u32)>,
    /// By ticket: the lengths of messages that the server has not confirmed.
    unconfirmed: HashMap<u64, usize>,
    unconfirmed_bytes: usize,
    /// By key: its pushes. `None` where servers keep no pushes.
    flows: Option<HashMap<u32, PushFlow>>,
}

/// The pushes of one key to one server.
#[derive(Debug, Default)]
struct PushFlow {
    /// Those that have left.
    sent: u64,
    /// Those of them of which it is known that the server does not keep them.
    done: u64,
    /// The requests under way whose answers will tell more: ticket, and pushes before the request.
    asked: VecDeque<(u64, u64)>,
    /// The ticket of the request for room that is under way.
    asks_for_room: Option<u64>,
    /// Whether the lane of the key waits for room.
    waits: bool,
    /// Whether the server has refused to give room. The pushes leave then, and the server refuses them.
    is_refused: bool,
}

impl PushFlow {
    fn is_full(&self) -> bool {
        self.sent - self.done >= MOST_AHEAD && !self.is_refused
    }

    fn record_sent(&mut self, op: MessageKind, ticket: u64) {
        self.sent += u64::from(is_push(op));
        if matches!(op, MessageKind::PushPull | MessageKind::Pull | MessageKind::PullRows) {
            self.asked.push_back((ticket, self.sent));
        }
    }

    /// Notes an answer. Returns whether it was to a request of this flow.
    fn record_answer(&mut self, ticket: u64, answer: Option<&MessageHeader>) -> bool {
        let Some(place) = self.asked.iter().position(|(asked, _)| *asked == ticket) else {
            return false;
        };
        let (_, sent) = self.asked[place];
        // The server answers in order, so it does not keep what came before earlier requests, either.
        self.asked.drain(..=place);
        let mut kept = 0;
        if self.asks_for_room == Some(ticket) {
            self.asks_for_room = None;
            self.is_refused = answer.is_none();
            kept = answer.map_or(0, |header| header.elements);
        }
        self.done = self.done.max(sent.saturating_sub(kept));
        true
    }
}

fn is_push(op: MessageKind) -> bool {
    matches!(op, MessageKind::Push | MessageKind::PushPull | MessageKind::PushRows)
}

impl RequestQueue {
    fn new(keeps_pushes: bool) -> Self {
        Self { flows: keeps_pushes.then(HashMap::new), ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    fn push(&mut self, key: u32, priority: i32, age: u64, message: WireMessage) {
        let lane = self.lanes.entry(key).or_default();
        if lane.is_empty() {
            self.first.push((priority, Reverse(age), key));
        }
        lane.push_back((priority, age, message));
    }

    /// The next request that may leave. `last_ticket` is for a request for room.
    fn pop(&mut self, last_ticket: &mut u64) -> Option<WireMessage> {
        while self.unconfirmed_bytes < WINDOW {
            let (.., key) = self.first.pop()?;
            let lane = self.lanes.get_mut(&key)?;
            let flow = self.flows.as_mut().map(|flows| flows.entry(key).or_default());
            if let Some(flow) = flow {
                let header = lane.front()?.2.header();
                let (op, ticket) = (lane.front()?.2.op(), header.ticket);
                if is_push(op) && flow.is_full() {
                    flow.waits = true;
                    if flow.asks_for_room.is_some() {
                        continue;
                    }
                    *last_ticket += 1;
                    flow.asks_for_room = Some(*last_ticket);
                    flow.asked.push_back((*last_ticket, flow.sent));
                    let header = MessageHeader {
                        ticket: *last_ticket,
                        key,
                        ..MessageHeader::new(MessageKind::Room)
                    };
                    return Some(WireMessage::text(header, ""));
                }
                flow.record_sent(op, ticket);
            }
            let (.., message) = lane.pop_front()?;
            match lane.front() {
                Some((priority, age, _)) => self.first.push((*priority, Reverse(*age), key)),
                None => drop(self.lanes.remove(&key)),
            }
            return Some(message);
        }
        None
    }

    /// Notes an answer to a request for this key, or the refusal of a request for any key. A lane that
    /// waits may then go on.
    fn record_answer(&mut self, ticket: u64, answer: Option<&MessageHeader>) {
        let Some(flows) = &mut self.flows else { return };
        let key = match answer {
            Some(header) => Some(header.key),
            None => {
                let has = |flow: &PushFlow| flow.asked.iter().any(|(asked, _)| *asked == ticket);
                flows.iter().find(|(_, flow)| has(flow)).map(|(key, _)| *key)
            }
        };
        let Some((key, flow)) = key.and_then(|key| Some((key, flows.get_mut(&key)?))) else {
            return;
        };
        if flow.record_answer(ticket, answer) && std::mem::take(&mut flow.waits) {
            let first = self.lanes.get(&key).and_then(VecDeque::front);
            self.first.extend(first.map(|(priority, age, _)| (*priority, Reverse(*age), key)));
        }
    }

    /// Drops the requests that wait for room.
    fn drop_waiting(&mut self) {
        for (key, flow) in self.flows.iter_mut().flatten().filter(|(_, flow)| flow.waits) {
            flow.waits = false;
            self.lanes.remove(key);
        }
    }

    fn confirm(&mut self, ticket: u64) {
        self.unconfirmed_bytes -= self.unconfirmed.remove(&ticket).unwrap_or(0);
    }
}

impl Client {
    /// `keeps_pushes`: servers keep a worker's pushes until other workers have caught up.
    pub(crate) fn new(
        rank: usize,
        link: Box<dyn ShardLink>,
        deadline: Duration,
        keeps_pushes: bool,
    ) -> Self {
        let queues = (0..link.servers()).map(|_| RequestQueue::new(keeps_pushes)).collect();
        Self {
            rank,
            link,
            deadline,
            last_ticket: 0,
            queues,
            wanted: HashMap::new(),
            ignored: HashSet::new(),
            failure: None,
            has_given_up: false,
            is_leaving: false,
            waited: Duration::ZERO,
        }
    }

    pub(crate) fn link(&mut self) -> &mut dyn ShardLink {
        &mut *self.link
    }

    /// The next request's ticket.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Whether a server is to confirm a message of `len` bytes.
    pub(crate) fn confirms(&self, len: usize) -> bool {
        self.link.is_remote() && len >= CONFIRMED_FROM
    }

    /// Puts a request about a key behind earlier ones with this key. With `wants` a caller will
    /// [wait](Self::wait) for the answer.
    pub(crate) fn request(
        &mut self,
        server: usize,
        priority: i32,
        message: WireMessage,
        wants: bool,
    ) -> Result<()> {
        let &MessageHeader { key, ticket, .. } = message.header();
        if wants {
            self.wanted.insert(ticket, None);
        }
        self.queues[server].push(key, priority, ticket, message);
        self.progress()
    }

    /// Sends what may leave, and takes the answers that have arrived.
    fn progress(&mut self) -> Result<()> {
        self.send()?;
        // A server that has answered a goodbye may have gone, and to receive from it is an error.
        while !(self.is_leaving && self.wanted.values().all(Option::is_some))
            && let Some((server, message)) = self.link.receive(Duration::ZERO)?
        {
            self.take(server, message);
            self.send()?;
        }
        Ok(())
    }

    /// Progresses, and returns the error of a request that no caller waits for. It comes before a new
    /// operation begins, because half an operation would leave servers with different rounds.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.progress()?;
        self.failure.take().map_or(Ok(()), Err)
    }

    fn send(&mut self) -> Result<()> {
        for (server, queue) in self.queues.iter_mut().enumerate() {
            while let Some(message) = queue.pop(&mut self.last_ticket) {
                if message.header().receipt == 1 {
                    queue.unconfirmed.insert(message.header().ticket, message.len());
                    queue.unconfirmed_bytes += message.len();
                }
                self.link.send(server, message)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, server: usize, message: WireMessage) {
        let ticket = message.header().ticket;
        let result = match message.op() {
            MessageKind::Answer if message.header().receipt == 1 => {
                return self.queues[server].confirm(ticket);
            }
            MessageKind::Answer => {
                self.queues[server].record_answer(ticket, Some(message.header()));
                Ok(message)
            }
            _ => {
                self.queues[server].record_answer(ticket, None);
                let server = self.link.rank_of(server);
                Err(Error::Refused { server, message: message.text_of().into_owned() })
            }
        };
        if self.ignored.remove(&ticket) {
            return;
        }
        match (self.wanted.get_mut(&ticket), result) {
            (Some(place), result) => *place = Some(result),
            // A caller that has dropped its handle wants no answer, but must learn of an error.
            (None, Err(error)) if self.is_leaving => unheard(&error),
            (None, Err(error)) => drop(self.failure.get_or_insert(error)),
            (None, Ok(_)) => {}
        }
    }

    /// The caller waits for this answer no longer.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.wanted.remove(&ticket);
    }

    /// The caller has got an error of its request, of which this is another part.
    pub(crate) fn ignore(&mut self, ticket: u64) {
        if let Some(None) = self.wanted.remove(&ticket) {
            self.ignored.insert(ticket);
        }
    }

    /// Whether the answer has arrived.
    pub(crate) fn has_arrived(&self, ticket: u64) -> bool {
        !matches!(self.wanted.get(&ticket), Some(None))
    }

    /// Waits a little for an answer of `server`, for which a caller has waited since `start`. `during`
    /// says for what, in an error. Between two calls, other threads may use the store.
    pub(crate) fn look(
        &mut self,
        (server, ticket): (usize, u64),
        start: Instant,
        during: impl FnOnce() -> String,
    ) -> Result<Option<WireMessage>> {
        self.check()?;
        if !self.has_arrived(ticket) {
            let Some((from, message)) = self.link.receive(NAP)? else {
                // A server reports a late worker at its deadline. This one is for the server itself.
                return match start.elapsed() > self.patience() {
                    true => Err(self.silent(server, during(), start)),
                    false => Ok(None),
                };
            };
            self.take(from, message);
            self.check()?;
        }
        if !self.has_arrived(ticket) {
            return Ok(None);
        }
        self.waited += start.elapsed();
        let missing = || {
            let what = format!("the answer to request {ticket} was taken twice");
            Err(Error::Message { from: self.rank, what })
        };
        self.wanted.remove(&ticket).flatten().unwrap_or_else(missing).map(Some)
    }

    /// The longest wait for a server that waits for other workers.
    fn patience(&self) -> Duration {
        self.deadline.saturating_add((self.deadline / 4).max(LATENESS))
    }

    fn silent(&mut self, server: usize, during: String, start: Instant) -> Error {
        self.has_given_up = true;
        let (rank, server) = (self.rank, self.link.rank_of(server));
        Error::Silent { rank, server, during, seconds: start.elapsed().as_secs() }
    }

    /// Sends one request to every server, after all earlier requests, and returns the answers in the
    /// order of the servers. `make` gets a ticket.
    pub(crate) fn ask_all(
        &mut self,
        during: &str,
        make: impl Fn(u64, usize) -> WireMessage,
    ) -> Result<Vec<WireMessage>> {
        self.send_all()?;
        self.check()?;
        let mut tickets = Vec::new();
        for server in 0..self.queues.len() {
            let ticket = self.ticket();
            self.wanted.insert(ticket, None);
            self.link.send(server, make(ticket, server))?;
            tickets.push((server, ticket));
        }
        let mut answers = Vec::new();
        for &asked in &tickets {
            let start = Instant::now();
            let answer = loop {
                match self.look(asked, start, || during.to_owned()) {
                    Ok(None) => {}
                    Ok(Some(answer)) => break Ok(answer),
                    Err(error) => break Err(error),
                }
            };
            answers.push(answer.inspect_err(|_| {
                tickets.iter().for_each(|(_, ticket)| self.ignore(*ticket));
            })?);
        }
        Ok(answers)
    }

    /// Sends a text to every server, which does not answer.
    pub(crate) fn tell_all(&mut self, op: MessageKind, text: &str) -> Result<()> {
        self.check()?;
        for server in 0..self.queues.len() {
            self.link.send(server, WireMessage::text(MessageHeader::new(op), text))?;
        }
        Ok(())
    }

    /// Returns when no request is left in a queue. It waits for confirmations, and where this worker is far
    /// ahead for the pushes of others.
    pub(crate) fn send_all(&mut self) -> Result<()> {
        let mut start = Instant::now();
        while !self.send_some(&mut start)? {}
        Ok(())
    }

    /// A part of [`Self::send_all`], after which other threads may use the store. Returns whether no request
    /// is left. `start` is the time since which no server has answered.
    pub(crate) fn send_some(&mut self, start: &mut Instant) -> Result<bool> {
        self.progress()?;
        let Some(server) = self.queues.iter().position(|queue| !queue.is_empty()) else {
            return Ok(true);
        };
        if let Some((from, message)) = self.link.receive(NAP)? {
            self.take(from, message);
            *start = Instant::now();
        } else if start.elapsed() > self.patience() {
            return Err(self.silent(server, "the sending of requests".to_owned(), *start));
        }
        Ok(false)
    }

    /// Says goodbye to every server, and waits for the answers: a server that still has an answer for
    /// this worker could not send it to a worker that has gone, and would fail. `error` is the last
    /// result of the program's calls, if it was one: workers that miss this one then know why.
    pub(crate) fn leave(&mut self, error: &str) -> Result<()> {
        if self.has_given_up {
            return Ok(());
        }
        self.is_leaving = true;
        self.wanted.clear();
        if !error.is_empty() {
            // Others may wait for this worker, which will push no more.
            self.queues.iter_mut().for_each(RequestQueue::drop_waiting);
        }
        self.failure.take().into_iter().for_each(|error| unheard(&error));
        let goodbye = |ticket, _| {
            WireMessage::text(
                MessageHeader { ticket, ..MessageHeader::new(MessageKind::Goodbye) },
                error,
            )
        };
        self.ask_all("leaving", goodbye)?;
        self.link.finish()
    }
}

/// A request was refused, and the program has dropped the store without another call.
fn unheard(error: &Error) {
    tracing::error!("a request before the end of a store: {error}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;
    use crate::shard::Updater;

    /// A server that takes messages, and confirms them when the test says so.
    #[derive(Clone, Debug, Default)]
    struct Slow(Arc<Mutex<Taken>>);

    #[derive(Debug, Default)]
    struct Taken {
        /// Key and ticket.
        messages: Vec<(u32, u64)>,
        unconfirmed: VecDeque<(u64, usize)>,
        answers: VecDeque<WireMessage>,
    }

    impl Slow {
        fn confirm(&self) -> bool {
            let mut taken = self.0.lock();
            let Some((ticket, _)) = taken.unconfirmed.pop_front() else { return false };
            let header =
                MessageHeader { ticket, receipt: 1, ..MessageHeader::new(MessageKind::Answer) };
            taken.answers.push_back(WireMessage::text(header, ""));
            true
        }

        fn underway(&self) -> usize {
            self.0.lock().unconfirmed.iter().map(|(_, len)| len).sum()
        }
    }

    impl ShardLink for Slow {
        fn servers(&self) -> usize {
            1
        }
        fn rank_of(&self, server: usize) -> usize {
            server
        }
        fn is_remote(&self) -> bool {
            true
        }
        fn send(&mut self, _: usize, message: WireMessage) -> Result<()> {
            let &MessageHeader { key, ticket, receipt, .. } = message.header();
            let mut taken = self.0.lock();
            taken.messages.push((key, ticket));
            if receipt == 1 {
                taken.unconfirmed.push_back((ticket, message.len()));
            }
            Ok(())
        }
        fn receive(&mut self, _: Duration) -> Result<Option<(usize, WireMessage)>> {
            Ok(self.0.lock().answers.pop_front().map(|answer| (0, answer)))
        }
        fn finish(&mut self) -> Result<()> {
            Ok(())
        }
        fn set_updater(&mut self, _: Updater) -> bool {
            false
        }
    }

    proptest! {
        /// Requests of some keys, with confirmations in between.
        #[test]
        fn keys_keep_their_order_and_of_what_may_leave_the_highest_priority_leaves_first(
            steps in prop::collection::vec(
                prop_oneof![
                    3 => (0..6_u32, -3..3_i32, 0..4_usize).prop_map(Some),
                    1 => Just(None),
                ],
                1..120,
            ),
        ) {
            let slow = Slow::default();
            let mut client = Client::new(0, Box::new(slow.clone()), Duration::from_secs(5), false);
            // By key: the tickets and priorities that have not left.
            let mut waiting: BTreeMap<u32, VecDeque<(u64, i32)>> = BTreeMap::new();
            let mut seen = 0;
            let mut check = |waiting: &mut BTreeMap<u32, VecDeque<(u64, i32)>>| {
                let left = slow.0.lock().messages.clone();
                for (key, ticket) in &left[seen..] {
                    let heads = waiting.values().filter_map(|lane| lane.front());
                    let best = heads.max_by_key(|(ticket, priority)| (*priority, Reverse(*ticket)));
                    prop_assert_eq!(best.map(|(ticket, _)| *ticket), Some(*ticket));
                    waiting.get_mut(key).and_then(VecDeque::pop_front);
                }
                seen = left.len();
                // The message that fills the window may be longer than the room that was left.
                prop_assert!(slow.underway() < WINDOW + (2 << 20));
                let is_full = slow.underway() >= WINDOW;
                prop_assert!(is_full || waiting.values().all(VecDeque::is_empty));
                Ok(())
            };
            for step in steps {
                match step {
                    Some((key, priority, len)) => {
                        let (ticket, len) = (client.ticket(), len << 19);
                        let receipt = u32::from(client.confirms(len));
                        let header = MessageHeader { ticket, key, receipt, ..MessageHeader::new(MessageKind::Push) };
                        waiting.entry(key).or_default().push_back((ticket, priority));
                        client.request(0, priority, WireMessage::new(header, "", len), false).unwrap();
                    }
                    None => {
                        slow.confirm();
                        client.check().unwrap();
                    }
                }
                check(&mut waiting)?;
            }
            while slow.confirm() {
                client.check().unwrap();
                check(&mut waiting)?;
            }
            prop_assert!(waiting.values().all(VecDeque::is_empty));
        }
    }

    /// What leaves for a key, and for another one, as its server keeps pushes and has room again.
    #[test]
    fn pushes_of_a_key_wait_in_their_lane_when_the_server_keeps_many() {
        let slow = Slow::default();
        let mut client = Client::new(0, Box::new(slow.clone()), Duration::from_secs(5), true);
        let request = |client: &mut Client, op: MessageKind, key: u32| {
            let ticket = client.ticket();
            let message =
                WireMessage::text(MessageHeader { ticket, key, ..MessageHeader::new(op) }, "");
            client.request(0, 0, message, false).unwrap();
            ticket
        };
        let left = || std::mem::take(&mut slow.0.lock().messages);
        let answer = |client: &mut Client, op: MessageKind, header: MessageHeader| {
            let header = MessageHeader { op: op as u32, ..header };
            slow.0.lock().answers.push_back(WireMessage::text(header, ""));
            client.check()
        };
        let most = MOST_AHEAD as usize;
        let tickets: Vec<u64> =
            (0..most + 3).map(|_| request(&mut client, MessageKind::Push, 1)).collect();
        request(&mut client, MessageKind::Push, 2);
        let of = |key: u32, left: &[(u32, u64)]| -> Vec<u64> {
            left.iter().filter(|(other, _)| *other == key).map(|(_, ticket)| *ticket).collect()
        };
        let (first, other) = {
            let left = left();
            (of(1, &left), of(2, &left))
        };
        assert_eq!(other.len(), 1, "another key is not kept");
        let (room, pushes) = first.split_last().unwrap();
        assert_eq!(pushes, &tickets[..most], "and then the request for room");
        assert!(!client.queues[0].is_empty());
        // Room for two: two pushes leave, and the next request for room.
        let header = MessageHeader {
            ticket: *room,
            key: 1,
            elements: MOST_AHEAD - 2,
            ..MessageHeader::default()
        };
        let header =
            MessageHeader { magic: MessageHeader::new(MessageKind::Answer).magic, ..header };
        answer(&mut client, MessageKind::Answer, header).unwrap();
        let second = of(1, &left());
        assert_eq!(second[..2], tickets[most..most + 2]);
        assert_eq!(second.len(), 3);
        // A pull behind them waits in the lane, too. A refusal lets them leave, for the server to refuse.
        let pull = request(&mut client, MessageKind::Pull, 1);
        assert!(of(1, &left()).is_empty());
        let header =
            MessageHeader { ticket: second[2], ..MessageHeader::new(MessageKind::Refusal) };
        assert!(answer(&mut client, MessageKind::Refusal, header).is_err());
        assert_eq!(of(1, &left()), [tickets[most + 2], pull]);
        assert!(client.queues[0].is_empty());
    }

    #[test]
    fn the_answer_to_a_pull_makes_room_without_a_request_for_it() {
        let slow = Slow::default();
        let mut client = Client::new(0, Box::new(slow.clone()), Duration::from_secs(5), true);
        for _ in 0..5 * MOST_AHEAD {
            for op in [MessageKind::Push, MessageKind::Pull] {
                let ticket = client.ticket();
                let header = MessageHeader { ticket, key: 1, ..MessageHeader::new(op) };
                client.request(0, 0, WireMessage::text(header, ""), false).unwrap();
            }
            let header = MessageHeader {
                ticket: client.last_ticket,
                key: 1,
                ..MessageHeader::new(MessageKind::Answer)
            };
            slow.0.lock().answers.push_back(WireMessage::text(header, ""));
        }
        assert_eq!(slow.0.lock().messages.len() as u64, 10 * MOST_AHEAD);
    }

    #[test]
    fn a_silent_server_is_named_after_the_deadline_and_is_asked_no_more() {
        let mut client = Client::new(3, Box::new(Slow::default()), Duration::ZERO, false);
        let ticket = client.ticket();
        let pull = WireMessage::text(
            MessageHeader { ticket, ..MessageHeader::new(MessageKind::Pull) },
            "",
        );
        client.request(0, 0, pull, true).unwrap();
        let start = Instant::now().checked_sub(LATENESS * 2).expect("an uptime");
        let error = client.look((0, ticket), start, || "pull of `w`".to_owned()).unwrap_err();
        assert!(matches!(&error, Error::Silent { rank: 3, server: 0, seconds: 4, .. }), "{error}");
        assert!(error.to_string().contains("pull of `w`"), "{error}");
        client.leave("").unwrap();
    }

    #[test]
    fn a_refusal_that_nobody_waits_for_is_the_error_of_the_next_call_and_only_of_that() {
        let slow = Slow::default();
        let mut client = Client::new(0, Box::new(slow.clone()), Duration::from_secs(5), false);
        let ticket = client.ticket();
        let push = WireMessage::text(
            MessageHeader { ticket, ..MessageHeader::new(MessageKind::Push) },
            "",
        );
        client.request(0, 0, push, false).unwrap();
        let header = MessageHeader { ticket, ..MessageHeader::new(MessageKind::Refusal) };
        slow.0.lock().answers.push_back(WireMessage::text(header, "no"));
        let error = client.check().unwrap_err();
        assert_eq!(error.to_string(), "server 0: no");
        client.check().unwrap();
    }
}
