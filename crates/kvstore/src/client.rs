//! A worker's requests: in what order they leave, and which answers belong to them.
//!
//! The requests for one key keep their order. Among keys, the highest priority leaves first, and of
//! equal priorities the oldest. So that a priority can matter, a worker gives a server no more than
//! [`WINDOW`] bytes that the server has not confirmed. The thread that calls the store sends and
//! receives: there is no thread for it. Confirmations do not wait for other workers, so no two workers
//! can wait for each other's pushes with full windows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::link::Link;
use crate::wire::{Header, Message, Op};
use crate::{Error, Result};

/// The most bytes on their way to one server.
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
    link: Box<dyn Link>,
    deadline: Duration,
    last_ticket: u64,
    /// By server.
    queues: Vec<Queue>,
    /// Requests whose answers a caller wants, and those answers that have arrived.
    wanted: HashMap<u64, Option<Result<Message>>>,
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
            ignored: HashSet::new(),
            failure: None,
            has_given_up: false,
            is_leaving: false,
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
        let &Header { key, ticket, .. } = message.header();
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
    ) -> Result<Option<Message>> {
        self.check()?;
        if !self.has_arrived(ticket) {
            let Some((from, message)) = self.link.receive(NAP)? else {
                // A server reports a late worker at its deadline. This one is for the server itself.
                let patience = self.deadline.saturating_add((self.deadline / 4).max(LATENESS));
                return match start.elapsed() > patience {
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
        make: impl Fn(u64, usize) -> Message,
    ) -> Result<Vec<Message>> {
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

    /// Returns when no request is left in a queue. It waits for confirmations alone, so for no worker.
    pub(crate) fn send_all(&mut self) -> Result<()> {
        let mut start = Instant::now();
        self.progress()?;
        while let Some(server) = self.queues.iter().position(|queue| !queue.first.is_empty()) {
            if let Some((from, message)) = self.link.receive(NAP)? {
                self.take(from, message);
                self.progress()?;
                start = Instant::now();
            } else if start.elapsed() > self.deadline {
                return Err(self.silent(server, "the sending of requests".to_owned(), start));
            }
        }
        Ok(())
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
        self.failure.take().into_iter().for_each(|error| unheard(&error));
        let goodbye =
            |ticket, _| Message::text(Header { ticket, ..Header::new(Op::Goodbye) }, error);
        self.ask_all("leaving", goodbye)?;
        self.link.finish()
    }
}

/// A request was refused, and the program has dropped the store without another call.
fn unheard(error: &Error) {
    tracing::error!("a request before the end of a store: {error}");
}
