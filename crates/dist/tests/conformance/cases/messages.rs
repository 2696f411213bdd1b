//! Messages of one rank to another.

use candelabrum_dist::{Collective, Element, ElementType, Payload, Result};
use half::f16;

use super::{Comm, is_bits};
use crate::data::values;

/// All cases of this file.
pub(super) fn all(comm: Comm<'_>) -> Result<()> {
    messages_around_the_ring(comm)?;
    messages_keep_their_order(comm)?;
    a_message_to_oneself(comm)?;
    messages_of_any_rank(comm)?;
    any_rank_serves_like_a_parameter_server(comm)
}

/// Everybody sends before anybody receives: long messages must not block each other.
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
    // A collective may come between sending and receiving.
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

/// Whoever has sent: each rank's messages in their order, every one once.
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

/// Asked by rank and answered by rank, beside messages that are received by name.
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
    // A message says where it came from also where that was asked for.
    comm.send(&[1_u8], rank)?;
    let message = comm.run(Collective::Recv { from: rank }, Payload::zeros(ElementType::U8, 1))?;
    assert_eq!(message.source(), Some(rank));
    assert_eq!(u8::TYPE, message.element_type());
    Ok(())
}
