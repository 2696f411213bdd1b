//! The sockets of a rank, and the data that arrive on them: messages, parts of collectives over
//! TCP, and news of ranks that leave, fail or die.
//!
//! Either each rank has a line to every other rank (a mesh), or every rank has one line to rank 0
//! (a star), which forwards frames. One thread listens to all lines. All groups share the lines,
//! and a frame contains the number of its group. Frames from one rank to another arrive in the
//! order in which they were sent.
//!
//! A rank that ends in order sends a goodbye first. A rank that fails sends the reason. A rank that
//! dies sends nothing, so its death is detected by the end of its stream. Every rank passes on the
//! first failure of which it hears.
//!
//! **Invariant** No thread blocks in a socket. A thread that waits for an answer checks the peers
//! and its deadline meanwhile. A partly written frame stays with its line until the line is closed,
//! so the bytes of another frame never take its place.
//!
//! **Invariant** A receiver stores at most [`peers::WINDOW`] bytes of a sender's messages that it
//! has not asked for, and one message more. Waiting messages do not delay frames of other kinds.

mod frame;
mod line;
mod listen;
mod messages;
mod parcel;
mod peers;

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use self::frame::{FrameHeader, Outgoing};
use self::line::{LONGEST_TEXT, PeerSocket};
use self::peers::{PeerStates, SendLimit, WINDOW};
use super::Payload;
use super::failures::{AbortSignal, FirstFailure};
use crate::{Error, Result};

pub(super) use self::frame::{FrameBody, FrameKind};
pub(super) use self::messages::NetworkWork;
pub(super) use self::parcel::{ParcelNote, Parcels, WhenRead};
pub(super) use self::peers::WhenLeft;

/// The interval at which a waiting thread checks the peers.
const NAP: Duration = Duration::from_millis(20);

/// The time in which a failed rank may still send its last frames.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The group number of a frame that belongs to no group.
const NO_GROUP: u64 = 0;

/// This rank's end of all lines, shared by its groups. Ranks in this type are numbers in the world.
pub(super) struct NetworkLines {
    rank: usize,
    deadline: Duration,
    /// The memory of long messages, if the ranks share memory.
    parcels: Option<Arc<dyn Parcels>>,
    /// This value, for the parcels that are open.
    me: Weak<Self>,
    /// Whether this rank forwards frames for other ranks.
    relays: bool,
    /// This rank's own failure.
    own_failure: FirstFailure,
    /// By peer. A peer without a line is reached through rank 0.
    lines: Vec<Option<PeerSocket>>,
    /// By receiver: the messages for which it has no room yet.
    outlets: Mutex<Vec<Outlet>>,
    peers: Mutex<PeerStates>,
    /// Whether a failure of a peer is known.
    failed: AtomicBool,
    /// Set before this rank itself closes the lines.
    leaving: AtomicBool,
    /// Wakes the listening thread.
    bell: OwnedFd,
    /// The listening thread, until it is joined.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The messages to one rank.
struct Outlet {
    /// The number of bytes sent so far.
    sent: u64,
    /// A message may be sent while `sent` is less than this.
    limit: u64,
    held: VecDeque<Outgoing>,
}

impl NetworkLines {
    /// Starts to listen to these sockets, which are indexed by peer. With `parcels` long messages lie
    /// in shared memory. With `relays` this rank forwards frames for other ranks.
    pub(super) fn start(
        rank: usize,
        sockets: Vec<Option<OwnedFd>>,
        parcels: Option<Arc<dyn Parcels>>,
        relays: bool,
        deadline: Duration,
        own_failure: &FirstFailure,
    ) -> Result<Arc<Self>> {
        let world_size = sockets.len();
        let outlet = |_| Outlet { sent: 0, limit: WINDOW, held: VecDeque::new() };
        let lines: Vec<_> = sockets.into_iter().map(|socket| socket.map(PeerSocket::new)).collect();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("make an eventfd", error))?;
        let network = Arc::new_cyclic(|me| Self {
            rank,
            deadline,
            parcels,
            me: me.clone(),
            relays,
            own_failure: own_failure.clone(),
            lines,
            outlets: Mutex::new((0..world_size).map(outlet).collect()),
            peers: Mutex::new(PeerStates::new(rank, world_size)),
            failed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            bell,
            thread: Mutex::new(None),
        });
        let listener = Arc::clone(&network);
        let thread = thread::Builder::new()
            .name("candelabrum-listen".to_owned())
            .spawn(move || listener.listen())
            .map_err(|error| Error::io("start the listening thread", error))?;
        *network.thread.lock() = Some(thread);
        Ok(network)
    }

    /// Sends bytes to another rank. `written` gets the result when they have been written, or
    /// cannot be.
    pub(super) fn send(
        &self,
        kind: FrameKind,
        (group, to): (u64, usize),
        element: u8,
        body: FrameBody,
        written: Option<oneshot::Sender<Result<Payload>>>,
    ) {
        let len = body.bytes().len() as u64;
        let head = FrameHeader { kind, element, from: self.rank, to, group, len };
        let frame = Outgoing { head, body, written };
        if !matches!(
            kind,
            FrameKind::Message | FrameKind::Parcel | FrameKind::Left | FrameKind::Goodbye
        ) {
            return self.push(frame);
        }
        // These kinds stay in order, so the lock is held until the frame has been given to its
        // line.
        let mut outlets = self.outlets.lock();
        let outlet = &mut outlets[to];
        outlet.held.push_back(frame);
        self.release(outlet);
    }

    /// Passes on the messages for which the receiver has room.
    fn release(&self, outlet: &mut Outlet) {
        let has_room = |outlet: &Outlet| outlet.sent < outlet.limit;
        while let Some(frame) = outlet.held.front() {
            if is_message(frame) && !has_room(outlet) {
                break;
            }
            outlet.sent += frame.message_len();
            outlet.held.pop_front().into_iter().for_each(|frame| self.push(frame));
        }
    }

    /// Drops the messages for a rank that has left their group.
    fn drop_messages(&self, group: u64, to: usize) {
        let mut outlets = self.outlets.lock();
        let outlet = &mut outlets[to];
        let is_late = |frame: &Outgoing| is_message(frame) && frame.head.group == group;
        let held = std::mem::take(&mut outlet.held);
        let (late, held) = held.into_iter().partition(is_late);
        outlet.held = held;
        self.release(outlet);
        late.into_iter().for_each(|frame| self.cannot_send(frame));
    }

    fn push(&self, frame: Outgoing) {
        let line = self.lines[frame.head.to].as_ref().or(self.lines[0].as_ref());
        let Some(line) = line else { return };
        if let Some(frame) = line.push(frame) {
            self.cannot_send(frame);
        } else if line.is_congested() {
            self.ring();
        }
    }

    fn cannot_send(&self, frame: Outgoing) {
        if let (Some(parcels), Some(note)) = (&self.parcels, frame.note()) {
            parcels.take_back(note.start);
        }
        // A parcel may be returned by a thread that has the lock of the peers.
        if frame.written.is_none() {
            return;
        }
        let FrameHeader { to, group, .. } = frame.head;
        let known = self.trouble(group, &[to], || format!("send(to {to})"));
        frame.tell(known);
    }

    /// Wakes the listening thread.
    fn ring(&self) {
        // A write fails only if the counter is full. Then the bell is still ringing.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn tell_limits(&self, limits: Vec<SendLimit>) {
        for (to, limit) in limits {
            self.send(FrameKind::Window, (limit, to), 0, Vec::new().into(), None);
        }
    }

    /// The error that makes a wait for any of `peers` in `group` useless, if there is one: this
    /// rank or another one has failed, or all peers have left.
    pub(super) fn trouble(
        &self,
        group: u64,
        peers: &[usize],
        during: impl FnOnce() -> String,
    ) -> Result<()> {
        self.own_failure.get().map_or(Ok(()), Err)?;
        self.peers.lock().trouble(group, peers, during)
    }

    /// Whether a rank of the world has failed or died.
    pub(super) fn has_failure(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Handles the failure of a rank. Without a message the rank died. The first failure is passed
    /// on before this rank's program can learn of it. Otherwise a third rank could hear that this
    /// rank has left before it hears why.
    fn handle_failure(&self, peer: usize, message: Option<String>) {
        if self.has_failure() {
            return;
        }
        let kind = if message.is_some() { FrameKind::Failed } else { FrameKind::Died };
        self.tell_all(kind, peer, message.as_deref().unwrap_or_default());
        self.peers.lock().failure = Some(peers::PeerFailure { peer, message });
        self.failed.store(true, Ordering::Release);
    }

    /// Reports a failure of rank `of` to all ranks to which this rank has a line.
    fn tell_all(&self, kind: FrameKind, of: usize, text: &str) {
        let text = &text.as_bytes()[..text.len().min(LONGEST_TEXT)];
        let (len, group) = (text.len() as u64, NO_GROUP);
        for to in (0..self.lines.len()).filter(|&to| to != of && self.lines[to].is_some()) {
            let head = FrameHeader { kind, element: 0, from: of, to, group, len };
            self.push(Outgoing { head, body: text.to_vec().into(), written: None });
        }
    }

    /// Reports to the other `ranks` of a group that this rank has left it, and drops the group's
    /// messages that were not asked for. `when_left` is called when all of them have left it too.
    pub(super) fn leave(&self, group: u64, ranks: &[usize], when_left: WhenLeft) {
        for &peer in ranks.iter().filter(|&&rank| rank != self.rank) {
            self.send(FrameKind::Left, (group, peer), 0, Vec::new().into(), None);
        }
        let (limits, all_left) = self.peers.lock().leave(group, ranks.len() - 1, when_left);
        self.tell_limits(limits);
        all_left.into_iter().for_each(|when_left| when_left());
    }

    /// Sends a goodbye, and closes the lines when the other ends have read it. A rank that forwards frames first waits
    /// until all other ranks have gone, unless a rank has failed.
    pub(super) fn finish(&self) {
        let others = self.outlets.lock().len() - 1;
        let all_gone = || self.peers.lock().gone.len() == others;
        if self.relays {
            self.wait_until(self.deadline, || self.has_failed() || all_gone());
        }
        self.leaving.store(true, Ordering::SeqCst);
        for (peer, _) in self.lines.iter().enumerate().filter(|(_, line)| line.is_some()) {
            self.send(FrameKind::Goodbye, (NO_GROUP, peer), 0, Vec::new().into(), None);
        }
        let limit = if self.has_failed() { LAST_WORDS } else { self.deadline };
        self.wait_until(limit, || self.all_written());
        self.lines.iter().flatten().for_each(|line| drop(line.end()));
        // The thread ends with the last line, when the other ranks have read everything, too.
        let has_ended = || self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished);
        let failed = Cell::new(None::<Instant>);
        let is_over = || {
            failed.set(failed.get().or_else(|| self.has_failed().then(Instant::now)));
            failed.get().is_some_and(|failed| failed.elapsed() >= LAST_WORDS)
        };
        self.wait_until(self.deadline, || has_ended() || is_over());
        self.lines.iter().flatten().for_each(|line| drop(line.close()));
        let thread = self.thread.lock().take();
        drop(thread.map(JoinHandle::join));
    }

    fn has_failed(&self) -> bool {
        self.has_failure() || self.own_failure.get().is_some()
    }

    fn all_written(&self) -> bool {
        !self.lines.iter().flatten().any(PeerSocket::is_congested)
            && self.outlets.lock().iter().all(|outlet| outlet.held.is_empty())
    }

    /// Polls slowly, because this is the end of a rank's part in the job.
    fn wait_until(&self, limit: Duration, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() && start.elapsed() < limit {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Whether a frame is a message from one rank to another.
fn is_message(frame: &Outgoing) -> bool {
    matches!(frame.head.kind, FrameKind::Message | FrameKind::Parcel)
}

impl AbortSignal for NetworkLines {
    fn abort(&self, message: &str) {
        self.tell_all(FrameKind::Failed, self.rank, message);
        self.wait_until(LAST_WORDS, || !self.lines.iter().flatten().any(PeerSocket::is_congested));
    }

    fn fail(&self, error: &Error) {
        self.abort(&error.to_string());
    }

    fn failure(&self) -> Option<Error> {
        self.peers.lock().trouble(NO_GROUP, &[], || "an operation".to_owned()).err()
    }
}
