//! A stopped rank must not block the others, a fast sender must not fill the receiver's memory, and
//! groups must return their memory. For the backends whose messages pass through sockets of this
//! crate.

use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{Collective, Communicator, Mesh, Payload, ReduceOp, Result, World};
use rustix::process::{Pid, Signal};

use candelabrum_testkit::memory::resident_bytes;

use crate::faults::kill_soon;
use crate::harness::{self, Backend, EndedProgram, Group};

type Comm<'a> = &'a (dyn Communicator + 'static);

const MIB: usize = 1 << 20;

pub(crate) fn run(case: &str, world: &World) -> Result<()> {
    let comm = world.comm();
    match case {
        "stuck receiver" => stuck_receiver(comm, false),
        "stuck receiver, another dies" => stuck_receiver(comm, true),
        "stuck sender, another dies" => stuck_sender(comm),
        "stuck in a flood" => flood(comm),
        "stuck in groups" => groups(comm),
        other => panic!("there is no case `{other}`"),
    }
}

/// Rank 2 stops rank 1. Then rank 0 sends rank 1 more than any socket holds, and more than rank 1
/// stores without having asked for it.
fn stuck_receiver(comm: Comm<'_>, another_dies: bool) -> Result<()> {
    let pids = pids(comm)?;
    match comm.rank() {
        0 => {
            comm.recv(&mut [0_u8], 2)?;
            let message = vec![0_u8; 8 * MIB];
            let error = fails(|| (0..4).try_for_each(|_| comm.send(&message, 1)));
            if another_dies {
                signal(pids[1], Signal::CONT);
            }
            error
        }
        1 => comm.recv(&mut [0_u8], 2),
        _ => {
            signal(pids[1], Signal::STOP);
            comm.send(&[0_u8], 0)?;
            if another_dies {
                thread::sleep(Duration::from_millis(300));
                kill_soon();
            }
            // Rank 2 learns of the failure without an operation.
            let start = Instant::now();
            let error = loop {
                assert!(start.elapsed() < Duration::from_secs(10), "rank 0 has told nobody");
                match comm.failure() {
                    Some(error) => break error,
                    None => thread::sleep(Duration::from_millis(5)),
                }
            };
            signal(pids[1], Signal::CONT);
            Err(error)
        }
    }
}

/// Rank 2 stops rank 1 in the middle of a message to rank 0, and dies.
fn stuck_sender(comm: Comm<'_>) -> Result<()> {
    let pids = pids(comm)?;
    match comm.rank() {
        0 => {
            let mut room = vec![0_u8; 64 * MIB];
            let error = fails(|| comm.recv(&mut room, 1));
            signal(pids[1], Signal::CONT);
            error
        }
        1 => {
            let message = vec![1_u8; 64 * MIB];
            comm.send(&[0_u8], 2)?;
            comm.send(&message, 0)?;
            comm.barrier()
        }
        _ => {
            comm.recv(&mut [0_u8], 1)?;
            thread::sleep(Duration::from_millis(10));
            signal(pids[1], Signal::STOP);
            kill_soon();
            unreachable!("this process has killed itself")
        }
    }
}

/// Rank 1 sends 96 MiB before rank 0 receives any of it.
fn flood(comm: Comm<'_>) -> Result<()> {
    const MESSAGES: usize = 96;
    comm.barrier()?;
    let before = resident_bytes();
    let started: Vec<_> = match comm.rank() {
        1 => (0..MESSAGES)
            .map(|i| {
                let message = Payload::from_slice(&vec![i as u8; MIB]);
                comm.start(Collective::Send { to: 0 }, message)
            })
            .collect(),
        _ => Vec::new(),
    };
    for _ in 0..20 {
        // Collectives work meanwhile.
        thread::sleep(Duration::from_millis(20));
        let mut ones = vec![1_i32; 1_000];
        comm.all_reduce(&mut ones, ReduceOp::Sum)?;
        assert_eq!(ones, vec![3; 1_000]);
    }
    if comm.rank() == 0 {
        let grown = resident_bytes().saturating_sub(before) / MIB;
        assert!(grown < 48, "messages that nobody asked for take {grown} MiB");
        for i in 0..MESSAGES {
            let mut message = vec![0_u8; MIB];
            comm.recv(&mut message, 1)?;
            assert!(message.iter().all(|&byte| byte == i as u8), "message {i}");
        }
    }
    started.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
    comm.barrier()
}

/// Memory after 2,000 groups is at most 5 % larger than after 1,000.
fn groups(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let hosts: Vec<usize> = (0..n).map(|rank| rank / 2).collect();
    let thousand = || -> Result<(usize, u64)> {
        for i in 0..1_000 {
            let group = comm.split(Some(0), 0)?.expect("a colour was given");
            let mut one = [1_i32];
            group.all_reduce(&mut one, ReduceOp::Sum)?;
            assert_eq!(one, [n as i32]);
            group.send(&[i], (rank + 1) % n)?;
            // No rank leaves the group before all ranks have sent.
            group.barrier()?;
            // Some of the messages are never received.
            if i % 2 == 0 {
                assert_eq!(group.recv_any::<i32>()?, ((rank + n - 1) % n, vec![i]));
            }
            if i % 4 == 0 {
                let layered = comm.hierarchical(&Mesh::new(hosts.to_vec()))?;
                let mut one = [1.0_f32];
                layered.all_reduce(&mut one, ReduceOp::Sum)?;
                assert_eq!(one, [n as f32]);
            }
        }
        comm.barrier()?;
        // The other ranks' messages about the last groups may still be under way.
        thread::sleep(Duration::from_millis(200));
        comm.barrier()?;
        Ok((resident_bytes(), segment_blocks()))
    };
    // The allocator takes its last memory from the system during the first thousand or soon after.
    thousand()?;
    let (first, second) = (thousand()?, thousand()?);
    let grows = |first: f64, second: f64| second > 1.05 * first;
    assert!(!grows(first.0 as f64, second.0 as f64), "bytes in memory: {first:?}, {second:?}");
    assert!(!grows(first.1 as f64, second.1 as f64), "the segment: {first:?}, {second:?}");
    comm.barrier()
}

/// Runs an operation that must fail, and prints its time.
fn fails(operation: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let result = operation();
    println!("noticed within {} ms", start.elapsed().as_millis());
    result
}

fn pids(comm: Comm<'_>) -> Result<Vec<Pid>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let pids = comm.all_gather(&[own])?;
    Ok(pids.into_iter().map(|pid| Pid::from_raw(pid).expect("not 0")).collect())
}

fn signal(pid: Pid, signal: Signal) {
    rustix::process::kill_process(pid, signal).expect("a rank of this test");
    // A process has stopped when all its threads have.
    thread::sleep(Duration::from_millis(20));
}

/// The number of blocks of 512 bytes of the local backend's segment; 1 without a segment.
fn segment_blocks() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").expect("this process's files");
    let mut paths = files.flatten().map(|entry| entry.path());
    let is_segment = |path: &std::path::PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("memfd:candelabrum")
    };
    let segment = paths.find(is_segment).and_then(|path| std::fs::metadata(path).ok());
    segment.map_or(1, |file| file.blocks())
}

const BACKENDS: [Backend; 2] = [Backend::Local, Backend::Tcp];

/// Runs a case on three ranks with this deadline in seconds.
fn ended(backend: Backend, case: &str, deadline: u64) -> EndedProgram {
    Group::new(backend, 3, case)
        .variable("CANDELABRUM_TIMEOUT", &deadline.to_string())
        .limit(Duration::from_secs(100))
        .run()
}

fn assert_fails(ended: &EndedProgram, rank: usize, parts: &[&str]) {
    let output = &ended.ranks[rank].text;
    assert!(ended.failed(rank), "rank {rank} must fail: {}", ended.output());
    for part in parts {
        assert!(output.contains(part), "no `{part}` from rank {rank}: {}", ended.output());
    }
}

#[test]
fn a_stopped_receiver_does_not_keep_the_sender_past_its_deadline() {
    for backend in BACKENDS {
        let ended = ended(backend, "stuck receiver", 1);
        assert_fails(&ended, 0, &["rank 0 waited 1 s in send(to 1)", "for rank(s) 1"]);
        // Rank 2 receives the error although rank 0's message to rank 1 is stuck.
        assert_fails(&ended, 2, &["rank 0 waited 1 s in send(to 1)"]);
        assert!(ended.failed(1), "{}", ended.output());
        ended.assert_noticed(1, 2500);
        ended.assert_nothing_is_left();
    }
}

#[test]
fn a_death_wakes_a_rank_whose_message_is_stuck() {
    for backend in BACKENDS {
        let ended = ended(backend, "stuck receiver, another dies", 20);
        assert_fails(&ended, 0, &["rank 2 died while rank 0 was in send(to 1)"]);
        // Rank 2 waits 300 ms, then 100 ms until it is killed.
        ended.assert_noticed(1, 1400);
        ended.assert_nothing_is_left();
    }
}

#[test]
fn a_death_is_heard_while_a_message_stands_still_half_way() {
    for backend in BACKENDS {
        let ended = ended(backend, "stuck sender, another dies", 20);
        assert_fails(&ended, 0, &["rank 2 died while rank 0 was in recv(from 1)"]);
        ended.assert_noticed(1, 1400);
        ended.assert_nothing_is_left();
    }
}

#[test]
fn a_fast_sender_does_not_fill_the_memory_of_its_receiver() {
    for backend in BACKENDS {
        let ended = ended(backend, "stuck in a flood", 40);
        assert!(ended.all_succeeded(), "{}", ended.output());
    }
}

#[test]
fn groups_that_were_left_give_their_memory_back() {
    let mpi = harness::has_mpi().then_some(Backend::Mpi);
    for backend in BACKENDS.into_iter().chain(mpi) {
        let ended = ended(backend, "stuck in groups", 40);
        assert!(ended.all_succeeded(), "{}", ended.output());
    }
}
