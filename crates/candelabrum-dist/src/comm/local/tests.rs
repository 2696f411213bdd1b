//! Tests with ranks as threads of one process: of the meeting on one host, which other users and silent
//! callers try to disturb in some tests, and of the search for bad numbers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_memory::BadNumber;
use rustix::net::SocketAddrUnix;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use super::connect;
use super::rendezvous::{address, listen, meet, socket};
use crate::comm::member::JobMember;
use crate::comm::rendezvous::{Callers, Rendezvous};
use crate::comm::{Collective, Communicator, ElementType, Payload, ReduceOp};
use crate::{Error, Result};

/// A different job for each test.
fn config(job: u8, rank: usize, world_size: usize) -> JobMember {
    let mut id = [job; 32];
    id[..4].copy_from_slice(&std::process::id().to_le_bytes());
    JobMember { job: id, rank, world_size, deadline: Duration::from_secs(20) }
}

/// Runs `work` as another user. If this process may not do so, prints a message and returns `None`.
fn as_another_user<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if !geteuid().is_root() {
        println!("left out: only root can become another user");
        return None;
    }
    let stranger = || {
        let nobody = Uid::from_raw(65534);
        // In the kernel each thread has a user of its own.
        set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
        work()
    };
    thread::scope(|scope| Some(scope.spawn(stranger).join().expect("no panic")))
}

/// Connects all ranks of a job, each in a thread.
fn all_meet(configs: Vec<JobMember>) -> Vec<Result<usize>> {
    let meets = |config: JobMember| meet(&config).map(|all| all.iter().flatten().count());
    let ranks: Vec<_> =
        configs.into_iter().map(|config| thread::spawn(move || meets(config))).collect();
    ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
}

#[test]
fn every_rank_is_connected_to_every_other() {
    for world_size in [1, 2, 3, 17] {
        let ranks = (0..world_size).map(|rank| config(1, rank, world_size)).collect();
        for sockets in all_meet(ranks) {
            assert_eq!(sockets.expect("they meet"), world_size - 1);
        }
    }
}

#[test]
fn a_rank_that_counts_other_ranks_ends_the_meeting_on_all() {
    let configs = vec![config(2, 0, 3), config(2, 1, 3), config(2, 2, 4)];
    for (rank, result) in all_meet(configs).into_iter().enumerate() {
        let error = result.expect_err("they differ");
        let message = error.to_string();
        assert!(message.contains("the number of ranks differs between ranks"), "{message}");
        assert_eq!(error.is_echo(), rank != 0, "{message}");
    }
}

#[test]
fn a_rank_that_never_comes_is_named_on_all() {
    let short = |rank| JobMember { deadline: Duration::from_secs(1), ..config(3, rank, 3) };
    for (rank, result) in all_meet(vec![short(0), short(1)]).into_iter().enumerate() {
        let error = result.expect_err("rank 2 is missing");
        assert!(error.to_string().contains("for rank 2 to start"), "{error}");
        assert_eq!(error.is_echo(), rank != 0, "{error}");
    }
}

#[test]
fn silent_callers_hold_nobody_up() -> Result<()> {
    let configs: Vec<_> = (0..3).map(|rank| config(4, rank, 3)).collect();
    let names: Vec<_> = configs.iter().map(name).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent: Vec<OwnedFd> = Vec::new();
            while !done.load(Ordering::Relaxed) && silent.len() < 200 {
                silent.extend(names.iter().filter_map(|name| call(name).ok()));
                thread::sleep(Duration::from_millis(2));
            }
        });
        let began = Instant::now();
        let ranks: Vec<_> = configs
            .iter()
            .rev()
            .map(|config| {
                thread::sleep(Duration::from_millis(150));
                scope.spawn(|| meet(config).map(drop))
            })
            .collect();
        let results: Vec<_> =
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        done.store(true, Ordering::Relaxed);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        results.into_iter().collect()
    })
}

/// The name under which a rank listens. It contains the number of this thread's user.
fn name(config: &JobMember) -> SocketAddrUnix {
    address(config, config.rank).expect("a name")
}

/// A silent connection to a rank's socket.
fn call(name: &SocketAddrUnix) -> Result<OwnedFd> {
    let socket = socket()?;
    let called = rustix::net::connect(&socket, name);
    called.map_err(|error| Error::io("call", error)).map(|()| socket)
}

#[test]
fn callers_that_all_come_at_once_are_all_heard() -> Result<()> {
    let world_size = 250;
    let first = config(7, 0, world_size);
    let listener = listen(&first)?;
    let deadline = Duration::from_secs(5);
    let meeting = |rank| Rendezvous::begin(JobMember { rank, deadline, ..first });
    let mut callers = Vec::new();
    for rank in 1..world_size {
        let socket = call(&name(&first))?;
        meeting(rank).introduce(&socket).expect("there is room");
        callers.push(socket);
    }
    let sockets = meeting(0).hear_all(&mut Callers::new(&listener, |_| true))?;
    assert_eq!(sockets.iter().flatten().count(), world_size - 1);
    for (socket, rank) in callers.iter().zip(1..) {
        assert!(meeting(rank).await_answer(socket).expect("an answer").is_none());
    }
    Ok(())
}

#[test]
fn another_user_is_not_heard_even_with_the_right_words() {
    let (first, second) = (config(5, 0, 2), config(5, 1, 2));
    let name = name(&first);
    thread::scope(|scope| {
        let first = scope.spawn(|| meet(&first));
        let said = as_another_user(|| {
            let began = Instant::now();
            let socket = loop {
                match call(&name) {
                    Ok(socket) => break socket,
                    Err(error) => assert!(began.elapsed() < Duration::from_secs(5), "{error}"),
                }
            };
            let meeting = Rendezvous::begin(second);
            meeting.introduce(&socket).and_then(|()| meeting.await_answer(&socket))
        });
        // The connection ends without an answer.
        assert!(said.is_none_or(|said| said.is_err()), "it was answered");
        assert_eq!(meet(&second).expect("they meet").iter().flatten().count(), 1);
        assert!(first.join().expect("no panic").is_ok());
    });
}

#[test]
fn another_user_who_has_taken_a_name_is_not_called() {
    let (first, second) = (config(6, 0, 2), config(6, 1, 2));
    let name = name(&first);
    let taken = as_another_user(|| {
        let socket = socket().expect("a socket");
        rustix::net::bind(&socket, &name).expect("the name is free");
        rustix::net::listen(&socket, 8).expect("to listen");
        socket
    });
    let Some(_taken) = taken else { return };
    let message = meet(&second).expect_err("a stranger is there").to_string();
    assert!(
        message.contains("another user of this host has taken the name of rank 0"),
        "{message}"
    );
    let message = listen(&first).expect_err("it is taken").to_string();
    assert!(message.contains("another process is rank 0 of this job"), "{message}");
}

/// Runs `work` on all ranks of a job, each in a thread.
fn all_ranks<R: Send>(
    job: u8,
    world_size: usize,
    work: impl Fn(&dyn Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let rank = |rank| connect(config(job, rank, world_size)).and_then(|group| work(&*group));
    thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..world_size).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

#[test]
fn a_search_finds_the_first_bad_number_in_shared_memory_and_outside() -> Result<()> {
    let len = 50_000;
    let found = |shared: bool, searched: bool| {
        all_ranks(8 + u8::from(shared) * 2 + u8::from(searched), 3, move |group| {
            let payload = if shared {
                group.alloc(ElementType::F32, len)?
            } else {
                Payload::zeros(ElementType::F32, len)
            };
            let mut payload = if searched { payload.searched() } else { payload };
            if group.rank() > 0 {
                let values = payload.as_mut_slice::<f32>()?;
                values[20_000 * group.rank()..][..100].fill(f32::INFINITY);
            }
            Ok(group.run(Collective::AllReduce(ReduceOp::Mean), payload)?.bad_number())
        })
    };
    let bad = |part, position| Some(BadNumber { part, position });
    // Each rank looks at a third of all ranks' numbers, or at its own numbers.
    assert_eq!(found(true, true)?, [None, bad(1, 20_000), bad(2, 40_000)]);
    assert_eq!(found(false, true)?, [None, bad(1, 20_000), bad(2, 40_000)]);
    assert_eq!(found(true, false)?, [None; 3]);
    assert_eq!(found(false, false)?, [None; 3]);
    Ok(())
}
