//! The meeting of ranks of several hosts: rank 0 listens at an address that all ranks know, and the
//! other ranks call it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::comm::member::{JobMember, TcpConfig};
use crate::comm::rendezvous::{Callers, Rendezvous, retry};
use crate::{Error, Result};

pub(super) use crate::comm::rendezvous::TO_HEAR_WHY;

/// The longest time of one attempt to reach rank 0.
const TO_CONNECT: Duration = Duration::from_secs(10);

/// The time after which the addresses of rank 0's host are asked for again.
const TO_ASK_AGAIN: Duration = Duration::from_secs(1);

/// The most callers that the kernel keeps until rank 0 accepts them.
const BACKLOG: i32 = 4096;

/// The time for which rank 0 waits for its port. Another rank's connection to itself may hold the
/// port for a moment, see [`is_to_itself`].
const TO_LET_GO: Duration = Duration::from_millis(500);

/// The connections by rank. Rank 0 has one to every other rank, every other rank has one to rank 0.
pub(super) fn meet(config: &TcpConfig) -> Result<Vec<Option<TcpStream>>> {
    let meeting = Rendezvous::begin(config.member);
    let sockets = if config.member.rank == 0 {
        let (listener, place) = listen(config)?;
        let place = format!(" at {place} (MASTER_ADDR is {})", config.host);
        let meeting = meeting.listening_at(place);
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

/// Rank 0's socket, and where it listens.
pub(super) fn listen(config: &TcpConfig) -> Result<(OwnedFd, SocketAddr)> {
    let port = config.port;
    // A name of this host may lead to a loopback address here, and to another one on other hosts, or to none yet.
    let own = config.interface.or_else(|| loopback(config));
    let addresses = match own {
        Some(own) => vec![own],
        None => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
    };
    let mut place = SocketAddr::new(addresses[0], port);
    let bind = || {
        for &address in &addresses {
            place = SocketAddr::new(address, port);
            match listen_at(place) {
                Ok(listener) => return Ok(Some(listener)),
                Err(Errno::ADDRINUSE) => return Ok(None),
                // A system without IPv6.
                Err(_) if address == Ipv6Addr::UNSPECIFIED => {}
                Err(error) => return Err(Error::io(format!("rank 0 listens at {place}"), error)),
            }
        }
        Ok(None)
    };
    let listener = retry(TO_LET_GO, bind)?;
    listener.map(|listener| (listener, place)).ok_or_else(|| Error::Launch {
        what: format!(
            "rank 0 cannot listen at {place}: port {port} is in use; set CANDELABRUM_PORT to a \
             free one on every rank (without it, the port after MASTER_PORT is taken)"
        ),
    })
}

/// A non-blocking socket that listens at `place`. The unspecified address of IPv6 is also that of IPv4.
fn listen_at(place: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if place.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if place.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &place)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The loopback address that all ranks call, which no other host can.
fn loopback(config: &TcpConfig) -> Option<IpAddr> {
    let host = config.host.as_str();
    let is_loopback = |address: IpAddr| address.is_loopback();
    if host != "localhost" && !host.parse().is_ok_and(is_loopback) {
        return None;
    }
    resolve(config).ok()?.first().map(SocketAddr::ip)
}

/// The part of a rank other than 0: calls rank 0 and waits until all ranks have called it.
fn join(config: &TcpConfig, meeting: &Rendezvous) -> Result<OwnedFd> {
    let JobMember { rank, world_size, deadline, .. } = config.member;
    let (host, port) = (&config.host, config.port);
    let (mut addresses, mut asked, mut last) = (Vec::new(), None::<Instant>, None);
    let connect = || {
        // A cluster may make the name later than it starts this rank, and may move the name to another address.
        if asked.is_none_or(|asked| asked.elapsed() >= TO_ASK_AGAIN) {
            asked = Some(Instant::now());
            match resolve(config) {
                Ok(found) => addresses = found,
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    return Err(Error::io(format!("find the host `{host}` (MASTER_ADDR)"), error));
                }
                Err(error) => last = Some(error),
            }
        }
        for address in &addresses {
            let limit = meeting.left().clamp(Duration::from_millis(1), TO_CONNECT);
            match TcpStream::connect_timeout(address, limit) {
                Ok(socket) if is_to_itself(&socket) => {}
                Ok(socket) => return Ok(Some(OwnedFd::from(socket))),
                Err(error) => last = Some(error),
            }
        }
        meeting.say_what_is_awaited(|| {
            let why = last.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("rank 0 at {host} port {port}{why}")
        });
        Ok(None)
    };
    let socket = retry(meeting.left(), connect)?.ok_or_else(|| {
        let why = last.map(|error| format!(": {error}")).unwrap_or_default();
        let what = format!(
            "rank {rank} of {world_size} waited {} s for rank 0 at {host} port {port}{why} \
             (MASTER_ADDR, CANDELABRUM_PORT, or the port after MASTER_PORT; deadlines are set with \
             CANDELABRUM_TIMEOUT)",
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

fn resolve(config: &TcpConfig) -> io::Result<Vec<SocketAddr>> {
    Ok((config.host.as_str(), config.port).to_socket_addrs()?.collect())
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
