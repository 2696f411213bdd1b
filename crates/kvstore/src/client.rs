//! A worker's requests: in what order they leave, and which answers belong to them.
//!
//! The requests for one key keep their order. Among keys, the highest priority leaves first, and of
//! equal priorities the oldest. So that a priority can matter, a worker gives a server no more than
//! [`WINDOW`] bytes that the server has not confirmed. The thread that calls the store sends and
//! receives: there is no thread for it. Confirmations do not wait for other workers, so no two workers
//! can wait for each other's pushes with full windows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::link::Link;
use crate::wire::{Message, Op};
use crate::{Error, Result};

/// The most bytes on their way to one server.
const WINDOW: usize = 4 << 20;

/// A message of at least this length is confirmed by the server when it arrives.
pub(crate) const CONFIRMED_FROM: usize = 64 << 10;

/// The time between two looks at the clock while this worker waits.
const NAP: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(crate) struct Client {
    rank: usize,
    link: Box<dyn Link>,
    deadline: Duration,
    last_ticket: u64,
    /// By server.
    queues: Vec<Queue>,
    /// Requests whose answers a caller wants, and those answers that have arrived.
    wanted: HashMap<u64, Option<Result<Message>>>,
    /// An error of a request that no caller waits for.
    failure: Option<Error>,
    /// The time that callers have waited.
    pub(crate) waited: Duration,
}

/// The requests to one server that have not left.
#[derive(Debug, Default)]
struct Queue {
    /// By key.
    lanes: BTreeMap<u32, VecDeque<(i32, u64, Message)>>,
    /// The first request of each lane: priority, age, key.
    first: BinaryHeap<(i32, Reverse<u64>, u32)>,
    /// By ticket: the lengths of messages that the server has not confirmed.
    unconfirmed: HashMap<u64, usize>,
    unconfirmed_bytes: usize,
}

impl Queue {
    fn push(&mut self, key: u32, priority: i32, age: u64, message: Message) {
        let lane = self.lanes.entry(key).or_default();
        if lane.is_empty() {
            self.first.push((priority, Reverse(age), key));
        }
        lane.push_back((priority, age, message));
    }

    fn pop(&mut self) -> Option<Message> {
        if self.unconfirmed_bytes >= WINDOW {
            return None;
        }
        let (.., key) = self.first.pop()?;
        let lane = self.lanes.get_mut(&key)?;
        let (.., message) = lane.pop_front()?;
        match lane.front() {
            Some((priority, age, _)) => self.first.push((*priority, Reverse(*age), key)),
            None => drop(self.lanes.remove(&key)),
        }
        Some(message)
    }

    fn confirm(&mut self, ticket: u64) {
        self.unconfirmed_bytes -= self.unconfirmed.remove(&ticket).unwrap_or(0);
    }
}

impl Client {
    pub(crate) fn new(rank: usize, link: Box<dyn Link>, deadline: Duration) -> Self {
        let queues = (0..link.servers()).map(|_| Queue::default()).collect();
        Self {
            rank,
            link,
            deadline,
            last_ticket: 0,
            queues,
            wanted: HashMap::new(),
            failure: None,
            waited: Duration::ZERO,
        }
    }

    pub(crate) fn link(&mut self) -> &mut dyn Link {
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
        message: Message,
        wants: bool,
    ) -> Result<()> {
        let &crate::wire::Header { key, ticket, .. } = message.header();
        if wants {
            self.wanted.insert(ticket, None);
        }
        self.queues[server].push(key, priority, ticket, message);
        self.progress()
    }

    /// Sends what may leave, and takes the answers that have arrived.
    pub(crate) fn progress(&mut self) -> Result<()> {
        self.send()?;
        while let Some((server, message)) = self.link.receive(Duration::ZERO)? {
            self.take(server, message);
            self.send()?;
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn send(&mut self) -> Result<()> {
        for (server, queue) in self.queues.iter_mut().enumerate() {
            while let Some(message) = queue.pop() {
                if message.header().receipt == 1 {
                    queue.unconfirmed.insert(message.header().ticket, message.len());
                    queue.unconfirmed_bytes += message.len();
                }
                self.link.send(server, message)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, server: usize, message: Message) {
        let ticket = message.header().ticket;
        let result = match message.op() {
            Op::Answer if message.header().receipt == 1 => {
                return self.queues[server].confirm(ticket);
            }
            Op::Answer => Ok(message),
            _ => {
                // A message that is refused is not confirmed.
                self.queues[server].confirm(ticket);
                let server = self.link.rank_of(server);
                Err(Error::Refused { server, message: message.text_of().into_owned() })
            }
        };
        match (self.wanted.get_mut(&ticket), result) {
            (Some(place), result) => *place = Some(result),
            // A caller that has dropped its handle wants no answer, but must learn of an error.
            (None, Err(error)) => drop(self.failure.get_or_insert(error)),
            (None, Ok(_)) => {}
        }
    }

    /// The caller waits for this answer no longer.
    pub(crate) fn forget(&mut self, ticket: u64) {
        self.wanted.remove(&ticket);
    }

    /// Whether the answer has arrived.
    pub(crate) fn has_arrived(&self, ticket: u64) -> bool {
        !matches!(self.wanted.get(&ticket), Some(None))
    }

    /// Waits for the answer of `server`. `during` says for what, in an error.
    pub(crate) fn wait(
        &mut self,
        server: usize,
        ticket: u64,
        during: impl FnOnce() -> String,
    ) -> Result<Message> {
        self.progress()?;
        let start = Instant::now();
        // A server reports a late worker at its deadline. This deadline is for the server itself.
        let patience = self.deadline.saturating_add(self.deadline / 4);
        while !self.has_arrived(ticket) {
            if let Some((from, message)) = self.link.receive(NAP)? {
                self.take(from, message);
                self.progress()?;
            } else if start.elapsed() > patience {
                let (rank, server) = (self.rank, self.link.rank_of(server));
                let seconds = start.elapsed().as_secs();
                return Err(Error::Silent { rank, server, during: during(), seconds });
            }
        }
        self.waited += start.elapsed();
        let missing = || {
            let what = format!("the answer to request {ticket} was taken twice");
            Err(Error::Message { from: self.rank, what })
        };
        self.wanted.remove(&ticket).flatten().unwrap_or_else(missing)
    }

    /// Sends one request to every server, after all earlier requests, and returns the answers in the
    /// order of the servers. `make` gets a ticket.
    pub(crate) fn ask_all(
        &mut self,
        during: &str,
        make: impl Fn(u64, usize) -> Message,
    ) -> Result<Vec<Message>> {
        self.send_all()?;
        let mut tickets = Vec::new();
        for server in 0..self.queues.len() {
            let ticket = self.ticket();
            self.wanted.insert(ticket, None);
            self.link.send(server, make(ticket, server))?;
            tickets.push((server, ticket));
        }
        let answers = tickets
            .into_iter()
            .map(|(server, ticket)| self.wait(server, ticket, || during.to_owned()));
        answers.collect()
    }

    /// Returns when no request is left in a queue.
    fn send_all(&mut self) -> Result<()> {
        let start = Instant::now();
        self.progress()?;
        while let Some(server) = self.queues.iter().position(|queue| !queue.first.is_empty()) {
            if let Some((from, message)) = self.link.receive(NAP)? {
                self.take(from, message);
                self.progress()?;
            } else if start.elapsed() > self.deadline {
                let (rank, server) = (self.rank, self.link.rank_of(server));
                let (during, seconds) =
                    ("the sending of requests".to_owned(), start.elapsed().as_secs());
                return Err(Error::Silent { rank, server, during, seconds });
            }
        }
        Ok(())
    }

    /// Says goodbye to every server.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.send_all()?;
        for server in 0..self.queues.len() {
            let goodbye = Message::text(crate::wire::Header::new(Op::Goodbye), "");
            self.link.send(server, goodbye)?;
        }
        self.link.finish()
    }
}
