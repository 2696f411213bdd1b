//! The callers at a listening socket. Their hellos are read at the same time, so a silent or slow
//! caller does not delay another one.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};

use super::hello::HelloMessage;

/// The pause between two attempts, for instance to reach a rank that does not listen yet.
pub(super) const RETRY: Duration = Duration::from_millis(5);

/// A caller whose whole hello has not arrived after this time is turned away.
pub(super) const TO_SPEAK: Duration = Duration::from_secs(2);

/// The most callers whose hellos are awaited. One more caller replaces the oldest of them.
const MOST_WAITING: usize = 128;

/// The most connections that are accepted before the callers are read again.
const AT_ONCE: usize = 64;

/// All callers at a socket whose hello is incomplete.
pub(in crate::comm) struct Callers<'a> {
    listener: &'a OwnedFd,
    /// Decides by the other end of a connection whether it is admitted.
    admit: fn(&OwnedFd) -> bool,
    waiting: VecDeque<Caller>,
    /// The last reason why somebody was not heard.
    trouble: Option<String>,
}

/// A connection on which a hello is arriving.
struct Caller {
    socket: OwnedFd,
    heard: Vec<u8>,
    since: Instant,
}

impl<'a> Callers<'a> {
    /// `listener` must be a non-blocking socket.
    pub(in crate::comm) fn new(listener: &'a OwnedFd, admit: fn(&OwnedFd) -> bool) -> Self {
        Self { listener, admit, waiting: VecDeque::new(), trouble: None }
    }

    /// In words, what may be the reason that a rank is missing.
    pub(super) fn trouble(&self) -> String {
        self.trouble.as_ref().map(|trouble| format!(" ({trouble})")).unwrap_or_default()
    }

    /// The next caller whose hello is complete, a rank of any job; `None` when `limit` has passed.
    pub(super) fn next(&mut self, limit: Duration) -> Option<(HelloMessage, OwnedFd)> {
        let start = Instant::now();
        loop {
            // Reading comes before accepting, because the oldest callers make room and their hellos
            // may be complete.
            if let Some(heard) = self.hear() {
                return Some(heard);
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return None;
            }
            if !self.accept() {
                self.wait(left);
            }
        }
    }

    /// Waits for a connection, for bytes of a caller, or until the oldest caller has taken too long.
    fn wait(&self, limit: Duration) {
        let oldest = self.waiting.front().map_or(limit, Caller::left);
        let listener = std::iter::once(self.listener);
        let sockets = listener.chain(self.waiting.iter().map(|caller| &caller.socket));
        let mut polled: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        wait(&mut polled, limit.min(oldest));
    }

    /// Accepts at most [`AT_ONCE`] connections. Returns false if there was none.
    fn accept(&mut self) -> bool {
        for taken in 0..AT_ONCE {
            match accept_with(self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) if (self.admit)(&socket) => {
                    if self.waiting.len() == MOST_WAITING {
                        self.waiting.pop_front();
                    }
                    let (heard, since) = (Vec::with_capacity(HelloMessage::BYTES), Instant::now());
                    self.waiting.push_back(Caller { socket, heard, since });
                }
                Ok(_) => {
                    self.trouble = Some("a process of another user was turned away".to_owned());
                }
                Err(Errno::AGAIN) => return taken > 0,
                Err(error) => {
                    // The caller has hung up, or this process has too many open files. Both pass.
                    self.trouble = Some(format!("a connection could not be taken: {error}"));
                    thread::sleep(RETRY);
                    return true;
                }
            }
        }
        true
    }

    /// Reads the bytes that have arrived. Returns the first complete hello.
    fn hear(&mut self) -> Option<(HelloMessage, OwnedFd)> {
        let mut at = 0;
        while let Some(caller) = self.waiting.get_mut(at) {
            match caller.hear() {
                HelloState::Part => at += 1,
                HelloState::Hello(hello) => return Some((hello, self.waiting.remove(at)?.socket)),
                HelloState::Nonsense => {
                    let what = "a caller that is no rank of this project was turned away";
                    self.trouble = Some(what.to_owned());
                    self.waiting.remove(at);
                }
            }
        }
        None
    }
}

/// The state of a caller's hello.
enum HelloState {
    /// The hello is incomplete.
    Part,
    Hello(HelloMessage),
    /// The bytes are not a hello, the stream has ended, or the caller took too long.
    Nonsense,
}

impl Caller {
    fn left(&self) -> Duration {
        TO_SPEAK.saturating_sub(self.since.elapsed())
    }

    fn hear(&mut self) -> HelloState {
        let mut room = [0; HelloMessage::BYTES];
        let room = &mut room[self.heard.len()..];
        match recv(&self.socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return HelloState::Nonsense,
            Ok((_, count)) => self.heard.extend(&room[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return HelloState::Nonsense,
        }
        match HelloMessage::decode(&self.heard) {
            Some(hello) => HelloState::Hello(hello),
            None if self.heard.len() == HelloMessage::BYTES || self.left().is_zero() => {
                HelloState::Nonsense
            }
            None => HelloState::Part,
        }
    }
}

/// Waits until one of the sockets is ready, a signal arrives, or `limit` passes.
pub(super) fn wait(sockets: &mut [PollFd<'_>], limit: Duration) {
    // If the system cannot represent the limit, there is none.
    let limit = Timespec::try_from(limit).ok();
    let _ = poll(sockets, limit.as_ref());
}
