//! Groups of ranks.

use candelabrum_dist::{Collective, ElementType, Group, Payload, ReduceOp, Result};

use super::check::{Comm, is_bits};
use crate::data::{Value, values};

pub(super) fn all(comm: Comm<'_>) -> Result<()> {
    odd_and_even(comm)?;
    reversed(comm)?;
    some_stay_out(comm)?;
    alone(comm)?;
    groups_of_groups(comm)?;
    used_in_turns(comm)?;
    messages_stay_in_their_group(comm)?;
    dropped_in_any_order(comm)?;
    a_receive_ends_with_its_group(comm)?;
    many_groups_one_after_the_other(comm)
}

/// The reduction of the members' values in the group's order.
fn sum_of<T: Value>(members: &[usize], op: ReduceOp, salt: u64, len: usize) -> Vec<T> {
    let all: Vec<Vec<T>> = members.iter().map(|&rank| values(rank, salt, len)).collect();
    (0..len).map(|i| T::reduce(op, &all.iter().map(|part| part[i]).collect::<Vec<_>>())).collect()
}

/// Runs operations of every kind in a group. `members` are the group's ranks in `comm`.
fn works(comm: Comm<'_>, group: &Group, members: &[usize], salt: u64) -> Result<()> {
    let (me, n) = (comm.rank(), members.len());
    assert_eq!(group.world_size(), n);
    let ranks: Vec<usize> = members.iter().map(|&member| comm.ranks()[member]).collect();
    assert_eq!(group.ranks(), ranks);
    assert_eq!(members[group.rank()], me);
    let rank = group.rank();
    for len in [0, 1, 5 * n, 100_003] {
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product] {
            let mut mine = values::<f32>(me, salt, len);
            group.all_reduce(&mut mine, op)?;
            is_bits(&mine, &sum_of(members, op, salt, len), ("group all_reduce", members, op, len));
        }
        let mut allocated = group.alloc(ElementType::F64, len)?;
        allocated.as_mut_slice()?.copy_from_slice(&values::<f64>(me, salt, len));
        let allocated = group.run(Collective::AllReduce(ReduceOp::Sum), allocated)?;
        let expected = sum_of::<f64>(members, ReduceOp::Sum, salt, len);
        is_bits(allocated.as_slice()?, &expected, ("group, allocated", members, len));
    }
    // The group reduces a buffer that the parent has allocated.
    let mut own = comm.alloc(ElementType::I64, 1_000)?;
    own.as_mut_slice()?.copy_from_slice(&values::<i64>(me, salt, 1_000));
    let own = group.run(Collective::AllReduce(ReduceOp::Sum), own)?;
    let expected = sum_of::<i64>(members, ReduceOp::Sum, salt, 1_000);
    is_bits(own.as_slice()?, &expected, ("the parent's memory", members));

    let all = group.all_gather(&[me as i32])?;
    assert!(all.iter().zip(members).all(|(&got, &member)| got == member as i32), "{all:?}");
    let mut from_last = [me as i64];
    group.broadcast(&mut from_last, n - 1)?;
    assert_eq!(from_last, [members[n - 1] as i64]);
    let parts: Vec<Vec<i32>> = (0..n).map(|to| vec![me as i32; to + rank]).collect();
    let got = group.all_to_all_v(&parts)?;
    assert!((0..n).all(|from| got[from] == vec![members[from] as i32; from + rank]), "{got:?}");
    group.send(&[rank as u8], (rank + 1) % n)?;
    let mut got = [0_u8];
    group.recv(&mut got, (rank + n - 1) % n)?;
    assert_eq!(usize::from(got[0]), (rank + n - 1) % n);
    let stats = group.stats();
    assert!(n == 1 || stats.bytes_sent > 0);
    group.barrier()
}

fn odd_and_even(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let group = comm.split(Some(rank as u64 % 2), 0)?.expect("a colour was given");
    let members: Vec<usize> = (0..n).filter(|other| other % 2 == rank % 2).collect();
    works(comm, &group, &members, 50)
}

/// The keys reverse the order of the ranks, and with it the order of the additions.
fn reversed(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let group = comm.split(Some(u64::MAX), -(rank as i64))?.expect("a colour was given");
    let members: Vec<usize> = (0..n).rev().collect();
    works(comm, &group, &members, 51)
}

fn some_stay_out(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let group = comm.split((rank > 0).then_some(7), rank as i64)?;
    assert_eq!(group.is_some(), rank > 0);
    let members: Vec<usize> = (1..n).collect();
    if let Some(group) = group {
        works(comm, &group, &members, 52)?;
    } else if n > 1 {
        // `works` allocates memory of the parent, and all ranks of the parent must take part.
        comm.alloc(ElementType::I64, 1_000)?;
    }
    assert!(comm.split(None, 3)?.is_none(), "nobody at all");
    comm.barrier()
}

fn alone(comm: Comm<'_>) -> Result<()> {
    let rank = comm.rank();
    let group = comm.split(Some(rank as u64 * 1_000), 5)?.expect("a colour was given");
    works(comm, &group, &[rank], 53)
}

fn groups_of_groups(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let half = comm.split(Some(rank as u64 % 2), -(rank as i64))?.expect("a colour was given");
    let quarter = half.split(Some(half.rank() as u64 / 2), 0)?.expect("a colour was given");
    // The ranks of the half in their order, then the one or two ranks of this quarter.
    let members: Vec<usize> = (0..n).rev().filter(|other| other % 2 == rank % 2).collect();
    let start = half.rank() / 2 * 2;
    let members = &members[start..members.len().min(start + 2)];
    drop(half); // the quarter stays usable
    works(comm, &quarter, members, 54)
}

/// Operations of several groups and the world are under way at the same time.
fn used_in_turns(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let colour = rank as u64 / 2;
    let pair = comm.split(Some(colour), 0)?.expect("a colour was given");
    let turned = comm.split(Some(0), (n - rank) as i64)?.expect("a colour was given");
    let members: Vec<usize> = (0..n).filter(|&other| other as u64 / 2 == colour).collect();
    let everybody: Vec<usize> = (0..n).collect();
    let backwards: Vec<usize> = (0..n).rev().collect();
    let groups: [(Comm<'_>, &[usize]); 3] =
        [(comm, &everybody), (&*pair, &members), (&*turned, &backwards)];
    let sum = Collective::AllReduce(ReduceOp::Sum);
    let mut started = Vec::new();
    for salt in 0..30 {
        let (group, members) = groups[salt % 3];
        let len = [1, 70_000, 333][salt % 4 % 3];
        let mine = Payload::from_slice(&values::<f32>(rank, salt as u64, len));
        started.push((group.start(sum, mine), members, salt, len));
    }
    // The waits are in the reverse order of the starts.
    while let Some((pending, members, salt, len)) = started.pop() {
        let expected = sum_of::<f32>(members, ReduceOp::Sum, salt as u64, len);
        is_bits(pending.wait()?.as_slice()?, &expected, ("in turns", members, salt));
    }
    for _ in 0..20 {
        let all = turned.all_gather(&[rank as i32])?;
        assert!(all.iter().zip(&backwards).all(|(&got, &member)| got == member as i32));
        let pairs = pair.all_gather(&[rank as i32])?;
        assert!(pairs.iter().zip(&members).all(|(&got, &member)| got == member as i32));
    }
    Ok(())
}

fn messages_stay_in_their_group(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let turned = comm.split(Some(1), -(rank as i64))?.expect("a colour was given");
    let me = turned.rank();
    let next = (rank + 1) % n;
    comm.send(&[1_i32], next)?;
    turned.send(&[2_i32], n - 1 - next)?;
    comm.send(&[3_i32], next)?;
    let previous = (rank + n - 1) % n;
    assert_eq!(turned.recv_any::<i32>()?, (n - 1 - previous, vec![2]), "as rank {me}");
    assert_eq!(comm.recv_any::<i32>()?, (previous, vec![1]));
    assert_eq!(comm.recv_any::<i32>()?, (previous, vec![3]));
    comm.barrier()
}

/// Ranks drop their groups in different orders, while operations may be under way.
fn dropped_in_any_order(comm: Comm<'_>) -> Result<()> {
    let rank = comm.rank();
    let group = |colour| comm.split(Some(colour), 0);
    let (a, b, c) = (group(1)?, group(2)?, group(3)?);
    for group in [&a, &b, &c].into_iter().flatten() {
        let sum = Collective::AllReduce(ReduceOp::Sum);
        drop(group.start(sum, Payload::from_slice(&[1_i32; 100])));
    }
    match rank % 3 {
        0 => drop((a, b, c)),
        1 => drop((c, b, a)),
        _ => drop((b, a, c)),
    }
    comm.barrier()
}

/// A receive that was given up takes no message of a later group, which may have the number of the
/// earlier one.
fn a_receive_ends_with_its_group(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for round in 0..8_u8 {
        let group = comm.split(Some(0), 0)?.expect("a colour was given");
        group.send(&[round], (rank + 1) % n)?;
        assert_eq!(group.recv_any::<u8>()?, ((rank + n - 1) % n, vec![round]));
        if rank == 0 {
            drop(group.start(Collective::RecvAny, Payload::zeros(ElementType::U8, 0)));
        }
        group.barrier()?;
        if rank == 0 {
            // All others leave meanwhile, so the receive fails before this rank leaves.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    Ok(())
}

fn many_groups_one_after_the_other(comm: Comm<'_>) -> Result<()> {
    for i in 0..30 {
        let group = comm.split(Some(0), 0)?.expect("a colour was given");
        let mut one = [i];
        group.all_reduce(&mut one, ReduceOp::Max)?;
        assert_eq!(one, [i]);
    }
    Ok(())
}
