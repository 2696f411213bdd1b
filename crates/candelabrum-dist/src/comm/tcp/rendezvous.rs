//! The meeting of ranks of several hosts: rank 0 listens at an address that all ranks know, and the
//! other ranks call it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::comm::member::{JobMember, TcpConfig};
use crate::comm::rendezvous::{Callers, Rendezvous, retry};
use crate::{Error, Result};

pub(super) use crate::comm::rendezvous::TO_HEAR_WHY;

/// The longest time of one attempt to reach rank 0.
const TO_CONNECT: Duration = Duration::from_secs(10);

/// The time for which rank 0 waits for its port. Another rank's connection to itself may hold the
/// port for a moment, see [`is_to_itself`].
const TO_LET_GO: Duration = Duration::from_millis(500);

/// The connections by rank. Rank 0 has one to every other rank, every other rank has one to rank 0.
pub(super) fn meet(config: &TcpConfig) -> Result<Vec<Option<TcpStream>>> {
    let meeting = Rendezvous::begin(config.member);
    let sockets = if config.member.rank == 0 {
        let listener = OwnedFd::from(listen(config)?);
        // On a network only its job distinguishes a rank from a stranger.
        meeting.hear_all(&mut Callers::new(&listener, |_| true))?
    } else {
        let mut sockets = meeting.unconnected();
        sockets[0] = Some(join(config, &meeting)?);
        sockets
    };
    let prepared = |socket: Option<OwnedFd>| -> io::Result<Option<TcpStream>> {
        let Some(socket) = socket.map(TcpStream::from) else { return Ok(None) };
        prepare(&socket).map(|()| Some(socket))
    };
    let sockets: io::Result<Vec<_>> = sockets.into_iter().map(prepared).collect();
    sockets.map_err(|error| Error::io("prepare a socket", error))
}

fn listen(config: &TcpConfig) -> Result<TcpListener> {
    let port = config.port;
    let address = match config.interface {
        Some(interface) => SocketAddr::new(interface, port),
        // No other host can call a loopback address.
        None => match resolve(config)?.first() {
            Some(own) if own.ip().is_loopback() => *own,
            Some(own) if own.is_ipv6() => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into(),
            _ => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into(),
        },
    };
    let bind = || match TcpListener::bind(address) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(Error::io(format!("rank 0 listens at {address}"), error)),
    };
    let listener = retry(TO_LET_GO, bind)?.ok_or_else(|| Error::Launch {
        what: format!(
            "rank 0 cannot listen at {address}: port {port} is in use; set CANDELABRUM_PORT to a \
             free one on every rank (without it, the port after MASTER_PORT is taken)"
        ),
    })?;
    listener.set_nonblocking(true).map_err(|error| Error::io("prepare a socket", error))?;
    Ok(listener)
}

/// The part of a rank other than 0: calls rank 0 and waits until all ranks have called it.
fn join(config: &TcpConfig, meeting: &Rendezvous) -> Result<OwnedFd> {
    let JobMember { rank, world_size, deadline, .. } = config.member;
    let (host, port, addresses) = (&config.host, config.port, resolve(config)?);
    let mut last = None;
    let connect = || {
        for address in &addresses {
            let limit = meeting.left().clamp(Duration::from_millis(1), TO_CONNECT);
            match TcpStream::connect_timeout(address, limit) {
                Ok(socket) if is_to_itself(&socket) => {}
                Ok(socket) => return Ok(Some(OwnedFd::from(socket))),
                Err(error) => last = Some(error),
            }
        }
        Ok(None)
    };
    let socket = retry(meeting.left(), connect)?.ok_or_else(|| {
        let why = last.map(|error| format!(": {error}")).unwrap_or_default();
        let what = format!(
            "rank {rank} of {world_size} waited {} s for rank 0 at {host} port {port}{why} \
             (MASTER_ADDR, CANDELABRUM_PORT, or the port after MASTER_PORT)",
            deadline.as_secs()
        );
        Error::Launch { what }
    })?;
    match meeting.introduce(&socket).and_then(|()| meeting.await_answer(&socket)) {
        Ok(None) => Ok(socket),
        Ok(Some(message)) => Err(Error::PeerFailed { peer: 0, message }),
        Err(error) => {
            let what = format!("rank {rank} and the process that listens at {host} port {port}");
            Err(Error::io(what, error))
        }
    }
}

/// Whether both ends of a connection are this socket. The kernel gives a caller any free port of a
/// range. If it gives the port that is called, the connection succeeds although no process listens.
/// Such a connection is reset when it is closed, so that it does not hold rank 0's port any longer.
fn is_to_itself(socket: &TcpStream) -> bool {
    let (own, peer) = (socket.local_addr().ok(), socket.peer_addr().ok());
    let is_to_itself = own.is_some() && own == peer;
    if is_to_itself {
        // If this fails, the port is free a minute later.
        let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
    }
    is_to_itself
}

fn resolve(config: &TcpConfig) -> Result<Vec<SocketAddr>> {
    let host = config.host.as_str();
    let addresses = (host, config.port)
        .to_socket_addrs()
        .map_err(|error| Error::io(format!("find the host `{host}` (MASTER_ADDR)"), error))?;
    Ok(addresses.collect())
}

/// Prepares a socket: small frames leave at once, and a vanished host is detected within two
/// minutes.
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    Ok(())
}
