//! Operations in the background and operations that their callers run, from several threads.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{Collective, Payload, ReduceOp, Result};

use super::check::{Comm, is_bits};
use crate::data::{reduced, values};

pub(super) fn all(comm: Comm<'_>) -> Result<()> {
    started_and_run_keep_their_order(comm)?;
    threads_take_turns(comm)?;
    a_result_can_be_waited_for_elsewhere(comm)?;
    completeness_is_told(comm)?;
    completeness_is_told_while_another_thread_waits(comm)
}

fn sum() -> Collective {
    Collective::AllReduce(ReduceOp::Sum)
}

/// An operation that its caller runs does not overtake started operations, because ranks would
/// disagree about the order.
fn started_and_run_keep_their_order(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for round in 0..100 {
        let len = if round % 7 == 0 { 30_000 } else { 10 + round };
        let mine = values::<f32>(rank, round as u64, len);
        let first = comm.start(sum(), Payload::from_slice(&mine));
        let second = comm.start(Collective::AllGather, Payload::from_slice(&[rank as i32]));
        let mut third = [rank as i64];
        comm.all_reduce(&mut third, ReduceOp::Max)?;
        assert_eq!(third, [n as i64 - 1]);
        assert_eq!(second.wait()?.len(), n);
        let expected = reduced::<f32>(ReduceOp::Sum, n, round as u64, len);
        is_bits(first.wait()?.as_slice()?, &expected, ("started", round));
    }
    Ok(())
}

/// Threads pass a number around, and the thread that receives it runs or starts the next operation.
fn threads_take_turns(comm: Comm<'_>) -> Result<()> {
    const THREADS: usize = 3;
    const ROUNDS: usize = 20;
    let (rank, n) = (comm.rank(), comm.world_size());
    thread::scope(|scope| {
        let (words, ears): (Vec<_>, Vec<_>) =
            (0..THREADS).map(|_| mpsc::channel::<usize>()).unzip();
        let mut threads = Vec::new();
        for (i, ear) in ears.into_iter().enumerate() {
            let next = words[(i + 1) % THREADS].clone();
            threads.push(scope.spawn(move || -> Result<()> {
                let mut started = Vec::new();
                for round in 0..ROUNDS {
                    let salt = ear.recv().expect("the thread before");
                    let len = 1 + salt * 37;
                    let mine = Payload::from_slice(&values::<f32>(rank, salt as u64, len));
                    if (salt + i) % 2 == 0 {
                        started.push((comm.start(sum(), mine), salt, len));
                    } else {
                        let expected = reduced::<f32>(ReduceOp::Sum, n, salt as u64, len);
                        is_bits(comm.run(sum(), mine)?.as_slice()?, &expected, ("run", i, round));
                    }
                    // After the last round the next thread may have ended.
                    let _ = next.send(salt + 1);
                }
                for (pending, salt, len) in started {
                    let expected = reduced::<f32>(ReduceOp::Sum, n, salt as u64, len);
                    is_bits(pending.wait()?.as_slice()?, &expected, ("started", i, salt));
                }
                Ok(())
            }));
        }
        words[0].send(0).expect("the first thread");
        drop(words);
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn a_result_can_be_waited_for_elsewhere(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let started: Vec<_> = (0..8)
        .map(|i| comm.start(sum(), Payload::from_slice(&values::<f32>(rank, i, 5_000))))
        .collect();
    thread::scope(|scope| {
        for (i, pending) in started.into_iter().enumerate() {
            scope.spawn(move || {
                let expected = reduced::<f32>(ReduceOp::Sum, n, i as u64, 5_000);
                let buffer = pending.wait().expect("a sum");
                is_bits(buffer.as_slice().expect("f32"), &expected, ("elsewhere", i));
            });
        }
    });
    comm.barrier()
}

fn completeness_is_told(comm: Comm<'_>) -> Result<()> {
    let mut pending = comm.start(Collective::Barrier, Payload::from_slice::<u8>(&[]));
    while !pending.is_complete() {
        thread::yield_now();
    }
    pending.wait().map(drop)
}

/// One rank starts an operation while another of its threads is in one, and then only asks after it.
/// The rank has rested before, so no thread of the communicator looks at its operations by itself.
/// Both operations are the same, because either thread may be the first.
fn completeness_is_told_while_another_thread_waits(comm: Comm<'_>) -> Result<()> {
    const REST: Duration = Duration::from_millis(40);
    let (rank, n) = (comm.rank(), comm.world_size());
    for asking in 0..n.min(2) {
        thread::sleep(REST);
        if rank != asking {
            comm.recv(&mut [0_u8], asking)?;
            comm.barrier()?;
            comm.barrier()?;
            continue;
        }
        thread::scope(|scope| {
            let waits = scope.spawn(|| comm.barrier());
            // Most likely the other thread has begun its operation by then.
            thread::sleep(Duration::from_millis(2));
            let mut pending = comm.start(Collective::Barrier, Payload::from_slice::<u8>(&[]));
            (0..n).filter(|&to| to != rank).try_for_each(|to| comm.send(&[0_u8], to))?;
            let deadline = Instant::now() + Duration::from_secs(10);
            while !pending.is_complete() {
                assert!(Instant::now() < deadline, "nobody carries out the operation");
                thread::sleep(Duration::from_micros(200));
            }
            pending.wait().map(drop).and(waits.join().expect("no panic"))
        })?;
    }
    Ok(())
}
