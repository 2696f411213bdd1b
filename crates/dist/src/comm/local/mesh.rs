//! A socket between every two ranks: point-to-point messages, and news of who lives.
//!
//! A thread listens to all of them. A peer that ends in order says goodbye first; one that fails
//! says why; one that is killed says nothing, and the end of its stream tells.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::LocalConfig;
use super::memory::Memory;
use super::rendezvous;
use crate::comm::collective::Header;
use crate::comm::transport::Abort;
use crate::comm::{Buffer, ElementType};
use crate::{Error, Result};

/// A receiver looks at the news this often.
const NAP: Duration = Duration::from_millis(20);

/// The longest text that a failing rank may send.
const LONGEST_MESSAGE: u64 = 64 * 1024;

/// Frames on the wire: kind, element type, length in bytes, then as many bytes.
const HEAD: usize = 10;
const DATA: u8 = 0;
const FAILED: u8 = 1;
const GOODBYE: u8 = 2;

/// This rank's sockets.
pub(super) struct Mesh {
    rank: usize,
    world_size: usize,
    writers: Arc<Writers>,
    /// Taken by the listening thread.
    readers: Vec<Option<UnixStream>>,
    watcher: Arc<Watcher>,
    thread: Option<JoinHandle<()>>,
}

/// The sending side, shared with whoever reports a failure.
struct Writers(Vec<Option<Mutex<UnixStream>>>);

/// What the sockets have told so far.
pub(super) struct Watcher {
    rank: usize,
    /// Set before the sockets are closed by this rank itself.
    leaving: AtomicBool,
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Default)]
struct News {
    /// The first failure that was heard of; what follows is its echo.
    failure: Option<Failure>,
    peers: Vec<Peer>,
}

#[derive(Clone)]
struct Failure {
    peer: usize,
    /// `None` where the peer died without a word.
    message: Option<String>,
}

#[derive(Default)]
struct Peer {
    left: bool,
    mailbox: VecDeque<(u8, Vec<u8>)>,
}

/// How this rank came to the segment.
pub(super) enum HandedOver {
    /// It made it, being rank 0.
    Made(Memory),
    /// Rank 0 sent it.
    Received(std::os::fd::OwnedFd),
}

impl HandedOver {
    pub(super) fn into_memory(self, rank: usize, world_size: usize) -> Result<Memory> {
        Ok(match self {
            Self::Made(memory) => memory,
            Self::Received(file) => Memory::received(file, rank, world_size),
        })
    }
}

impl Mesh {
    /// Meets all ranks; rank 0 makes the segment and hands it to the others.
    pub(super) fn connect(
        config: &LocalConfig,
        make: impl FnOnce() -> Result<Memory>,
    ) -> Result<(Self, HandedOver)> {
        let (rank, world_size) = (config.rank, config.world_size);
        let readers = rendezvous::meet(config)?;
        let handed_over = match readers.first().and_then(Option::as_ref) {
            Some(root) => HandedOver::Received(rendezvous::receive_file(root, config.deadline)?),
            None => {
                let memory = make()?;
                for socket in readers.iter().flatten() {
                    rendezvous::send_file(socket, memory.file())?;
                }
                HandedOver::Made(memory)
            }
        };
        let writer = |socket: &Option<UnixStream>| match socket {
            Some(socket) => socket.try_clone().map(|socket| Some(Mutex::new(socket))),
            None => Ok(None),
        };
        let writers: std::io::Result<Vec<_>> = readers.iter().map(writer).collect();
        let writers = writers.map_err(|error| Error::io("share a connection", error))?;
        let peers = (0..world_size).map(|_| Peer::default()).collect();
        let watcher = Arc::new(Watcher {
            rank,
            leaving: AtomicBool::new(false),
            news: Mutex::new(News { failure: None, peers }),
            changed: Condvar::new(),
        });
        let writers = Arc::new(Writers(writers));
        Ok((Self { rank, world_size, writers, readers, watcher, thread: None }, handed_over))
    }

    /// Starts the listening thread.
    pub(super) fn watch(&mut self) -> Result<()> {
        let readers = std::mem::take(&mut self.readers);
        let watcher = Arc::clone(&self.watcher);
        let thread = thread::Builder::new()
            .name("candelabrum-watch".to_owned())
            .spawn(move || watcher.listen(readers))
            .map_err(|error| Error::io("start the listening thread", error))?;
        self.thread = Some(thread);
        Ok(())
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn watcher(&self) -> Arc<Watcher> {
        Arc::clone(&self.watcher)
    }

    pub(super) fn abort_handle(&self) -> Arc<dyn Abort> {
        Arc::clone(&self.writers) as _
    }

    /// Sends `bytes` to rank `to`.
    pub(super) fn send(&self, to: usize, element: ElementType, bytes: &[u8]) -> Result<()> {
        if to == self.rank {
            self.watcher.deliver(to, element.code(), bytes.to_vec());
            return Ok(());
        }
        self.writers.write(to, DATA, element.code(), bytes).map_err(|error| {
            let during = || format!("send(to {to})");
            let news = self.watcher.trouble(to, during);
            news.unwrap_or_else(|| Error::io(format!("send to rank {to}"), error))
        })
    }

    /// Waits for the next message of rank `from`, which must fit `buffer`.
    pub(super) fn recv(
        &self,
        from: usize,
        header: Header,
        mut buffer: Buffer,
        deadline: Instant,
    ) -> Result<Buffer> {
        let (code, bytes) = self.watcher.take_message(from, deadline, || header.to_string())?;
        let element = ElementType::from_code(code)
            .ok_or_else(|| Error::Protocol { what: format!("rank {from} sent element {code}") })?;
        if element != buffer.element_type() {
            let (expected, got) = (element, buffer.element_type());
            return Err(Error::ElementType { expected, got });
        }
        let expected = bytes.len() / element.size();
        if expected != buffer.len() {
            return Err(Error::Length { op: "recv", expected, got: buffer.len() });
        }
        buffer.bytes_mut().copy_from_slice(&bytes);
        Ok(buffer)
    }

    /// Says goodbye and closes the sockets.
    pub(super) fn finish(&mut self) {
        self.watcher.leaving.store(true, Ordering::SeqCst);
        for (peer, writer) in self.writers.0.iter().enumerate() {
            let Some(writer) = writer else { continue };
            // A peer that is gone needs no goodbye.
            drop(self.writers.write(peer, GOODBYE, 0, &[]));
            let socket = writer.lock().unwrap_or_else(PoisonError::into_inner);
            drop(socket.shutdown(Shutdown::Both));
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Writers {
    fn write(&self, to: usize, kind: u8, element: u8, bytes: &[u8]) -> std::io::Result<()> {
        let Some(writer) = &self.0[to] else { return Ok(()) };
        let mut socket = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut head = [0; HEAD];
        head[0] = kind;
        head[1] = element;
        head[2..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        socket.write_all(&head)?;
        socket.write_all(bytes)
    }
}

impl Abort for Writers {
    fn abort(&self, message: &str) {
        let bytes = &message.as_bytes()[..message.len().min(LONGEST_MESSAGE as usize)];
        for peer in 0..self.0.len() {
            // A peer that is gone does not need to know.
            drop(self.write(peer, FAILED, 0, bytes));
        }
    }

    fn tell(&self, message: &str) {
        self.abort(message);
    }
}

impl Watcher {
    /// Why waiting for `peer` makes no sense, if so: somebody failed, or `peer` has left.
    pub(super) fn trouble(&self, peer: usize, during: impl FnOnce() -> String) -> Option<Error> {
        let news = self.news();
        if let Some(failure) = news.failure.clone() {
            let (peer, rank) = (failure.peer, self.rank);
            return Some(match failure.message {
                Some(message) => Error::PeerFailed { peer, message },
                None => Error::PeerDied { peer, rank, during: during() },
            });
        }
        let left = news.peers[peer].left;
        left.then(|| Error::PeerLeft { peer, rank: self.rank, during: during() })
    }

    fn take_message(
        &self,
        from: usize,
        deadline: Instant,
        during: impl Fn() -> String,
    ) -> Result<(u8, Vec<u8>)> {
        let start = Instant::now();
        loop {
            if let Some(message) = self.news().peers[from].mailbox.pop_front() {
                return Ok(message);
            }
            if let Some(error) = self.trouble(from, &during) {
                return Err(error);
            }
            if Instant::now() > deadline {
                let (rank, missing, waited) = (self.rank, from.to_string(), start.elapsed());
                return Err(Error::Timeout { rank, during: during(), missing, waited });
            }
            let news = self.news();
            if news.peers[from].mailbox.is_empty() {
                drop(self.changed.wait_timeout(news, NAP));
            }
        }
    }

    fn deliver(&self, from: usize, element: u8, bytes: Vec<u8>) {
        self.news().peers[from].mailbox.push_back((element, bytes));
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
            Some((DATA, element, bytes)) => self.deliver(peer, element, bytes),
            Some((FAILED, _, bytes)) => {
                let message = String::from_utf8_lossy(&bytes).into_owned();
                self.fail(Failure { peer, message: Some(message) });
            }
            Some((GOODBYE, ..)) => self.news().peers[peer].left = true,
            Some(_) | None => {
                let in_order = self.news().peers[peer].left || self.leaving.load(Ordering::SeqCst);
                if !in_order {
                    self.fail(Failure { peer, message: None });
                }
                return false;
            }
        }
        true
    }

    fn fail(&self, failure: Failure) {
        self.news().failure.get_or_insert(failure);
        self.changed.notify_all();
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kind, element and payload of the next frame; `None` at the end of the stream or of sense.
fn read_frame(socket: &mut UnixStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; HEAD];
    socket.read_exact(&mut head).ok()?;
    let mut len = [0; 8];
    len.copy_from_slice(&head[2..]);
    let len = u64::from_le_bytes(len);
    if head[0] != DATA && len > LONGEST_MESSAGE {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    socket.read_exact(&mut bytes).ok()?;
    Some((head[0], head[1], bytes))
}
