//! Tests of the meeting over the loopback interface, with ranks as threads of one process.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{TcpConfig, connect};
use crate::comm::member::JobMember;
use crate::comm::rendezvous::{HelloMessage, Rendezvous};
use crate::comm::{Communicator, Payload, ReduceOp};
use crate::{Error, Result};

#[test]
fn parts_survive_their_joining_and_nonsense_is_refused() {
    let parts = [&[1_u8, 2, 3][..], &[], &[4]];
    let all = super::join(&parts.map(Payload::from_slice));
    assert_eq!(super::split(&all, 3), Some(parts.to_vec()));
    assert_eq!(super::split(&all, 2), None);
    assert_eq!(super::split(&all, 4), None);
    assert_eq!(super::split(&all[..all.len() - 1], 3), None);
    assert_eq!(super::split(&[255; 16], 1), None);
}

type Rank = JoinHandle<Result<Arc<dyn Communicator>>>;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn config(rank: usize, world_size: usize, port: u16) -> TcpConfig {
    let deadline = Duration::from_secs(20);
    let host = "127.0.0.1".to_owned();
    let member = JobMember { job: [7; 32], rank, world_size, deadline };
    TcpConfig { member, host, port, interface: None }
}

fn with_deadline(deadline: Duration, config: TcpConfig) -> TcpConfig {
    TcpConfig { member: JobMember { deadline, ..config.member }, ..config }
}

fn hello(rank: usize, world_size: usize) -> HelloMessage {
    Rendezvous::begin(config(rank, world_size, 0).member).hello()
}

fn start(config: TcpConfig) -> Rank {
    thread::spawn(move || connect(config))
}

fn joined(rank: Rank) -> Result<Arc<dyn Communicator>> {
    rank.join().expect("no rank panics")
}

#[track_caller]
fn assert_both_meet(first: Rank, second: Rank) {
    let both = [joined(first), joined(second)];
    assert!(both.iter().all(Result::is_ok), "{both:?}");
    // Rank 0 stays until the other rank has left.
    let [first, second] = both;
    let leaves = thread::spawn(move || drop(second));
    drop(first);
    leaves.join().expect("no rank panics");
}

/// Calls rank 0 and sends these bytes, once it listens.
fn stranger(port: u16, bytes: &[u8]) -> TcpStream {
    loop {
        if let Ok(mut socket) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            socket.write_all(bytes).expect("to speak");
            return socket;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranks_meet_reduce_send_split_and_leave() -> Result<()> {
    let port = free_port();
    let body = |comm: Arc<dyn Communicator>| -> Result<()> {
        let (rank, n) = (comm.rank(), comm.world_size());
        let mut values = [rank as f32, 1.0];
        comm.all_reduce(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [6.0, 4.0]);
        comm.send(&[rank as i32], (rank + 1) % n)?;
        let mut got = [0];
        comm.recv(&mut got, (rank + n - 1) % n)?;
        assert_eq!(got, [((rank + n - 1) % n) as i32]);
        let parity = comm.split(Some(rank as u64 % 2), -(rank as i64))?.expect("a group");
        assert_eq!(parity.ranks(), [rank % 2 + 2, rank % 2]);
        assert_eq!(parity.all_gather(&[rank as u8])?, [rank as u8 % 2 + 2, rank as u8 % 2]);
        let low = comm.split((rank < 2).then_some(7), 0)?;
        if let Some(low) = &low {
            assert_eq!(low.all_to_all_v(&[vec![rank as u8], vec![9; rank]])?[rank].len(), 1);
        }
        assert_eq!(low.is_some(), rank < 2);
        Ok(())
    };
    let ranks: Vec<_> = (0..4)
        .map(|rank| thread::spawn(move || connect(config(rank, 4, port)).and_then(body)))
        .collect();
    for rank in ranks {
        rank.join().expect("no rank panics")?;
    }
    Ok(())
}

#[test]
fn a_port_in_use_is_named_with_its_variable() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let message = connect(config(0, 2, port)).expect_err("in use").to_string();
    assert!(message.contains(&format!("port {port} is in use")), "{message}");
    assert!(message.contains("CANDELABRUM_PORT"), "{message}");
}

#[test]
fn strangers_and_other_jobs_are_turned_away_and_change_nothing() {
    let port = free_port();
    let first = start(config(0, 2, port));
    let _silent =
        stranger(port, b"GET / HTTP/1.1\r\nHost: somebody else's server entirely\r\n\r\n");
    let mut other = config(1, 2, port);
    other.member.job = [8; 32];
    let message = connect(other).expect_err("another job").to_string();
    assert!(message.contains("another job meets"), "{message}");
    let second = start(config(1, 2, port));
    assert_both_meet(first, second);
}

#[test]
fn a_stranger_changes_nothing_whatever_it_says_beside_its_job() {
    let port = free_port();
    let first = start(config(0, 2, port));
    let of_another_job = HelloMessage { job: [8; 32], ..hello(1, 2) };
    let mut callers = Vec::new();
    for words in [
        HelloMessage { version: 99, ..of_another_job },
        HelloMessage { world_size: 5, ..of_another_job },
        HelloMessage { rank: 0, ..of_another_job },
    ] {
        callers.push(stranger(port, &words.encode()));
        // First an incomplete hello, then its rest.
        callers.push(stranger(port, &words.encode()[..30]));
    }
    assert_both_meet(first, start(config(1, 2, port)));
}

#[test]
fn slow_and_silent_callers_hold_nobody_up() {
    let port = free_port();
    let first = start(config(0, 2, port));
    let began = Instant::now();
    let silent: Vec<_> = (0..200).map(|_| stranger(port, b"")).collect();
    let slow: Vec<_> = (0..10).map(|_| stranger(port, b"")).collect();
    let hello = hello(1, 2).encode();
    for byte in hello.chunks(1).take(5) {
        slow.iter().for_each(|mut slow| slow.write_all(byte).unwrap_or_default());
        thread::sleep(Duration::from_millis(50));
    }
    assert_both_meet(first, start(config(1, 2, port)));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    drop((silent, slow));
}

#[test]
fn a_caller_that_never_ends_its_hello_is_turned_away_in_time() {
    let port = free_port();
    let first = start(config(0, 2, port));
    let mut slow = stranger(port, b"");
    let began = Instant::now();
    let hello = hello(1, 2).encode();
    // One byte now and then. The whole hello would take half a minute.
    for byte in hello.chunks(1) {
        if slow.write_all(byte).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(500));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_both_meet(first, start(config(1, 2, port)));
}

/// Narrows the range of ports in a network namespace of the test's own, where an early caller
/// reaches itself about every fourth time.
#[test]
fn a_caller_that_is_early_does_not_take_itself_for_rank_0() {
    let narrow = "ip link set lo up && \
                  echo 41000 41007 > /proc/sys/net/ipv4/ip_local_port_range && exec \"$0\" \"$@\"";
    let own = std::env::current_exe().expect("a test knows its own program");
    let inside = "comm::tcp::tests::two_ranks_in_a_narrow_network";
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", narrow])
        .arg(own)
        .args([inside, "--exact", "--ignored", "--nocapture"])
        .output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    match said {
        Ok(said) if said.contains("running 1 test") => {
            assert!(said.contains("test result: ok. 1 passed"), "{said}");
        }
        _ => println!("left out: a network of its own needs root, unshare and ip"),
    }
}

#[test]
#[ignore = "only inside of a narrow network"]
fn two_ranks_in_a_narrow_network() {
    let port = 41000;
    let second = start(config(1, 2, port));
    thread::sleep(Duration::from_millis(500));
    assert_both_meet(start(config(0, 2, port)), second);
}

#[test]
fn a_rank_that_never_comes_is_named_on_all() {
    let port = free_port();
    let short = |rank| with_deadline(Duration::from_secs(1), config(rank, 3, port));
    let (first, second) = (start(short(0)), start(short(1)));
    let error = joined(first).expect_err("rank 2 is missing");
    assert!(matches!(error, Error::Rendezvous { rank: 0, peer: 2, world_size: 3, .. }), "{error}");
    assert!(error.to_string().contains("CANDELABRUM_TIMEOUT (seconds)"), "{error}");
    let error = joined(second).expect_err("rank 2 is missing");
    assert!(error.is_echo() && error.to_string().contains("for rank 2 to start"), "{error}");
}

#[test]
fn another_version_of_the_protocol_ends_the_meeting_on_all() {
    let port = free_port();
    let (first, second) = (start(config(0, 3, port)), start(config(1, 3, port)));
    let hello = HelloMessage { version: 99, ..hello(2, 3) };
    let _old = stranger(port, &hello.encode());
    for rank in [first, second] {
        let message = joined(rank).expect_err("versions differ").to_string();
        assert!(message.contains("version of the protocol"), "{message}");
        assert!(message.contains("99"), "{message}");
    }
}

#[test]
fn two_processes_of_one_rank_and_another_number_of_ranks_are_refused() {
    for (caller, part) in [((1, 3), "number of ranks"), ((0, 2), "say that they are rank 0")] {
        let port = free_port();
        let first = start(config(0, 2, port));
        let hello = HelloMessage { rank: caller.0, world_size: caller.1, ..hello(1, 2) };
        let _caller = stranger(port, &hello.encode());
        let message = joined(first).expect_err("refused").to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn a_name_that_nobody_knows_yet_is_asked_for_until_the_deadline() {
    let host = "late.invalid".to_owned();
    let deadline = Duration::from_millis(1500);
    let late = with_deadline(deadline, TcpConfig { host, ..config(1, 2, free_port()) });
    let start = Instant::now();
    let message = connect(late).expect_err("nobody has this name").to_string();
    assert!(start.elapsed() >= deadline, "{message}");
    for part in ["rank 1 of 2 waited", "late.invalid", "MASTER_ADDR"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// On many hosts, /etc/hosts gives a host's own name a loopback address.
#[test]
fn rank_0_listens_where_other_hosts_reach_it_unless_all_ranks_call_a_loopback_address() {
    for (host, is_loopback) in
        [("127.0.0.1", true), ("localhost", true), ("127.0.1.1", true), ("node-0.invalid", false)]
    {
        let host_config = TcpConfig { host: host.to_owned(), ..config(0, 2, free_port()) };
        let (_listener, place) = super::rendezvous::listen(&host_config).expect("a port");
        let expected = (is_loopback, !is_loopback);
        assert_eq!((place.ip().is_loopback(), place.ip().is_unspecified()), expected, "{host}");
    }
}

#[test]
fn a_rank_0_that_never_listens_is_named_with_its_address() {
    let port = free_port();
    let short = with_deadline(Duration::from_millis(300), config(1, 2, port));
    let message = connect(short).expect_err("nobody listens").to_string();
    for part in ["rank 1 of 2", "127.0.0.1", &port.to_string(), "MASTER_ADDR"] {
        assert!(message.contains(part), "{part}: {message}");
    }
}
