//! A socket between every two ranks: point-to-point messages, and news of who lives.
//!
//! A thread listens to all of them. All groups share the sockets: a message says which it belongs to.
//! A peer says goodbye to every group that it leaves, and a last one when it ends in order; one that
//! fails says why; one that is killed says nothing, and the end of its stream tells. Ranks here are
//! those of the world.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::LocalConfig;
use super::rendezvous;
use super::segment::Segment;
use crate::comm::ElementType;
use crate::comm::collective::Header;
use crate::comm::transport::Abort;
use crate::{Error, Result};

/// A receiver looks at the news this often.
const NAP: Duration = Duration::from_millis(20);

/// The longest text that a failing rank may send.
const LONGEST_MESSAGE: u64 = 64 * 1024;

/// Frames on the wire: kind, element type, group, length in bytes, then as many bytes.
const HEAD: usize = 18;
const DATA: u8 = 0;
const FAILED: u8 = 1;
/// Nothing more comes in this group.
const LEFT: u8 = 2;
/// Nothing more comes at all.
const GOODBYE: u8 = 3;

/// In a frame that belongs to no group.
const NO_GROUP: u64 = 0;

/// This rank's sockets.
pub(super) struct Mesh {
    rank: usize,
    writers: Arc<Writers>,
    watcher: Arc<Watcher>,
    /// The listening thread, until it is joined.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The sending side, shared with whoever reports a failure.
struct Writers(Vec<Option<Mutex<UnixStream>>>);

/// What the sockets have told so far.
pub(super) struct Watcher {
    rank: usize,
    /// Set before the sockets are closed by this rank itself.
    leaving: AtomicBool,
    /// Whether there is a failure among the news.
    failed: AtomicBool,
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Default)]
struct News {
    /// The first failure that was heard of; what follows is its echo.
    failure: Option<Failure>,
    /// Peers that have ended in order.
    gone: BTreeSet<usize>,
    /// Groups, and peers that have left them.
    left: BTreeSet<(u64, usize)>,
    /// By group, in the order of arrival.
    mailboxes: BTreeMap<u64, VecDeque<Message>>,
}

/// What somebody has sent to this rank.
pub(super) struct Message {
    pub(super) from: usize,
    element: u8,
    pub(super) bytes: Vec<u8>,
}

impl Message {
    pub(super) fn element(&self) -> Result<ElementType> {
        let (from, code) = (self.from, self.element);
        ElementType::from_code(code)
            .ok_or_else(|| Error::Protocol { what: format!("rank {from} sent element {code}") })
    }
}

#[derive(Clone)]
struct Failure {
    peer: usize,
    /// `None` where the peer died without a word.
    message: Option<String>,
}

impl Failure {
    fn error(self, rank: usize, during: impl FnOnce() -> String) -> Error {
        let Self { peer, message } = self;
        match message {
            Some(message) => Error::PeerFailed { peer, message },
            None => Error::PeerDied { peer, rank, during: during() },
        }
    }
}

impl Mesh {
    /// Meets all ranks; rank 0 makes the segment and hands it to the others. From here on a thread
    /// listens.
    pub(super) fn connect(
        config: &LocalConfig,
        make: impl FnOnce() -> Result<Segment>,
    ) -> Result<(Self, Segment)> {
        let rank = config.rank;
        let readers = rendezvous::meet(config)?;
        let segment = match readers.first().and_then(Option::as_ref) {
            Some(root) => {
                Segment::received(rendezvous::receive_file(root, config)?, config.world_size)?
            }
            None => {
                let segment = make()?;
                for socket in readers.iter().flatten() {
                    rendezvous::send_file(socket, segment.fd())?;
                }
                segment
            }
        };
        let writer = |socket: &Option<UnixStream>| match socket {
            Some(socket) => socket.try_clone().map(|socket| Some(Mutex::new(socket))),
            None => Ok(None),
        };
        let writers: std::io::Result<Vec<_>> = readers.iter().map(writer).collect();
        let writers = writers.map_err(|error| Error::io("share a connection", error))?;
        let watcher = Arc::new(Watcher {
            rank,
            leaving: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            news: Mutex::default(),
            changed: Condvar::new(),
        });
        let listener = Arc::clone(&watcher);
        let thread = thread::Builder::new()
            .name("candelabrum-watch".to_owned())
            .spawn(move || listener.listen(readers))
            .map_err(|error| Error::io("start the listening thread", error))?;
        let (writers, thread) = (Arc::new(Writers(writers)), Mutex::new(Some(thread)));
        Ok((Self { rank, writers, watcher, thread }, segment))
    }

    pub(super) fn watcher(&self) -> Arc<Watcher> {
        Arc::clone(&self.watcher)
    }

    pub(super) fn abort_handle(&self) -> Arc<dyn Abort> {
        let (writers, watcher) = (Arc::clone(&self.writers), Arc::clone(&self.watcher));
        Arc::new(Handle { writers, watcher })
    }

    /// Sends `bytes` to rank `to` in `group`.
    pub(super) fn send(&self, group: u64, to: usize, header: Header, bytes: &[u8]) -> Result<()> {
        let element = header.element.code();
        if to == self.rank {
            self.watcher.deliver(group, Message { from: to, element, bytes: bytes.to_vec() });
            return Ok(());
        }
        self.writers.write(to, DATA, element, group, bytes).map_err(|error| {
            let news = self.watcher.trouble(group, to, || header.to_string());
            news.unwrap_or_else(|| Error::io(format!("send to rank {to}"), error))
        })
    }

    /// Tells `ranks` that this rank has left `group`, and forgets what came and nobody received.
    pub(super) fn leave(&self, group: u64, ranks: &[usize]) {
        for &peer in ranks.iter().filter(|&&peer| peer != self.rank) {
            // A peer that is gone does not need to know.
            drop(self.writers.write(peer, LEFT, 0, group, &[]));
        }
        self.watcher.news().mailboxes.remove(&group);
    }

    /// Says goodbye and closes the sockets.
    pub(super) fn finish(&self) {
        self.watcher.leaving.store(true, Ordering::SeqCst);
        for (peer, writer) in self.writers.0.iter().enumerate() {
            let Some(writer) = writer else { continue };
            // A peer that is gone needs no goodbye.
            drop(self.writers.write(peer, GOODBYE, 0, NO_GROUP, &[]));
            let socket = writer.lock().unwrap_or_else(PoisonError::into_inner);
            drop(socket.shutdown(Shutdown::Both));
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

impl Writers {
    fn write(
        &self,
        to: usize,
        kind: u8,
        element: u8,
        group: u64,
        bytes: &[u8],
    ) -> std::io::Result<()> {
        let Some(writer) = &self.0[to] else { return Ok(()) };
        let mut socket = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut head = [0; HEAD];
        head[0] = kind;
        head[1] = element;
        head[2..10].copy_from_slice(&group.to_le_bytes());
        head[10..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        socket.write_all(&head)?;
        socket.write_all(bytes)
    }
}

/// Tells of failures and knows of them, from any thread.
struct Handle {
    writers: Arc<Writers>,
    watcher: Arc<Watcher>,
}

impl Abort for Handle {
    fn abort(&self, message: &str) {
        let bytes = &message.as_bytes()[..message.len().min(LONGEST_MESSAGE as usize)];
        for peer in 0..self.writers.0.len() {
            // A peer that is gone does not need to know.
            drop(self.writers.write(peer, FAILED, 0, NO_GROUP, bytes));
        }
    }

    fn failure(&self) -> Option<Error> {
        let failure = self.watcher.news().failure.clone();
        failure.map(|failure| failure.error(self.watcher.rank, || "an operation".to_owned()))
    }

    fn fail(&self, error: &Error) {
        self.abort(&error.to_string());
    }
}

impl Watcher {
    /// Why waiting for `peer` in `group` makes no sense, if so: somebody failed, or it has left.
    pub(super) fn trouble(
        &self,
        group: u64,
        peer: usize,
        during: impl FnOnce() -> String,
    ) -> Option<Error> {
        let news = self.news();
        if let Some(failure) = news.failure.clone() {
            return Some(failure.error(self.rank, during));
        }
        let left = news.gone.contains(&peer) || news.left.contains(&(group, peer));
        left.then(|| Error::PeerLeft { peer, rank: self.rank, during: during() })
    }

    /// The next message of one of `from` in `group`.
    pub(super) fn take_message(
        &self,
        group: u64,
        from: &[usize],
        limit: Duration,
        during: impl Fn() -> String,
    ) -> Result<Message> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.news().take(group, from) {
                return Ok(message);
            }
            // Of several senders one that can still send is enough.
            let troubles = from.iter().map(|&peer| self.trouble(group, peer, &during));
            let others = from.iter().any(|&peer| peer != self.rank);
            let all: Option<Vec<Error>> = troubles
                .zip(from)
                .filter(|(_, peer)| **peer != self.rank)
                .map(|(e, _)| e)
                .collect();
            if let Some(error) = all.and_then(|mut errors| errors.pop()) {
                // What it sent before it left has arrived before the news of that.
                return self.news().take(group, from).ok_or(error);
            }
            if !others {
                let what = "receiving from oneself what was never sent".to_owned();
                return Err(Error::Unsupported { what });
            }
            let waited = start.elapsed();
            if waited > limit {
                let missing: Vec<String> = from.iter().map(usize::to_string).collect();
                let (rank, missing) = (self.rank, missing.join(", "));
                return Err(Error::Timeout { rank, during: during(), missing, waited });
            }
            let news = self.news();
            if news.position(group, from).is_none() {
                drop(self.changed.wait_timeout(news, NAP));
            }
        }
    }

    fn deliver(&self, group: u64, message: Message) {
        self.news().mailboxes.entry(group).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Reads frames from all peers until each has ended its stream.
    fn listen(&self, mut readers: Vec<Option<UnixStream>>) {
        while readers.iter().any(Option::is_some) {
            let peers: Vec<usize> =
                (0..readers.len()).filter(|&peer| readers[peer].is_some()).collect();
            let mut polled: Vec<PollFd<'_>> =
                readers.iter().flatten().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            if poll(&mut polled, None).is_err() {
                continue; // interrupted by a signal
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(polled);
            for (peer, _) in peers.into_iter().zip(ready).filter(|&(_, ready)| ready) {
                let open = readers[peer].as_mut().is_some_and(|socket| self.hear(peer, socket));
                if !open {
                    readers[peer] = None;
                }
            }
        }
    }

    /// Takes one frame of `peer`; false at the end of its stream.
    fn hear(&self, peer: usize, socket: &mut UnixStream) -> bool {
        match read_frame(socket) {
            Some(Frame { kind: DATA, element, group, bytes }) => {
                self.deliver(group, Message { from: peer, element, bytes });
            }
            Some(Frame { kind: FAILED, bytes, .. }) => {
                let message = String::from_utf8_lossy(&bytes).into_owned();
                self.fail(Failure { peer, message: Some(message) });
            }
            Some(Frame { kind: LEFT, group, .. }) => {
                self.news().left.insert((group, peer));
                self.changed.notify_all();
            }
            Some(Frame { kind: GOODBYE, .. }) => {
                self.news().gone.insert(peer);
                self.changed.notify_all();
            }
            Some(_) | None => {
                let gone = self.news().gone.contains(&peer);
                if !gone && !self.leaving.load(Ordering::SeqCst) {
                    self.fail(Failure { peer, message: None });
                }
                return false;
            }
        }
        true
    }

    /// Whether a rank of the world has failed or died.
    pub(super) fn has_failure(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn fail(&self, failure: Failure) {
        self.news().failure.get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    fn position(&self, group: u64, from: &[usize]) -> Option<usize> {
        let mailbox = self.mailboxes.get(&group)?;
        mailbox.iter().position(|message| from.contains(&message.from))
    }

    fn take(&mut self, group: u64, from: &[usize]) -> Option<Message> {
        let first = self.position(group, from)?;
        self.mailboxes.get_mut(&group)?.remove(first)
    }
}

struct Frame {
    kind: u8,
    element: u8,
    group: u64,
    bytes: Vec<u8>,
}

/// The next frame; `None` at the end of the stream or of sense.
fn read_frame(socket: &mut UnixStream) -> Option<Frame> {
    let mut head = [0; HEAD];
    socket.read_exact(&mut head).ok()?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let (kind, element, group, len) = (head[0], head[1], word(2), word(10));
    if kind != DATA && len > LONGEST_MESSAGE {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    socket.read_exact(&mut bytes).ok()?;
    Some(Frame { kind, element, group, bytes })
}
