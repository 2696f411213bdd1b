//! How the ranks of one host find each other: abstract Unix sockets named after the job.
//!
//! Every rank listens under its own name, calls every lower rank and is called by every higher one.
//! The names live in the kernel, not in the file system, and vanish with their process. Callers of
//! another user are turned away.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::LocalConfig;
use crate::{Error, Result};

/// First bytes of every connection; the digit changes when the protocol does.
const MAGIC: [u8; 8] = *b"candlbr2";

/// Between two attempts to reach a rank that is not there yet.
const RETRY: Duration = Duration::from_millis(5);

/// One socket to every other rank; `None` in this rank's own place.
pub(super) fn meet(config: &LocalConfig) -> Result<Vec<Option<UnixStream>>> {
    let &LocalConfig { rank, world_size, deadline, .. } = config;
    let start = Instant::now();
    let listener = listen(config, start)?;
    let mut sockets: Vec<Option<UnixStream>> = (0..world_size).map(|_| None).collect();
    for (peer, socket) in sockets.iter_mut().enumerate().take(rank) {
        *socket = Some(call(config, peer, start)?);
    }
    while let Some(peer) = (rank + 1..world_size).find(|&peer| sockets[peer].is_none()) {
        match listener.accept() {
            Ok((socket, _)) => {
                if let Some(caller) = greet(&socket, rank, world_size)? {
                    sockets[caller] = Some(socket);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(error) => return Err(Error::io("accept a connection", error)),
        }
        let waited = start.elapsed();
        if waited > deadline {
            return Err(Error::Rendezvous { rank, world_size, peer, waited });
        }
    }
    Ok(sockets)
}

fn address(config: &LocalConfig, rank: usize) -> Result<SocketAddr> {
    let user = rustix::process::getuid().as_raw();
    let name = format!("candelabrum/{user}/{}/{rank}", config.job);
    SocketAddr::from_abstract_name(name).map_err(|error| Error::io("name a socket", error))
}

fn listen(config: &LocalConfig, start: Instant) -> Result<UnixListener> {
    let address = address(config, config.rank)?;
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => {
                listener
                    .set_nonblocking(true)
                    .map_err(|error| Error::io("prepare a socket", error))?;
                return Ok(listener);
            }
            // A rank of the job that just ended may hold the name for a moment longer.
            Err(error)
                if error.kind() == ErrorKind::AddrInUse
                    && start.elapsed() < Duration::from_secs(2) =>
            {
                thread::sleep(RETRY);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let (rank, job) = (config.rank, &config.job);
                let what = format!("another process is rank {rank} of job `{job}` already");
                return Err(Error::Launch { what });
            }
            Err(error) => return Err(Error::io("listen on a socket", error)),
        }
    }
}

/// Calls `peer` until it answers.
fn call(config: &LocalConfig, peer: usize, start: Instant) -> Result<UnixStream> {
    let &LocalConfig { rank, world_size, deadline, .. } = config;
    let address = address(config, peer)?;
    loop {
        match UnixStream::connect_addr(&address) {
            Ok(mut socket) => {
                let mut hello = MAGIC.to_vec();
                hello.extend((rank as u32).to_le_bytes());
                hello.extend((world_size as u32).to_le_bytes());
                socket
                    .write_all(&hello)
                    .map_err(|error| Error::io(format!("greet rank {peer}"), error))?;
                return Ok(socket);
            }
            Err(_) if start.elapsed() < deadline => thread::sleep(RETRY),
            Err(_) => {
                let waited = start.elapsed();
                return Err(Error::Rendezvous { rank, world_size, peer, waited });
            }
        }
    }
}

/// The rank that calls, or `None` where the caller is a stranger.
fn greet(mut socket: &UnixStream, rank: usize, world_size: usize) -> Result<Option<usize>> {
    let prepare = |error| Error::io("prepare a connection", error);
    socket.set_nonblocking(false).map_err(prepare)?;
    let caller = rustix::net::sockopt::socket_peercred(socket.as_fd())
        .map_err(|error| Error::io("ask who calls", error))?;
    if caller.uid != rustix::process::getuid() {
        return Ok(None);
    }
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(prepare)?;
    let mut hello = [0; 16];
    if socket.read_exact(&mut hello).is_err() || hello[..8] != MAGIC {
        return Ok(None);
    }
    socket.set_read_timeout(None).map_err(prepare)?;
    let word = |i: usize| u32::from_le_bytes([hello[i], hello[i + 1], hello[i + 2], hello[i + 3]]);
    let (peer, peers_world) = (word(8) as usize, word(12) as usize);
    if peers_world != world_size {
        return Err(Error::Inconsistent {
            what: "the number of ranks".to_owned(),
            expected: world_size.to_string(),
            ranks: peer.to_string(),
            got: peers_world.to_string(),
        });
    }
    if peer <= rank || peer >= world_size {
        return Err(Error::Protocol { what: format!("rank {peer} called rank {rank}") });
    }
    Ok(Some(peer))
}

/// Hands `file` to the rank behind `socket`.
pub(super) fn send_file(socket: &UnixStream, file: &OwnedFd) -> Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let payload = [IoSlice::new(b"f")];
    rustix::net::sendmsg(socket, &payload, &mut control, SendFlags::empty())
        .map_err(|error| Error::io("hand over shared memory", error))?;
    Ok(())
}

/// Takes the file that the rank behind `socket` hands over.
pub(super) fn receive_file(socket: &UnixStream, deadline: Duration) -> Result<OwnedFd> {
    let timeout = |limit| {
        socket.set_read_timeout(limit).map_err(|error| Error::io("prepare a connection", error))
    };
    timeout(Some(deadline))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut payload = [0];
    let mut room = [IoSliceMut::new(&mut payload)];
    rustix::net::recvmsg(socket, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| Error::io("receive shared memory from rank 0", error))?;
    timeout(None)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| Error::Launch { what: "rank 0 died during start-up".to_owned() })
}
