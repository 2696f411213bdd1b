//! Messages from one rank to another.

use candelabrum_dist::{Collective, Element, ElementType, Payload, Pending, ReduceOp, Result};
use half::f16;

use super::check::{Comm, is_bits};
use crate::data::values;

pub(super) fn all(comm: Comm<'_>) -> Result<()> {
    messages_around_the_ring(comm)?;
    messages_keep_their_order(comm)?;
    a_message_to_oneself(comm)?;
    messages_of_any_rank(comm)?;
    any_rank_serves_like_a_parameter_server(comm)?;
    receives_may_be_started_before_sends(comm)?;
    started_receives_get_messages_in_the_order_of_their_start(comm)?;
    an_early_receive_holds_nothing_up(comm)?;
    a_message_passes_a_started_collective(comm)
}

/// Every rank sends before it receives: long messages must not block each other.
fn messages_around_the_ring(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    for len in [0, 1, 127, 250_000] {
        let message = Payload::from_slice(&values::<f32>(rank, 9, len));
        let sent = comm.start(Collective::Send { to: next }, message);
        let mut got = vec![0.0; len];
        comm.recv(&mut got, previous)?;
        is_bits(&got, &values::<f32>(previous, 9, len), ("ring", len));
        sent.wait()?;
    }
    Ok(())
}

/// Messages of several types and lengths under way at the same time, between all pairs.
fn messages_keep_their_order(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let others = || (0..n).filter(|&other| other != rank);
    for to in others() {
        comm.send(&values::<f32>(rank, 1, 1_000), to)?;
        comm.send(&values::<u8>(rank, 2, 3), to)?;
        comm.send(&values::<f16>(rank, 3, 0), to)?;
        comm.send(&values::<i32>(rank, 4, 30_000), to)?;
    }
    // A collective may run between a send and its receive.
    comm.barrier()?;
    for from in others() {
        let (mut a, mut b, mut c) = (vec![0_f32; 1_000], [0_u8; 3], vec![0_i32; 30_000]);
        comm.recv(&mut a, from)?;
        is_bits(&a, &values(from, 1, 1_000), ("first message", from));
        comm.recv(&mut b, from)?;
        is_bits(&b, &values(from, 2, 3), ("second message", from));
        comm.recv::<f16>(&mut [], from)?;
        comm.recv(&mut c, from)?;
        is_bits(&c, &values(from, 4, 30_000), ("fourth message", from));
    }
    Ok(())
}

fn a_message_to_oneself(comm: Comm<'_>) -> Result<()> {
    let rank = comm.rank();
    comm.send(&[1_i32, 2], rank)?;
    comm.send(&[3_i32], rank)?;
    let (mut two, mut one) = ([0_i32; 2], [0_i32]);
    comm.recv(&mut two, rank)?;
    comm.recv(&mut one, rank)?;
    assert_eq!((two, one), ([1, 2], [3]));
    Ok(())
}

/// Receives from any rank return each message once, and each sender's messages in their order.
fn messages_of_any_rank(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    const EACH: usize = 5;
    for to in 0..n {
        for i in 0..EACH {
            comm.send(&values::<i64>(rank, i as u64, i * 1_000), to)?;
        }
    }
    let mut next = vec![0; n];
    for _ in 0..n * EACH {
        let (from, message) = comm.recv_any::<i64>()?;
        let i = next[from];
        is_bits(&message, &values::<i64>(from, i as u64, i * 1_000), ("from any", from, i));
        next[from] += 1;
    }
    assert_eq!(next, vec![EACH; n]);
    comm.barrier()
}

/// Rank 0 answers the other ranks' questions in the order of their arrival.
fn any_rank_serves_like_a_parameter_server(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    if rank == 0 {
        for _ in 1..n {
            let (from, question) = comm.recv_any::<f32>()?;
            assert_eq!(question, [from as f32]);
            comm.send(&[10.0 * question[0]], from)?;
        }
    } else {
        comm.send(&[rank as f32], 0)?;
        let mut answer = [0.0_f32];
        comm.recv(&mut answer, 0)?;
        assert_eq!(answer, [10.0 * rank as f32]);
    }
    // A message reports its source also if the receive has named the source.
    comm.send(&[1_u8], rank)?;
    let message = comm.run(Collective::Recv { from: rank }, Payload::zeros(ElementType::U8, 1))?;
    assert_eq!(message.source(), Some(rank));
    assert_eq!(u8::TYPE, message.element_type());
    // No rank may send rank 0 a message of the next case before rank 0 has finished this one.
    comm.barrier()
}

/// MPI's idiom: every rank starts its receive, sends, and waits. The longest messages exceed the
/// length up to which an MPI library sends without a handshake.
fn receives_may_be_started_before_sends(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    for (salt, len) in [0, 1, 1_000, 250_000].into_iter().enumerate() {
        let salt = 20 + salt as u64;
        let received = receive::<f32>(comm, previous, len);
        comm.send(&values::<f32>(rank, salt, len), next)?;
        let received = received.wait()?;
        is_bits(received.as_slice()?, &values::<f32>(previous, salt, len), ("posted", len));
        assert_eq!(received.source(), Some(previous));
    }
    Ok(())
}

fn receive<T: Element>(comm: Comm<'_>, from: usize, len: usize) -> Pending {
    comm.start(Collective::Recv { from }, Payload::zeros(T::TYPE, len))
}

/// Receives from a named rank alternate with receives from any rank. The waits are in reverse
/// order, and the last receive is complete before its wait.
fn started_receives_get_messages_in_the_order_of_their_start(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let any = || comm.start(Collective::RecvAny, Payload::zeros(ElementType::I32, 0));
    let mut started = vec![receive::<i32>(comm, previous, 1), any()];
    started.extend([receive::<i32>(comm, previous, 3), any(), receive::<i32>(comm, previous, 5)]);
    for len in 1..=5 {
        comm.send(&vec![len; len as usize], next)?;
    }
    let mut last = started.pop().expect("five receives");
    while !last.is_complete() {
        std::thread::yield_now();
    }
    started.push(last);
    for (i, pending) in started.into_iter().enumerate().rev() {
        let message = pending.wait()?;
        assert_eq!(message.as_slice::<i32>()?, vec![i as i32 + 1; i + 1]);
        assert_eq!(message.source(), Some(previous));
    }
    // No receive of this case may take a message of the next case.
    comm.barrier()
}

/// Collectives of the world and of groups run while a receive waits.
fn an_early_receive_holds_nothing_up(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
    let turned = comm.split(Some(3), -(rank as i64))?.expect("a colour was given");
    let early = receive::<f32>(comm, previous, 70_000);
    let early_in_group = turned.start(Collective::RecvAny, Payload::zeros(ElementType::F32, 0));
    let bucket = comm
        .start(Collective::AllReduce(ReduceOp::Sum), Payload::from_slice(&vec![1.0_f32; 100_000]));
    comm.barrier()?;
    turned.barrier()?;
    let another = comm.split(Some(4), 0)?.expect("a colour was given");
    assert_eq!(another.all_gather(&[rank as i32])?, (0..n as i32).collect::<Vec<_>>());
    assert!(bucket.wait()?.as_slice::<f32>()?.iter().all(|&sum| sum == n as f32));
    comm.send(&values::<f32>(rank, 31, 70_000), next)?;
    turned.send(&[rank as f32], n - 1 - next)?;
    is_bits(early.wait()?.as_slice()?, &values::<f32>(previous, 31, 70_000), "early");
    let message = early_in_group.wait()?;
    assert_eq!(message.as_slice::<f32>()?, [previous as f32]);
    assert_eq!(message.source(), Some(n - 1 - previous));
    comm.barrier()
}

/// A rank that is late for a collective receives and answers messages before it joins.
fn a_message_passes_a_started_collective(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let late = n - 1;
    let sum = Collective::AllReduce(ReduceOp::Sum);
    let mine = Payload::from_slice(&vec![1_i32; 100_000]);
    if rank != late {
        let started = comm.start(sum, mine);
        comm.send(&[rank as i64], late)?;
        let mut answer = [0_i64];
        comm.recv(&mut answer, late)?;
        assert_eq!(answer, [rank as i64 + 1]);
        assert_eq!(started.wait()?.as_slice::<i32>()?[0], n as i32);
        return Ok(());
    }
    for _ in 1..n {
        let (from, question) = comm.recv_any::<i64>()?;
        comm.send(&[question[0] + 1], from)?;
    }
    assert_eq!(comm.run(sum, mine)?.as_slice::<i32>()?[0], n as i32);
    Ok(())
}
