//! A connection between rank 0 and every other rank: gathered bytes, messages, and news of who
//! lives. Rank 0 passes on what is for others.
//!
//! A thread per connection listens. A rank that ends in order says goodbye first; one that fails
//! says why; one that is killed says nothing, and the end of its stream tells.

use std::collections::VecDeque;
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

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A message from one rank to another.
    Message = 0,
    /// A rank's part of a gathering, to rank 0.
    Part = 1,
    /// All ranks' parts, from rank 0.
    All = 2,
    /// The sender has failed, and says why.
    Failed = 3,
    /// The sender has died, says rank 0.
    Died = 4,
    /// The sender has finished.
    Goodbye = 5,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Message, Self::Part, Self::All, Self::Failed, Self::Died, Self::Goodbye];
}

/// What goes over a connection: kind, tag, who sent it, for whom, how many bytes, the bytes.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    tag: u8,
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

impl Frame {
    const HEAD: usize = 18;

    fn write(&self, mut socket: impl Write) -> io::Result<()> {
        let mut head = [0; Self::HEAD];
        head[0] = self.kind as u8;
        head[1] = self.tag;
        head[2..6].copy_from_slice(&(self.from as u32).to_le_bytes());
        head[6..10].copy_from_slice(&(self.to as u32).to_le_bytes());
        head[10..].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        socket.write_all(&head)?;
        socket.write_all(&self.bytes)
    }

    /// `None` at the end of the stream or of sense.
    fn read(mut socket: impl Read) -> Option<Self> {
        let mut head = [0; Self::HEAD];
        socket.read_exact(&mut head).ok()?;
        let kind = *Kind::ALL.get(usize::from(head[0]))?;
        let rank = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?) as usize);
        let len = u64::from_le_bytes(head[10..].try_into().ok()?);
        // It grows with what comes: a wrong length does not take all memory.
        let mut bytes = Vec::new();
        socket.take(len).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 == len).then_some(())?;
        Some(Self { kind, tag: head[1], from: rank(2)?, to: rank(6)?, bytes })
    }
}

/// This rank's place in the star.
pub(super) struct Star {
    rank: usize,
    world_size: usize,
    deadline: Duration,
    lines: Arc<Lines>,
    news: Arc<News>,
    readers: Vec<JoinHandle<()>>,
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
        let lines = Arc::new(Lines { rank, sockets: writers, to_all: Mutex::new(()) });
        let news = Arc::new(News::new(rank, world_size));
        let mut star = Self { rank, world_size, deadline, lines, news, readers: Vec::new() };
        for (peer, socket) in sockets.into_iter().enumerate() {
            let Some(socket) = socket else { continue };
            let (lines, news) = (Arc::clone(&star.lines), Arc::clone(&star.news));
            let reader = thread::Builder::new()
                .name(format!("candelabrum-tcp-{peer}"))
                .spawn(move || listen(peer, &socket, &lines, &news))
                .map_err(|error| Error::io("start a listening thread", error))?;
            star.readers.push(reader);
        }
        Ok(star)
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn handle(&self) -> Arc<dyn Abort> {
        Arc::new(Handle { lines: Arc::clone(&self.lines), news: Arc::clone(&self.news) })
    }

    /// All ranks' bytes, in rank order.
    pub(super) fn gather(&mut self, own: Vec<u8>, during: &str) -> Result<Vec<Vec<u8>>> {
        if self.rank != 0 {
            self.write(Kind::Part, 0, 0, own)?;
            let patience = self.deadline + TO_HEAR_WHY;
            let all = self.news.wait(patience, during, |inner| match inner.all.pop_front() {
                Some(all) => Ok(all),
                None => Err((0..inner.left.len()).collect()),
            })?;
            let parts = split(&all, self.world_size);
            let what = "rank 0 sent parts that make no sense".to_owned();
            return parts.ok_or(Error::Protocol { what });
        }
        let mut parts = vec![own];
        for peer in 1..self.world_size {
            let part = self.news.wait(self.deadline, during, |inner| {
                let missing = |inner: &Inner| -> Vec<usize> {
                    (peer..inner.parts.len()).filter(|&p| inner.parts[p].is_empty()).collect()
                };
                inner.parts[peer].pop_front().ok_or_else(|| missing(inner))
            })?;
            parts.push(part);
        }
        self.lines.tell_all(Kind::All, 0, &join(&parts));
        Ok(parts)
    }

    /// Sends bytes to a rank, without waiting for it to ask for them.
    pub(super) fn send(&mut self, to: usize, tag: u8, bytes: Vec<u8>) -> Result<()> {
        if to == self.rank {
            self.news.deliver(to, tag, bytes);
            return Ok(());
        }
        self.write(Kind::Message, tag, to, bytes)
    }

    /// The next message of `from`, or of anybody: who sent it, its tag, its bytes.
    pub(super) fn receive(
        &mut self,
        from: Option<usize>,
        during: &str,
    ) -> Result<(usize, u8, Vec<u8>)> {
        let rank = self.rank;
        self.news.wait(self.deadline, during, |inner| {
            let found = inner.mail.iter().position(|(source, ..)| from.is_none_or(|f| f == *source));
            let message = found.and_then(|i| inner.mail.remove(i));
            // Of anybody's message nobody in particular is late: only a failure ends the wait.
            message.ok_or_else(|| from.filter(|&from| from != rank).into_iter().collect())
        })
    }

    fn write(&self, kind: Kind, tag: u8, to: usize, bytes: Vec<u8>) -> Result<()> {
        let frame = Frame { kind, tag, from: self.rank, to, bytes };
        self.lines.write(&frame).map_err(|error| {
            // The listening thread knows more, or will in a moment.
            thread::sleep(NAP);
            let known = self.news.trouble("a message");
            known.unwrap_or_else(|| Error::io(format!("send to rank {to}"), error))
        })
    }

    /// Says goodbye. Rank 0, by whom the others talk, stays until they have gone, unless
    /// something has failed.
    pub(super) fn finish(&mut self, failed: bool) {
        self.news.leaving.store(true, Ordering::SeqCst);
        self.lines.tell_all(Kind::Goodbye, 0, &[]);
        if self.rank == 0 && !failed {
            let gone = |inner: &mut Inner| {
                let here = (1..inner.left.len()).find(|&peer| !inner.left[peer]);
                here.map_or(Ok(()), |_| Err(Vec::new()))
            };
            // Whoever needs more of us has got our goodbye, and its error.
            drop(self.news.wait(self.deadline, "leaving", gone));
        }
        self.lines.close();
        for reader in self.readers.drain(..) {
            drop(reader.join());
        }
    }
}

/// The sending side, shared with whoever reports a failure and whoever passes frames on.
struct Lines {
    rank: usize,
    /// By rank; the others have only rank 0's.
    sockets: Vec<Option<Mutex<TcpStream>>>,
    /// Held while all are told something, so that all hear things in the same order.
    to_all: Mutex<()>,
}

impl Lines {
    fn write(&self, frame: &Frame) -> io::Result<()> {
        let line = if self.rank == 0 { frame.to } else { 0 };
        let Some(socket) = self.sockets.get(line).and_then(Option::as_ref) else { return Ok(()) };
        frame.write(&mut *socket.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends to everybody whom this rank has a line to; rank 0 passes it on where it must.
    fn tell_all(&self, kind: Kind, tag: u8, bytes: &[u8]) {
        self.pass_on(kind, tag, self.rank, bytes);
    }

    /// Sends in the name of `from` to everybody else whom this rank has a line to.
    fn pass_on(&self, kind: Kind, tag: u8, from: usize, bytes: &[u8]) {
        let _in_order = self.to_all.lock().unwrap_or_else(PoisonError::into_inner);
        for to in (0..self.sockets.len()).filter(|&to| to != from && self.sockets[to].is_some()) {
            // A rank that is gone does not need to know; that it is, its own reader sees.
            drop(self.write(&Frame { kind, tag, from, to, bytes: bytes.to_vec() }));
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
    left: Vec<bool>,
    /// Messages in the order of their arrival: sender, tag, bytes.
    mail: VecDeque<(usize, u8, Vec<u8>)>,
    /// On rank 0, by rank: what came for gatherings.
    parts: Vec<VecDeque<Vec<u8>>>,
    /// Elsewhere: what was gathered.
    all: VecDeque<Vec<u8>>,
}

impl News {
    fn new(rank: usize, world_size: usize) -> Self {
        let parts = (0..world_size).map(|_| VecDeque::new()).collect();
        let inner = Inner { left: vec![false; world_size], parts, ..Inner::default() };
        Self { rank, leaving: AtomicBool::new(false), inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `take` gives something; until then it says which ranks are missing.
    fn wait<T>(
        &self,
        patience: Duration,
        during: &str,
        mut take: impl FnMut(&mut Inner) -> std::result::Result<T, Vec<usize>>,
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
            if let Some(&peer) = missing.iter().find(|&&peer| inner.left[peer]) {
                return Err(Error::PeerLeft { peer, rank: self.rank, during: during.to_owned() });
            }
            let waited = start.elapsed();
            if waited > patience {
                let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
                let (rank, during, missing) = (self.rank, during.to_owned(), missing.join(", "));
                return Err(Error::Timeout { rank, during, missing, waited });
            }
            let woken = self.changed.wait_timeout(inner, NAP);
            inner = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn trouble(&self, during: &str) -> Option<Error> {
        self.inner().failure(self.rank, during)
    }

    fn deliver(&self, from: usize, tag: u8, bytes: Vec<u8>) {
        self.inner().mail.push_back((from, tag, bytes));
        self.changed.notify_all();
    }

    /// Takes in a frame that is for this rank.
    fn hear(&self, frame: Frame) {
        let Frame { kind, tag, from, bytes, .. } = frame;
        let mut inner = self.inner();
        match kind {
            Kind::Message => inner.mail.push_back((from, tag, bytes)),
            Kind::Part => inner.parts[from].push_back(bytes),
            Kind::All => inner.all.push_back(bytes),
            Kind::Goodbye => inner.left[from] = true,
            Kind::Died => drop(inner.failure.get_or_insert((from, None))),
            Kind::Failed => {
                let message = String::from_utf8_lossy(&bytes).into_owned();
                inner.failure.get_or_insert((from, Some(message)));
            }
        }
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
    let world_size = lines.sockets.len();
    while let Some(frame) = Frame::read(socket) {
        let Frame { kind, tag, from, to, .. } = frame;
        if from >= world_size || to >= world_size || (lines.rank == 0 && from != peer) {
            break;
        }
        match kind {
            Kind::Message if to != lines.rank => drop(lines.write(&frame)),
            Kind::Goodbye | Kind::Failed if lines.rank == 0 => {
                lines.pass_on(kind, tag, from, &frame.bytes);
                news.hear(frame);
            }
            _ => news.hear(frame),
        }
    }
    if news.inner().left[peer] || news.leaving.load(Ordering::SeqCst) {
        return;
    }
    let died = Frame { kind: Kind::Died, tag: 0, from: peer, to: lines.rank, bytes: Vec::new() };
    news.hear(died);
    if lines.rank == 0 {
        lines.pass_on(Kind::Died, 0, peer, &[]);
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
        self.lines.tell_all(Kind::Failed, 0, &bytes[..bytes.len().min(LONGEST_MESSAGE)]);
    }

    fn tell(&self, message: &str) {
        self.abort(message);
    }

    fn trouble(&self) -> Option<Error> {
        self.news.trouble("an operation")
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
        let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
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
        let frame = Frame { kind: Kind::Part, tag: 3, from: 2, to: 70_000, bytes: vec![7; 100] };
        let mut wire = Vec::new();
        frame.write(&mut wire).expect("a vector takes everything");
        let read = Frame::read(&wire[..]).expect("a whole frame");
        let place = (read.kind, read.tag, read.from, read.to);
        assert_eq!((place, read.bytes), ((Kind::Part, 3, 2, 70_000), frame.bytes));
        assert!(Frame::read(&wire[..wire.len() - 1]).is_none(), "a stream that broke off");
        wire[0] = 200;
        assert!(Frame::read(&wire[..]).is_none(), "no such kind");
    }
}
