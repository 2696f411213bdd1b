//! The listening thread. It reads the frames of all lines, and writes the bytes that the sockets
//! did not accept at once.

use rustix::event::{PollFd, PollFlags, poll};

use std::sync::atomic::Ordering;

use super::NetworkLines;
use super::frame::{FrameHeader, FrameKind, Outgoing};
use super::line::{FrameReader, LineInput, PeerSocket};
use super::parcel::ParcelNote;
use crate::Error;

impl NetworkLines {
    /// Listens until all lines have ended.
    pub(super) fn listen(&self) {
        let lines = || self.lines.iter().enumerate().filter_map(|(at, l)| Some((at, l.as_ref()?)));
        let mut open: Vec<(usize, &PeerSocket, FrameReader)> =
            lines().map(|(peer, line)| (peer, line, FrameReader::default())).collect();
        while !open.is_empty() {
            let mut polled = vec![PollFd::new(&self.bell, PollFlags::IN)];
            polled.extend(open.iter().map(|(_, line, _)| {
                let out = if line.is_congested() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(&line.socket, PollFlags::IN | out)
            }));
            if poll(&mut polled, None).is_err() {
                continue; // interrupted by a signal
            }
            let mut events = polled.iter().map(PollFd::revents).collect::<Vec<_>>().into_iter();
            drop(polled);
            if events.next().is_some_and(|event| !event.is_empty()) {
                // The loop below handles everything for which the bell was rung.
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            open.retain_mut(|(peer, line, reader)| {
                let event = events.next().unwrap_or(PollFlags::empty());
                if event.intersects(PollFlags::OUT) {
                    line.flush();
                }
                !event.intersects(!PollFlags::OUT) || self.hear(*peer, line, reader)
            });
        }
    }

    /// Reads the next frame from the line of `peer`. Returns false at the end of the line.
    fn hear(&self, peer: usize, line: &PeerSocket, reader: &mut FrameReader) -> bool {
        match reader.read(&line.socket) {
            LineInput::Later => return true,
            LineInput::Frame(head, body) if self.is_in_order(peer, head) => {
                self.take(head, body);
                return true;
            }
            LineInput::Frame(..) | LineInput::End => {}
        }
        let gone = self.peers.lock().gone.contains(&peer);
        if !gone && !self.leaving.load(Ordering::SeqCst) {
            self.handle_failure(peer, None);
        }
        line.close().into_iter().for_each(|frame| self.cannot_send(frame));
        false
    }

    /// Whether this frame may arrive on the line of `peer`. Rank 0 may forward frames of other
    /// ranks, and every rank may pass on another rank's failure.
    fn is_in_order(&self, peer: usize, head: FrameHeader) -> bool {
        let world_size = self.lines.len();
        let may_pass_on = peer == 0 || matches!(head.kind, FrameKind::Failed | FrameKind::Died);
        (head.from == peer || (may_pass_on && head.from < world_size))
            && (head.to == self.rank || (self.relays && head.to < world_size))
    }

    /// Delivers a message whose bytes lie in shared memory.
    fn take_parcel(&self, head: FrameHeader, note: &[u8]) {
        let FrameHeader { from, .. } = head;
        let foreign = "it sent a long message in memory that rank 0's segment does not have";
        let Some((note, parcels)) = ParcelNote::decode(note).zip(self.parcels.as_ref()) else {
            return self.handle_failure(from, Some(foreign.to_owned()));
        };
        let (network, ParcelNote { start, len, .. }) = (self.me.clone(), note);
        let when_read = move || {
            if let Some(network) = network.upgrade() {
                network.send(FrameKind::Returned, (start, from), 0, Vec::new().into(), None);
            }
        };
        let memory = match parcels.open(note, Box::new(when_read)) {
            Ok(memory) => memory,
            Err(Error::Protocol { .. }) => {
                return self.handle_failure(from, Some(foreign.to_owned()));
            }
            // The sender has done nothing wrong: this rank has no memory for the mapping.
            Err(error) => return self.handle_failure(self.rank, Some(error.to_string())),
        };
        let head = FrameHeader { kind: FrameKind::Message, len, ..head };
        let limit = self.peers.lock().deliver(head, memory.into());
        self.tell_limits(limit.into_iter().collect());
    }

    fn take(&self, head: FrameHeader, body: Vec<u8>) {
        let FrameHeader { kind, from, group, .. } = head;
        if head.to != self.rank {
            return self.push(Outgoing { head, body: body.into(), written: None });
        }
        match kind {
            FrameKind::Message | FrameKind::Part => {
                let limit = self.peers.lock().deliver(head, body.into());
                self.tell_limits(limit.into_iter().collect());
            }
            FrameKind::Parcel => self.take_parcel(head, &body),
            FrameKind::Returned => {
                if let Some(parcels) = &self.parcels {
                    parcels.take_back(group);
                }
            }
            FrameKind::Window => {
                let mut outlets = self.outlets.lock();
                outlets[from].limit = outlets[from].limit.max(group);
                self.release(&mut outlets[from]);
            }
            FrameKind::Left => {
                let all_left = self.peers.lock().hear_left(group, from);
                self.drop_messages(group, from);
                all_left.into_iter().for_each(|when_left| when_left());
            }
            FrameKind::Goodbye => {
                self.peers.lock().gone.insert(from);
            }
            FrameKind::Failed => {
                self.handle_failure(from, Some(String::from_utf8_lossy(&body).into_owned()));
            }
            FrameKind::Died => self.handle_failure(from, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, connect, socket_with, socketpair, sockopt,
    };

    use super::*;
    use crate::comm::failures::FirstFailure;
    use crate::comm::network::NO_GROUP;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair of sockets")
    }

    fn within<R>(limit: Duration, mut look: impl FnMut() -> Option<R>) -> R {
        let start = Instant::now();
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(start.elapsed() < limit, "nothing within {limit:?}");
            std::thread::yield_now();
        }
    }

    /// Rank 0 is played by the test. It reads late, and forwards a frame meanwhile. A socket that were closed by then would
    /// answer the frame by a reset, and the rest of what rank 1 has sent would be lost.
    #[test]
    fn the_last_frames_of_a_rank_reach_a_slow_reader_that_still_writes() {
        let deadline = Duration::from_secs(20);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let kind = (AddressFamily::INET, SocketType::STREAM);
        let far = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None).expect("a socket");
        // A small window, so that most of the message stays with the sender.
        sockopt::set_socket_recv_buffer_size(&far, 4096).expect("a buffer");
        connect(&far, &address).expect("it listens");
        let (near, _) = listener.accept().expect("a caller");
        sockopt::set_socket_send_buffer_size(&near, 1 << 20).expect("a buffer");
        let sockets = vec![Some(near.into()), None];
        let network =
            NetworkLines::start(1, sockets, None, false, deadline, &FirstFailure::default());
        let network: Arc<NetworkLines> = network.expect("a thread to listen");

        let message = vec![7; 200_000];
        network.send(FrameKind::Message, (9, 0), 0, message.clone().into(), None);
        let leaving = Arc::clone(&network);
        let leaving = std::thread::spawn(move || leaving.finish());
        let line = || network.lines[0].as_ref().expect("a line");
        within(deadline, || line().has_ended().then_some(()));
        let head =
            FrameHeader { kind: FrameKind::Left, element: 0, from: 2, to: 1, group: 9, len: 0 };
        rustix::io::write(&far, &head.encode()).expect("the other end is open");

        let mut reader = FrameReader::default();
        let mut next = || {
            within(deadline, || match reader.read(&far) {
                LineInput::Frame(head, body) => Some((head.kind, body)),
                LineInput::Later => None,
                LineInput::End => panic!("the rest is lost"),
            })
        };
        assert_eq!(next(), (FrameKind::Message, message));
        assert_eq!(next(), (FrameKind::Goodbye, Vec::new()));
        assert_eq!(rustix::io::read(&far, &mut [0; 8]), Ok(0), "the line ends in order");
        drop(far);
        leaving.join().expect("no panic");
    }

    /// Ranks 1 and 2 are played by the test. Rank 1 fails, and tells rank 0 alone.
    #[test]
    fn a_rank_passes_a_failure_on_before_it_leaves() {
        let ((near_1, far_1), (near_2, far_2)) = (pair(), pair());
        let sockets = vec![None, Some(near_1), Some(near_2)];
        let deadline = Duration::from_secs(20);
        let network =
            NetworkLines::start(0, sockets, None, false, deadline, &FirstFailure::default());
        let network: Arc<NetworkLines> = network.expect("a thread to listen");
        let (group, why) = (9, b"out of data");
        let (kind, len) = (FrameKind::Failed, why.len() as u64);
        let head = FrameHeader { kind, element: 0, from: 1, to: 0, group: NO_GROUP, len };
        rustix::io::write(&far_1, &head.encode()).expect("room for a head");
        rustix::io::write(&far_1, why).expect("room for a text");
        within(deadline, || network.has_failure().then_some(()));
        network.leave(group, &[0, 2], Box::new(|| ()));
        let mut reader = FrameReader::default();
        let mut next = || {
            within(deadline, || match reader.read(&far_2) {
                LineInput::Frame(head, body) => Some((head.kind, head.from, body)),
                LineInput::Later => None,
                LineInput::End => panic!("rank 0 has closed the line"),
            })
        };
        assert_eq!(next(), (FrameKind::Failed, 1, why.to_vec()));
        assert_eq!(next(), (FrameKind::Left, 0, Vec::new()));
        network.finish();
    }
}
