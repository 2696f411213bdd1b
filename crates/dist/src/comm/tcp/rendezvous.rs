//! How ranks of several hosts find each other: rank 0 listens at an address that all know, the
//! others call it.
//!
//! A caller says who it is: magic, version of the protocol, rank, number of ranks, and a digest of
//! the job's word. Rank 0 answers when all are there, or tells everybody why that will not be.
//! Strangers are turned away and change nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use sha2::{Digest, Sha256};

use super::TcpConfig;
use crate::{Error, Result};

/// First bytes of every connection.
const MAGIC: [u8; 8] = *b"candlbrT";

/// Of the bytes on the wire: raised when their meaning changes.
const VERSION: u32 = 1;

/// Between two attempts to reach rank 0, and between two looks for callers.
const RETRY: Duration = Duration::from_millis(20);

/// A caller says who it is within this time.
const TO_SPEAK: Duration = Duration::from_secs(2);

/// How long rank 0 still answers callers when the meeting has failed.
const TO_TURN_AWAY: Duration = Duration::from_millis(300);

/// By so much later than rank 0 the others give up, so that they hear from it who is missing.
pub(super) const TO_HEAR_WHY: Duration = Duration::from_secs(2);

/// The longest reason that is read.
const LONGEST_REASON: u64 = 4096;

/// Rank 0's first byte to a caller.
const WELCOME: u8 = 0;
const REFUSED: u8 = 1;

/// What a caller says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) job: [u8; 32],
}

impl Hello {
    const BYTES: usize = MAGIC.len() + 3 * 4 + 32;

    pub(super) fn of(config: &TcpConfig) -> Self {
        let job = Sha256::digest(config.job.as_bytes()).into();
        let (rank, world_size) = (config.rank as u32, config.world_size as u32);
        Self { version: VERSION, rank, world_size, job }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [self.version, self.rank, self.world_size] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.job);
        bytes
    }

    /// `None` where these are not the words of one of us.
    fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let word =
            |i: usize| Some(u32::from_le_bytes(rest.get(4 * i..4 * i + 4)?.try_into().ok()?));
        let job = rest.get(12..)?.try_into().ok()?;
        Some(Self { version: word(0)?, rank: word(1)?, world_size: word(2)?, job })
    }
}

/// One connection by rank: rank 0 has one to everybody else, the others have one to rank 0.
pub(super) fn meet(config: &TcpConfig) -> Result<Vec<Option<TcpStream>>> {
    let start = Instant::now();
    let mut sockets: Vec<Option<TcpStream>> = (0..config.world_size).map(|_| None).collect();
    if config.rank != 0 {
        sockets[0] = Some(call(config, start)?);
        return Ok(sockets);
    }
    let listener = listen(config)?;
    let gathered = gather(config, start, &listener, &mut sockets);
    for socket in sockets.iter_mut().flatten() {
        // A rank that is gone shows itself later.
        drop(match &gathered {
            Ok(()) => socket.write_all(&[WELCOME]),
            Err(error) => refuse(socket, &error.to_string()),
        });
    }
    if let Err(error) = &gathered {
        turn_away(&listener, &error.to_string());
    }
    gathered.map(|()| sockets)
}

/// Rank 0: waits until every rank has called.
fn gather(
    config: &TcpConfig,
    start: Instant,
    listener: &TcpListener,
    sockets: &mut [Option<TcpStream>],
) -> Result<()> {
    while let Some(peer) = (1..config.world_size).find(|&peer| sockets[peer].is_none()) {
        match listener.accept() {
            Ok((socket, from)) => greet(config, socket, from, sockets)?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY),
            // A caller that hung up before it was answered.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(Error::io("accept a connection", error)),
        }
        let waited = start.elapsed();
        if waited > config.deadline {
            let &TcpConfig { rank, world_size, .. } = config;
            return Err(Error::Rendezvous { rank, world_size, peer, waited });
        }
    }
    Ok(())
}

/// Tells those who call a moment too late why nobody meets here any more.
fn turn_away(listener: &TcpListener, reason: &str) {
    let start = Instant::now();
    while start.elapsed() < TO_TURN_AWAY {
        let Ok((mut socket, _)) = listener.accept() else {
            thread::sleep(RETRY);
            continue;
        };
        let mut hello = [0; Hello::BYTES];
        // Closing with something unread would take the reason back.
        drop(
            socket
                .set_nonblocking(false)
                .and_then(|()| socket.set_read_timeout(Some(TO_TURN_AWAY)))
                .and_then(|()| socket.read_exact(&mut hello))
                .and_then(|()| refuse(&mut socket, reason)),
        );
    }
}

fn listen(config: &TcpConfig) -> Result<TcpListener> {
    let port = config.meeting.port;
    let address = match config.meeting.interface {
        Some(interface) => SocketAddr::new(interface, port),
        // Where all ranks are on this host nobody else can call.
        None => match resolve(config)?.first() {
            Some(own) if own.ip().is_loopback() => *own,
            Some(own) if own.is_ipv6() => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), port).into(),
            _ => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), port).into(),
        },
    };
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::Launch {
            what: format!(
                "rank 0 cannot listen at {address}: port {port} is in use; set CANDELABRUM_PORT to \
                 a free one on every rank (without it, the port after MASTER_PORT is taken)"
            ),
        },
        _ => Error::io(format!("rank 0 listens at {address}"), error),
    })?;
    listener.set_nonblocking(true).map_err(|error| Error::io("prepare a socket", error))?;
    Ok(listener)
}

/// Hears who calls and keeps the connection if it is one of us.
fn greet(
    config: &TcpConfig,
    mut socket: TcpStream,
    from: SocketAddr,
    sockets: &mut [Option<TcpStream>],
) -> Result<()> {
    let mut bytes = [0; Hello::BYTES];
    let heard = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_read_timeout(Some(TO_SPEAK)))
        .and_then(|()| socket.read_exact(&mut bytes));
    let ours = Hello::of(config);
    let Some(hello) = heard.ok().and_then(|()| Hello::decode(&bytes)) else {
        tracing::warn!("{from} called at our port and is not one of our ranks");
        return Ok(());
    };
    let rank = hello.rank as usize;
    let differs = |what: &str, expected: u32, got: u32| Error::Inconsistent {
        what: what.to_owned(),
        expected: expected.to_string(),
        ranks: rank.to_string(),
        got: got.to_string(),
    };
    let error = if hello.version != VERSION {
        differs("the version of the protocol", VERSION, hello.version)
    } else if hello.job != ours.job {
        tracing::warn!("{from} called at our port and is of another job");
        let what = format!("another job meets at port {}", config.meeting.port);
        drop(refuse(&mut socket, &what));
        return Ok(());
    } else if hello.world_size != ours.world_size {
        differs("the number of ranks", ours.world_size, hello.world_size)
    } else if rank == 0 || sockets.get(rank).is_none_or(Option::is_some) {
        let what = format!("two processes of this job say that they are rank {rank}");
        Error::Launch { what }
    } else {
        prepare(&socket, config.deadline).map_err(|error| Error::io("prepare a socket", error))?;
        sockets[rank] = Some(socket);
        return Ok(());
    };
    drop(refuse(&mut socket, &error.to_string()));
    Err(error)
}

fn refuse(socket: &mut TcpStream, reason: &str) -> io::Result<()> {
    socket.write_all(&[REFUSED])?;
    socket.write_all(reason.as_bytes())
}

/// The others: call rank 0 until it answers.
fn call(config: &TcpConfig, start: Instant) -> Result<TcpStream> {
    let (rank, deadline) = (config.rank, config.deadline);
    let addresses = resolve(config)?;
    let mut last = None;
    while start.elapsed() < deadline {
        for address in &addresses {
            let left = deadline.saturating_sub(start.elapsed()).max(RETRY);
            match TcpStream::connect_timeout(address, left) {
                Ok(socket) => return introduce(config, socket, start),
                Err(error) => last = Some(error),
            }
        }
        thread::sleep(RETRY);
    }
    let (host, port) = (&config.meeting.host, config.meeting.port);
    let why = last.map(|error| format!(": {error}")).unwrap_or_default();
    let what = format!(
        "rank {rank} of {} waited {} s for rank 0 at {host} port {port}{why} (MASTER_ADDR, \
         CANDELABRUM_PORT, or the port after MASTER_PORT)",
        config.world_size,
        deadline.as_secs()
    );
    Err(Error::Launch { what })
}

/// Says who we are and waits until everybody is there.
fn introduce(config: &TcpConfig, mut socket: TcpStream, start: Instant) -> Result<TcpStream> {
    let patience = config.deadline.saturating_sub(start.elapsed()) + TO_HEAR_WHY;
    let mut answer = [REFUSED];
    let heard = prepare(&socket, config.deadline)
        .and_then(|()| socket.set_read_timeout(Some(patience)))
        .and_then(|()| socket.write_all(&Hello::of(config).encode()))
        .and_then(|()| socket.read_exact(&mut answer));
    let (host, port) = (&config.meeting.host, config.meeting.port);
    heard.map_err(|error| {
        let what = format!("rank {} and whoever listens at {host} port {port}", config.rank);
        Error::io(what, error)
    })?;
    if answer != [WELCOME] {
        let mut reason = Vec::new();
        // What has arrived of it will do.
        drop((&socket).take(LONGEST_REASON).read_to_end(&mut reason));
        let message = String::from_utf8_lossy(&reason).into_owned();
        return Err(Error::PeerFailed { peer: 0, message });
    }
    socket.set_read_timeout(None).map_err(|error| Error::io("prepare a socket", error))?;
    Ok(socket)
}

fn resolve(config: &TcpConfig) -> Result<Vec<SocketAddr>> {
    let (host, port) = (config.meeting.host.as_str(), config.meeting.port);
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| Error::io(format!("find the host `{host}` (MASTER_ADDR)"), error))?;
    Ok(addresses.collect())
}

/// Small frames leave at once, and a host that has vanished shows itself within two minutes.
fn prepare(socket: &TcpStream, deadline: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(Some(deadline))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    Ok(())
}
