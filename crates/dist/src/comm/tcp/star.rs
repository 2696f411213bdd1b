//! A connection between rank 0 and every other rank: gathered bytes, messages, and news of who
//! lives. Rank 0 passes on what is for others.
//!
//! A thread per connection listens. A rank that ends in order says goodbye first; one that fails
//! says why; one that is killed says nothing, and the end of its stream tells. Frames of one rank
//! for another arrive in the order in which they were sent; nothing is promised about those of two
//! ranks, so a goodbye tells how many gatherings its rank took part in.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::TcpConfig;
use super::rendezvous::{self, TO_HEAR_WHY};
use crate::comm::transport::Abort;
use crate::{Error, Result};

/// A waiting rank looks at the clock this often.
const NAP: Duration = Duration::from_millis(20);

/// The longest text that a failing rank may send.
const LONGEST_MESSAGE: usize = 64 * 1024;

/// A group of ranks, by a number that its members alone share; the world's is 0.
pub(super) type Channel = u64;

/// The channel of all ranks.
pub(super) const WORLD: Channel = 0;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message from one rank to another.
    Message = 0,
    /// A rank's part of a gathering, to the group's first rank.
    Part = 1,
    /// All ranks' parts, from the group's first rank.
    All = 2,
    /// The sender starts nothing more in this group.
    Goodbye = 3,
    /// The sender has failed, and says why: to everybody.
    Failed = 4,
    /// The sender has died, says rank 0: to everybody.
    Died = 5,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Message, Self::Part, Self::All, Self::Goodbye, Self::Failed, Self::Died];
}

/// What goes over a connection: kind, tag, who sent it, for whom, of which group, how many bytes,
/// the bytes.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    tag: u8,
    from: usize,
    to: usize,
    channel: Channel,
    bytes: Vec<u8>,
}

impl Frame {
    const HEAD: usize = 26;

    fn write(&self, mut socket: impl Write) -> io::Result<()> {
        let mut head = vec![self.kind as u8, self.tag];
        head.extend((self.from as u32).to_le_bytes());
        head.extend((self.to as u32).to_le_bytes());
        head.extend(self.channel.to_le_bytes());
        head.extend((self.bytes.len() as u64).to_le_bytes());
        socket.write_all(&head)?;
        socket.write_all(&self.bytes)
    }

    /// `None` at the end of the stream or of sense.
    fn read(mut socket: impl Read) -> Option<Self> {
        let mut head = [0; Self::HEAD];
        socket.read_exact(&mut head).ok()?;
        let kind = *Kind::ALL.get(usize::from(head[0]))?;
        let short = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let (from, to) = (short(2)? as usize, short(6)? as usize);
        let (channel, len) = (long(10)?, long(18)?);
        // It grows with what comes: a wrong length does not take all memory.
        let mut bytes = Vec::new();
        socket.take(len).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 == len).then_some(())?;
        Some(Self { kind, tag: head[1], from, to, channel, bytes })
    }
}

/// This rank's place in the star, shared by its groups.
pub(super) struct Star {
    rank: usize,
    world_size: usize,
    deadline: Duration,
    lines: Arc<Lines>,
    news: Arc<News>,
    readers: Mutex<Vec<JoinHandle<()>>>,
}

/// A message of another rank.
pub(super) struct Message {
    /// Its number in the world.
    pub(super) from: usize,
    pub(super) tag: u8,
    pub(super) bytes: Vec<u8>,
}

impl Star {
    /// Meets all ranks.
    pub(super) fn connect(config: &TcpConfig) -> Result<Self> {
        let &TcpConfig { rank, world_size, deadline, .. } = config;
        let sockets = rendezvous::meet(config)?;
        let writer = |socket: &Option<TcpStream>| match socket {
            Some(socket) => socket.try_clone().map(|socket| Some(Mutex::new(socket))),
            None => Ok(None),
        };
        let writers: io::Result<Vec<_>> = sockets.iter().map(writer).collect();
        let writers = writers.map_err(|error| Error::io("share a connection", error))?;
        let lines = Arc::new(Lines { rank, sockets: writers });
        let news = Arc::new(News::new(rank));
        let mut readers = Vec::new();
        for (peer, socket) in sockets.into_iter().enumerate() {
            let Some(socket) = socket else { continue };
            let (lines, news) = (Arc::clone(&lines), Arc::clone(&news));
            let reader = thread::Builder::new()
                .name(format!("candelabrum-tcp-{peer}"))
                .spawn(move || listen(peer, &socket, &lines, &news))
                .map_err(|error| Error::io("start a listening thread", error))?;
            readers.push(reader);
        }
        Ok(Self { rank, world_size, deadline, lines, news, readers: Mutex::new(readers) })
    }

    pub(super) fn handle(&self) -> Arc<dyn Abort> {
        Arc::new(Handle { lines: Arc::clone(&self.lines), news: Arc::clone(&self.news) })
    }

    /// The bytes of all `ranks` of a group, in their order: its gathering of this `number`.
    pub(super) fn gather(
        &self,
        channel: Channel,
        ranks: &[usize],
        number: u64,
        own: Vec<u8>,
        during: &str,
    ) -> Result<Vec<Vec<u8>>> {
        let root = ranks[0];
        let gone = |inner: &Inner| -> Vec<usize> {
            let left = |rank: &&usize| {
                let took_part = inner.left.get(&(channel, **rank));
                took_part.is_some_and(|&count| count < number)
            };
            ranks.iter().filter(left).copied().collect()
        };
        if self.rank != root {
            self.send(Kind::Part, 0, root, channel, own)?;
            let patience = self.deadline + TO_HEAR_WHY;
            let all = self.news.wait(patience, during, |inner| {
                let all = inner.all.get_mut(&channel).and_then(VecDeque::pop_front);
                all.ok_or_else(|| Missing { late: vec![root], gone: gone(inner) })
            })?;
            let what = || format!("rank {root} sent parts that make no sense");
            return split(&all, ranks.len()).ok_or_else(|| Error::Protocol { what: what() });
        }
        let mut parts = vec![own];
        for i in 1..ranks.len() {
            let part = self.news.wait(self.deadline, during, |inner| {
                let part = inner.parts.get_mut(&(channel, ranks[i])).and_then(VecDeque::pop_front);
                part.ok_or_else(|| {
                    let has_none = |rank: &&usize| {
                        inner.parts.get(&(channel, **rank)).is_none_or(VecDeque::is_empty)
                    };
                    let late = ranks[i..].iter().filter(has_none).copied().collect();
                    Missing { late, gone: gone(inner) }
                })
            })?;
            parts.push(part);
        }
        let all = join(&parts);
        for &rank in &ranks[1..] {
            self.send(Kind::All, 0, rank, channel, all.clone())?;
        }
        Ok(parts)
    }

    /// Sends a message, without waiting for somebody to ask for it.
    pub(super) fn message(
        &self,
        channel: Channel,
        to: usize,
        tag: u8,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.send(Kind::Message, tag, to, channel, bytes)
    }

    /// The next message in a group from one of `sources`.
    pub(super) fn receive(
        &self,
        channel: Channel,
        sources: &[usize],
        during: &str,
    ) -> Result<Message> {
        self.news.wait(self.deadline, during, |inner| {
            let mail = inner.mail.entry(channel).or_default();
            let found = mail.iter().position(|message| sources.contains(&message.from));
            found.and_then(|i| mail.remove(i)).ok_or_else(|| {
                let others = sources.iter().copied().filter(|&source| source != self.rank);
                let late: Vec<usize> = others.collect();
                let left = |rank: &usize| inner.left.contains_key(&(channel, *rank));
                // As long as one is here it may send.
                let gone = if late.iter().all(left) { late.clone() } else { Vec::new() };
                Missing { late, gone }
            })
        })
    }

    fn send(&self, kind: Kind, tag: u8, to: usize, channel: Channel, bytes: Vec<u8>) -> Result<()> {
        let frame = Frame { kind, tag, from: self.rank, to, channel, bytes };
        if to == self.rank {
            self.news.hear(frame);
            return Ok(());
        }
        self.lines.write(&frame).or_else(|error| {
            // The listening thread knows more, or will in a moment. A rank that has left in order
            // misses nothing: whoever waits for it hears of it where it waits.
            thread::sleep(NAP);
            let inner = self.news.inner();
            if let Some(known) = inner.failure(self.rank, "a message") {
                return Err(known);
            }
            let line = if self.rank == 0 { to } else { 0 };
            if inner.left.contains_key(&(WORLD, line)) {
                return Ok(());
            }
            Err(Error::io(format!("send to rank {to}"), error))
        })
    }

    /// Tells a group's `ranks` that this one, after so many gatherings, starts nothing more in it.
    pub(super) fn leave(&self, channel: Channel, ranks: &[usize], gatherings: u64) {
        if channel == WORLD {
            self.news.leaving.store(true, Ordering::SeqCst);
        }
        for &rank in ranks.iter().filter(|&&rank| rank != self.rank) {
            let bytes = gatherings.to_le_bytes().to_vec();
            // Who is gone needs no goodbye.
            drop(self.send(Kind::Goodbye, 0, rank, channel, bytes));
        }
    }

    /// Closes the connections. Rank 0, by whom the others talk, stays until they have left, unless
    /// something has failed.
    pub(super) fn finish(&self, failed: bool) {
        if self.rank == 0 && !failed {
            let here = |inner: &mut Inner| {
                let all_left = (1..self.world_size).all(|r| inner.left.contains_key(&(WORLD, r)));
                if all_left { Ok(()) } else { Err(Missing::default()) }
            };
            // Whoever needs more of us has got our goodbye, and its error.
            drop(self.news.wait(self.deadline, "leaving", here));
        }
        self.lines.close();
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        for reader in readers.drain(..) {
            drop(reader.join());
        }
    }
}

/// The sending side, shared with whoever reports a failure and whoever passes frames on.
struct Lines {
    rank: usize,
    /// By rank; the others have only rank 0's.
    sockets: Vec<Option<Mutex<TcpStream>>>,
}

impl Lines {
    fn write(&self, frame: &Frame) -> io::Result<()> {
        let line = if self.rank == 0 { frame.to } else { 0 };
        let Some(socket) = self.sockets.get(line).and_then(Option::as_ref) else { return Ok(()) };
        frame.write(&mut *socket.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends news of rank `of` to everybody else whom this rank has a line to; rank 0 passes it on.
    fn tell_all(&self, kind: Kind, of: usize, bytes: &[u8]) {
        for to in (0..self.sockets.len()).filter(|&to| to != of && self.sockets[to].is_some()) {
            let bytes = bytes.to_vec();
            // A rank that is gone does not need to know; that it is, its own reader sees.
            drop(self.write(&Frame { kind, tag: 0, from: of, to, channel: WORLD, bytes }));
        }
    }

    fn close(&self) {
        for socket in self.sockets.iter().flatten() {
            let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

/// What the connections have told so far.
struct News {
    rank: usize,
    /// Set before the connections are closed by this rank itself.
    leaving: AtomicBool,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// The first failure that was heard of; what follows is its echo.
    failure: Option<(usize, Option<String>)>,
    /// Who left a group, after how many gatherings.
    left: BTreeMap<(Channel, usize), u64>,
    /// In the order of their arrival.
    mail: BTreeMap<Channel, VecDeque<Message>>,
    /// What came for gatherings, on the groups' first ranks.
    parts: BTreeMap<(Channel, usize), VecDeque<Vec<u8>>>,
    /// What was gathered, elsewhere.
    all: BTreeMap<Channel, VecDeque<Vec<u8>>>,
}

/// Why somebody waits: who is late, and who will never come.
#[derive(Default)]
struct Missing {
    late: Vec<usize>,
    gone: Vec<usize>,
}

impl News {
    fn new(rank: usize) -> Self {
        let (inner, changed) = (Mutex::default(), Condvar::new());
        Self { rank, leaving: AtomicBool::new(false), inner, changed }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `take` gives something; until then it says what is missing.
    fn wait<T>(
        &self,
        patience: Duration,
        during: &str,
        mut take: impl FnMut(&mut Inner) -> std::result::Result<T, Missing>,
    ) -> Result<T> {
        let start = Instant::now();
        let mut inner = self.inner();
        loop {
            let missing = match take(&mut inner) {
                Ok(taken) => return Ok(taken),
                Err(missing) => missing,
            };
            if let Some(error) = inner.failure(self.rank, during) {
                return Err(error);
            }
            let (rank, during) = (self.rank, || during.to_owned());
            if let Some(&peer) = missing.gone.first() {
                return Err(Error::PeerLeft { peer, rank, during: during() });
            }
            let waited = start.elapsed();
            if waited > patience {
                let late: Vec<String> = missing.late.iter().map(usize::to_string).collect();
                let missing = late.join(", ");
                return Err(Error::Timeout { rank, during: during(), missing, waited });
            }
            let woken = self.changed.wait_timeout(inner, NAP);
            inner = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in a frame that is for this rank.
    fn hear(&self, frame: Frame) {
        let Frame { kind, tag, from, channel, bytes, .. } = frame;
        let mut inner = self.inner();
        match kind {
            Kind::Message => {
                inner.mail.entry(channel).or_default().push_back(Message { from, tag, bytes });
            }
            Kind::Part => inner.parts.entry((channel, from)).or_default().push_back(bytes),
            Kind::All => inner.all.entry(channel).or_default().push_back(bytes),
            Kind::Goodbye => {
                let count = bytes.try_into().map_or(0, u64::from_le_bytes);
                inner.left.insert((channel, from), count);
            }
            Kind::Died => {
                inner.failure.get_or_insert((from, None));
            }
            Kind::Failed => {
                let message = String::from_utf8_lossy(&bytes).into_owned();
                inner.failure.get_or_insert((from, Some(message)));
            }
        }
        drop(inner);
        self.changed.notify_all();
    }
}

impl Inner {
    fn failure(&self, rank: usize, during: &str) -> Option<Error> {
        let (peer, message) = self.failure.clone()?;
        Some(match message {
            Some(message) => Error::PeerFailed { peer, message },
            None => Error::PeerDied { peer, rank, during: during.to_owned() },
        })
    }
}

/// Listens to one connection until it ends; on rank 0, passes on what is for others.
fn listen(peer: usize, socket: &TcpStream, lines: &Lines, news: &News) {
    let (rank, world_size) = (lines.rank, lines.sockets.len());
    while let Some(frame) = Frame::read(socket) {
        let Frame { kind, from, to, .. } = frame;
        if from >= world_size || to >= world_size || (rank == 0 && from != peer) {
            break;
        }
        match kind {
            Kind::Failed | Kind::Died if rank == 0 => {
                lines.tell_all(kind, from, &frame.bytes);
                news.hear(frame);
            }
            // What cannot be handed over is for a rank that is gone.
            _ if rank == 0 && to != 0 => drop(lines.write(&frame)),
            _ => news.hear(frame),
        }
    }
    let left = news.inner().left.contains_key(&(WORLD, peer));
    if left || news.leaving.load(Ordering::SeqCst) {
        return;
    }
    let bytes = Vec::new();
    news.hear(Frame { kind: Kind::Died, tag: 0, from: peer, to: rank, channel: WORLD, bytes });
    if rank == 0 {
        lines.tell_all(Kind::Died, peer, &[]);
    }
}

/// Tells of failures and knows of them, from any thread.
struct Handle {
    lines: Arc<Lines>,
    news: Arc<News>,
}

impl Abort for Handle {
    fn abort(&self, message: &str) {
        let bytes = message.as_bytes();
        let bytes = &bytes[..bytes.len().min(LONGEST_MESSAGE)];
        self.lines.tell_all(Kind::Failed, self.lines.rank, bytes);
    }

    fn fail(&self, error: &Error) {
        self.abort(&error.to_string());
    }

    fn failure(&self) -> Option<Error> {
        self.news.inner().failure(self.news.rank, "an operation")
    }
}

/// All parts in one, each after its length.
fn join(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::with_capacity(parts.iter().map(|part| part.len() + 8).sum());
    for part in parts {
        all.extend((part.len() as u64).to_le_bytes());
        all.extend(part);
    }
    all
}

/// The parts again; `None` where these are not `count` parts.
fn split(mut all: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    for _ in 0..count {
        let (len, rest) = all.split_first_chunk::<8>()?;
        let (part, rest) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        parts.push(part.to_vec());
        all = rest;
    }
    all.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_their_joining_and_nonsense_is_refused() {
        let parts = vec![vec![1, 2, 3], Vec::new(), vec![4]];
        let all = join(&parts);
        assert_eq!(split(&all, 3), Some(parts));
        assert_eq!(split(&all, 2), None);
        assert_eq!(split(&all, 4), None);
        assert_eq!(split(&all[..all.len() - 1], 3), None);
        assert_eq!(split(&[255; 16], 1), None);
    }

    #[test]
    fn frames_survive_the_wire_and_nonsense_ends_it() {
        let frame = Frame {
            kind: Kind::Part,
            tag: 3,
            from: 2,
            to: 70_000,
            channel: u64::MAX,
            bytes: vec![7; 100],
        };
        let mut wire = Vec::new();
        frame.write(&mut wire).expect("a vector takes everything");
        let read = Frame::read(&wire[..]).expect("a whole frame");
        let place = (read.kind, read.tag, read.from, read.to, read.channel);
        assert_eq!((place, read.bytes), ((Kind::Part, 3, 2, 70_000, u64::MAX), frame.bytes));
        assert!(Frame::read(&wire[..wire.len() - 1]).is_none(), "a stream that broke off");
        wire[0] = 200;
        assert!(Frame::read(&wire[..]).is_none(), "no such kind");
    }
}
