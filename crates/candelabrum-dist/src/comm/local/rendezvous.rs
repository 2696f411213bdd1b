//! The meeting of the ranks of one host, over abstract Unix sockets.
//!
//! Every rank listens under a name of its own and calls rank 0, which answers when all ranks have
//! called. At that point all ranks listen, so every rank calls the lower ranks without waiting, and
//! accepts the calls of the higher ranks. The names are kept by the kernel, not in the file system,
//! and vanish with their process. Every user of the host can take or call a name, so both ends of a
//! connection ask the kernel for the user of the other end.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use sha2::{Digest, Sha256};

use crate::comm::member::JobMember;
use crate::comm::rendezvous::{Callers, Rendezvous, retry};
use crate::{Error, Result};

/// The time for which a rank waits for its name. A rank of a job that has just ended may still hold
/// the name.
const TO_LET_GO: Duration = Duration::from_secs(2);

/// The most callers that the kernel keeps until this rank accepts them.
const BACKLOG: i32 = 4096;

/// Connects this rank with every other rank. Returns the connections by rank, and `None` in this
/// rank's own place.
pub(super) fn meet(config: &JobMember) -> Result<Vec<Option<UnixStream>>> {
    let &JobMember { rank, world_size, .. } = config;
    let meeting = Rendezvous::begin(*config);
    let listener = listen(config)?;
    let mut callers = Callers::new(&listener, is_of_this_user);
    let sockets = if rank == 0 {
        meeting.hear_all(&mut callers)?
    } else {
        let mut sockets = meeting.unconnected();
        for (peer, socket) in sockets.iter_mut().enumerate().take(rank) {
            *socket = Some(call(config, &meeting, peer)?);
        }
        meeting.gather(&mut callers, rank + 1..world_size, &mut sockets)?;
        sockets
    };
    Ok(sockets.into_iter().map(|socket| socket.map(UnixStream::from)).collect())
}

/// Calls `peer` and sends it this rank's hello. Rank 0 answers when all ranks have called it.
fn call(config: &JobMember, meeting: &Rendezvous, peer: usize) -> Result<OwnedFd> {
    let socket = retry(meeting.left(), || {
        let socket = connect(config, peer)?;
        if socket.is_none() {
            meeting.say_what_is_awaited(|| format!("rank {peer}"));
        }
        Ok(socket)
    })?;
    let socket = socket.ok_or_else(|| meeting.missed(peer))?;
    let lost = |error| Error::io(format!("greet rank {peer}"), error);
    meeting.introduce(&socket).map_err(lost)?;
    if peer != 0 {
        return Ok(socket);
    }
    match meeting.await_answer(&socket) {
        Ok(None) => Ok(socket),
        Ok(Some(message)) => Err(Error::PeerFailed { peer, message }),
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(meeting.missed(peer)),
        Err(_) => Err(died(config.rank)),
    }
}

/// The error after the end of rank 0. It is an echo: the launcher, or rank 0 itself, reports the
/// reason.
fn died(rank: usize) -> Error {
    Error::PeerDied { peer: 0, rank, during: "start-up".to_owned() }
}

/// The name of a rank's socket. All users can read it in `/proc/net/unix`. So it does not contain
/// the job id, and the names of other ranks cannot be derived from it.
pub(super) fn address(config: &JobMember, rank: usize) -> Result<SocketAddrUnix> {
    let mut digest = Sha256::new();
    digest.update(config.job);
    digest.update((rank as u64).to_le_bytes());
    let user = rustix::process::geteuid().as_raw();
    let name = format!("candelabrum/{user}/{:x}", digest.finalize());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|error| Error::io("name a socket", error))
}

/// A non-blocking socket.
pub(super) fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| Error::io("make a socket", error))
}

pub(super) fn listen(config: &JobMember) -> Result<OwnedFd> {
    let (address, listener) = (address(config, config.rank)?, socket()?);
    let bind = || match rustix::net::bind(&listener, &address) {
        Ok(()) => Ok(Some(())),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(Error::io("bind a socket", error)),
    };
    let JobMember { rank, .. } = config;
    retry(TO_LET_GO, bind)?.ok_or_else(|| Error::Launch {
        what: format!(
            "another process is rank {rank} of this job already, or has taken the name of its socket"
        ),
    })?;
    rustix::net::listen(&listener, BACKLOG)
        .map_err(|error| Error::io("listen on a socket", error))?;
    Ok(listener)
}

/// Connects to `peer`. Returns `None` if `peer` does not listen yet.
fn connect(config: &JobMember, peer: usize) -> Result<Option<OwnedFd>> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &address(config, peer)?) {
        Ok(()) if is_of_this_user(&socket) => {}
        Ok(()) => {
            let what =
                format!("another user of this host has taken the name of rank {peer}'s socket");
            return Err(Error::Launch { what });
        }
        Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(Error::io(format!("call rank {peer}"), error)),
    }
    rustix::io::ioctl_fionbio(&socket, false)
        .map_err(|error| Error::io("prepare a connection", error))?;
    Ok(Some(socket))
}

/// Whether the other end of a connection belongs to the user of this process.
///
/// The process number of the other end is 0 if it is in another PID namespace, as in another container. rustix has no
/// number 0 for processes, so nix asks.
fn is_of_this_user(socket: &OwnedFd) -> bool {
    let user = rustix::process::geteuid().as_raw();
    getsockopt(socket, PeerCredentials).is_ok_and(|peer| peer.uid() == user)
}

/// Sends `file` to the rank behind `socket`.
pub(super) fn send_file(socket: &UnixStream, file: &OwnedFd) -> Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let payload = [IoSlice::new(b"f")];
    rustix::net::sendmsg(socket, &payload, &mut control, SendFlags::NOSIGNAL)
        .map_err(|error| Error::io("hand over shared memory", error))?;
    Ok(())
}

/// Receives the file that rank 0 sends over `socket`.
pub(super) fn receive_file(socket: &UnixStream, config: &JobMember) -> Result<OwnedFd> {
    let &JobMember { rank, world_size, deadline, .. } = config;
    let timeout = |limit| {
        socket.set_read_timeout(limit).map_err(|error| Error::io("prepare a connection", error))
    };
    timeout(Some(deadline))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut payload = [0];
    let mut room = [IoSliceMut::new(&mut payload)];
    rustix::net::recvmsg(socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(
        |error| match error {
            Errno::AGAIN => Error::Rendezvous { rank, world_size, peer: 0, waited: deadline },
            other => Error::io("receive shared memory from rank 0", other),
        },
    )?;
    timeout(None)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| died(rank))
}
