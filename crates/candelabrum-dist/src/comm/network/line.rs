//! One end of a socket. Nothing in this file blocks: bytes that the socket does not accept at once
//! stay with the line, and an incomplete frame stays with the reader.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use super::frame::{FrameHeader, FrameKind, Outgoing};

/// The longest text that a failing rank may send.
pub(super) const LONGEST_TEXT: usize = 64 * 1024;

/// The number of bytes that are read at a time.
const PIECE: usize = 256 * 1024;

/// The number of pieces that are read from one line before the next line has its turn.
const PIECES: usize = 16;

/// A socket to another rank.
pub(super) struct PeerSocket {
    pub(super) socket: OwnedFd,
    outbox: Mutex<FrameQueue>,
}

/// Frames to be written, in order.
#[derive(Default)]
struct FrameQueue {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that have been written.
    written: usize,
    state: LineState,
}

#[derive(Default, PartialEq, Eq)]
enum LineState {
    #[default]
    Open,
    /// A write to the socket has failed. The frames stay until the listening thread has read the
    /// reason.
    Broken,
    Closed,
}

impl PeerSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, outbox: Mutex::default() }
    }

    /// Writes the frame after earlier frames, as far as the socket accepts bytes now. Peers of a
    /// failure overtakes all frames that have not been begun, and these are dropped. Returns the
    /// frame if the line is closed.
    pub(super) fn push(&self, frame: Outgoing) -> Option<Outgoing> {
        let mut outbox = self.outbox.lock();
        if outbox.state == LineState::Closed {
            return Some(frame);
        }
        if matches!(frame.head.kind, FrameKind::Failed | FrameKind::Died) {
            let begun = usize::from(outbox.written > 0);
            outbox.frames.truncate(begun);
        }
        outbox.frames.push_back(frame);
        if outbox.frames.len() == 1 {
            outbox.flush(&self.socket);
        }
        None
    }

    /// Writes as many bytes as the socket accepts now.
    pub(super) fn flush(&self) {
        self.outbox.lock().flush(&self.socket);
    }

    /// Whether frames wait for the socket.
    pub(super) fn is_congested(&self) -> bool {
        let outbox = self.outbox.lock();
        outbox.state == LineState::Open && !outbox.frames.is_empty()
    }

    /// Writes nothing any more. The other end reads what has been written, and then the end of the stream.
    ///
    /// A socket that is closed while bytes for it are under way answers them by a reset, and a reset destroys what the
    /// other end has not received: it would miss the last frames. So a rank that leaves ends the line, reads until the
    /// other end has done so, too, and closes it then.
    pub(super) fn end(&self) -> VecDeque<Outgoing> {
        self.finish(Shutdown::Write)
    }

    /// Closes the line. Returns the frames that have not been written.
    pub(super) fn close(&self) -> VecDeque<Outgoing> {
        self.finish(Shutdown::Both)
    }

    /// Whether nothing more will be written.
    #[cfg(test)]
    pub(super) fn has_ended(&self) -> bool {
        self.outbox.lock().state == LineState::Closed
    }

    fn finish(&self, how: Shutdown) -> VecDeque<Outgoing> {
        // The other end may have closed the socket already.
        let _ = shutdown(&self.socket, how);
        let mut outbox = self.outbox.lock();
        outbox.state = LineState::Closed;
        std::mem::take(&mut outbox.frames)
    }
}

impl FrameQueue {
    fn flush(&mut self, socket: &OwnedFd) {
        while let Some(frame) = self.frames.front().filter(|_| self.state == LineState::Open) {
            match write(socket, frame, self.written) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.state = LineState::Broken,
            }
            if self.written == FrameHeader::BYTES + frame.body.bytes().len()
                && let Some(frame) = self.frames.pop_front()
            {
                self.written = 0;
                frame.tell(Ok(()));
            }
        }
    }
}

/// Writes some bytes of a frame, of which `written` have already been written.
fn write(socket: &OwnedFd, frame: &Outgoing, written: usize) -> Result<usize, Errno> {
    let (head, body) = (frame.head.encode(), frame.body.bytes());
    let rest = [
        IoSlice::new(&head[written.min(head.len())..]),
        IoSlice::new(&body[written.saturating_sub(head.len())..]),
    ];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &rest, &mut SendAncillaryBuffer::default(), flags)
}

/// The part of a frame that has arrived.
#[derive(Default)]
pub(super) struct FrameReader {
    head: [u8; FrameHeader::BYTES],
    body: Vec<u8>,
    /// The length of the whole body, once the head has arrived.
    len: usize,
    /// The number of bytes of head and body that have arrived.
    got: usize,
}

/// The result of a read.
pub(super) enum LineInput {
    Frame(FrameHeader, Vec<u8>),
    /// No more bytes have arrived, or another line has its turn.
    Later,
    /// The end of the stream, or bytes that are not a frame.
    End,
}

impl FrameReader {
    pub(super) fn read(&mut self, socket: &OwnedFd) -> LineInput {
        for _ in 0..PIECES {
            match recv(socket, self.room(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return LineInput::End,
                Ok((count, _)) => self.got += count,
                Err(Errno::AGAIN) => return LineInput::Later,
                Err(Errno::INTR) => continue,
                Err(_) => return LineInput::End,
            }
            // A complete frame is returned at once, because no further bytes may follow that would
            // wake the reader.
            if self.got >= FrameHeader::BYTES {
                let Some((head, len)) = FrameHeader::decode(self.head).and_then(sensible) else {
                    return LineInput::End;
                };
                if self.got == FrameHeader::BYTES + len {
                    self.got = 0;
                    return LineInput::Frame(head, std::mem::take(&mut self.body));
                }
                self.len = len;
            }
        }
        LineInput::Later
    }

    /// The memory for the next bytes.
    fn room(&mut self) -> &mut [u8] {
        let Some(got) = self.got.checked_sub(FrameHeader::BYTES) else {
            return &mut self.head[self.got..];
        };
        if got == self.body.len() {
            // The body grows as bytes arrive, so a wrong length cannot exhaust the memory.
            self.body.resize(self.len.min(got + PIECE), 0);
        }
        &mut self.body[got..]
    }
}

/// The head with the length of its body, if this length is permitted.
fn sensible(head: FrameHeader) -> Option<(FrameHeader, usize)> {
    let len = usize::try_from(head.len).ok()?;
    let has_numbers = matches!(head.kind, FrameKind::Message | FrameKind::Part);
    (has_numbers || len <= LONGEST_TEXT).then_some((head, len))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// Each packet is one piece of a stream.
    #[test]
    fn a_frame_is_given_by_the_look_that_completes_it() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (near, far) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        for len in 0..3 * PIECES {
            let group = len as u64;
            let head = FrameHeader {
                kind: FrameKind::Part,
                element: 0,
                from: 1,
                to: 0,
                group,
                len: group,
            };
            rustix::io::write(&near, &head.encode()).expect("room for a head");
            for _ in 0..len {
                rustix::io::write(&near, &[7]).expect("room for a byte");
            }
            let mut reader = FrameReader::default();
            let looks = (len + 1).div_ceil(PIECES);
            for look in 1..=looks {
                match reader.read(&far) {
                    LineInput::Frame(found, body) => {
                        assert_eq!((look, found, body.len()), (looks, head, len));
                    }
                    LineInput::Later => {
                        assert!(look < looks, "{len} bytes: nothing after {look} looks");
                    }
                    LineInput::End => panic!("{len} bytes: an end"),
                }
            }
        }
    }
}
