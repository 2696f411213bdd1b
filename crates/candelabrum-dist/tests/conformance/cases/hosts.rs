//! Ranks of pretended hosts: `CANDELABRUM_HOST` is set for every rank.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use candelabrum_dist::{Collective, ElementType, Mesh, Payload, ReduceOp, Result, World};
use half::f16;

use super::check::{is_bits, operations};
use crate::data::{Value, reduced, values};

/// All cases of this file. `hosts` has one letter for each rank: its host.
pub(crate) fn all(world: &World, hosts: &str) -> Result<u64> {
    let hosts: Vec<char> = hosts.chars().collect();
    let mut digest = DefaultHasher::new();
    groups_of_hosts(world, &hosts)?;
    layered_sums::<f32>(world, &hosts, &mut digest)?;
    layered_sums::<f64>(world, &hosts, &mut digest)?;
    layered_sums::<f16>(world, &hosts, &mut digest)?;
    layered_sums::<i32>(world, &hosts, &mut digest)?;
    scattered_by_hosts::<f32>(world, &hosts)?;
    scattered_by_hosts::<f16>(world, &hosts)?;
    in_the_background(world, &hosts)?;
    everything_else_is_flat(world)?;
    world.comm().barrier()?;
    Ok(digest.finish())
}

/// The hosts in the order of their lowest ranks, with their ranks.
fn by_host(hosts: &[char]) -> Vec<Vec<usize>> {
    let mut known: Vec<(char, Vec<usize>)> = Vec::new();
    for (rank, &host) in hosts.iter().enumerate() {
        match known.iter_mut().find(|(other, _)| *other == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => known.push((host, vec![rank])),
        }
    }
    known.into_iter().map(|(_, ranks)| ranks).collect()
}

fn groups_of_hosts(world: &World, hosts: &[char]) -> Result<()> {
    let rank = world.rank();
    let by_host = by_host(hosts);
    let own = by_host.iter().find(|ranks| ranks.contains(&rank)).expect("every rank has a host");
    assert_eq!(world.host_group()?.ranks(), &own[..]);
    let place = own.iter().position(|&other| other == rank).expect("it is there");
    let across: Vec<usize> = by_host.iter().filter_map(|ranks| ranks.get(place).copied()).collect();
    assert_eq!(world.cross_host_group()?.ranks(), across);
    Ok(())
}

/// The result that `Communicator::hierarchical` documents.
fn expected<T: Value>(op: ReduceOp, hosts: &[char], salt: u64, len: usize) -> Vec<T> {
    let inner = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
    let n = hosts.len();
    let all: Vec<Vec<T>> = (0..n).map(|rank| values(rank, salt, len)).collect();
    let element = |i: usize| {
        let within = |ranks: &Vec<usize>| {
            T::reduce(inner, &ranks.iter().map(|&rank| all[rank][i]).collect::<Vec<_>>())
        };
        let sums: Vec<T> = by_host(hosts).iter().map(within).collect();
        let total = T::reduce(inner, &sums);
        if op == ReduceOp::Mean { T::divided(total, n) } else { total }
    };
    (0..len).map(element).collect()
}

fn layered_sums<T: Value>(world: &World, hosts: &[char], digest: &mut DefaultHasher) -> Result<()> {
    let (rank, n) = (world.rank(), world.world_size());
    let comm = world.hierarchical()?;
    assert_eq!((comm.rank(), comm.world_size()), (rank, n));
    for (salt, len) in [0, 1, 7, 1_000, 90_001].into_iter().enumerate() {
        for op in operations::<T>() {
            let salt = salt as u64;
            let expected = expected::<T>(op, hosts, salt, len);
            let mut mine = values::<T>(rank, salt, len);
            comm.all_reduce(&mut mine, op)?;
            is_bits(&mine, &expected, ("by layers", T::TYPE, op, len, hosts));
            digest.write(bytemuck::cast_slice(&mine));
            let mut allocated = comm.alloc(T::TYPE, len)?;
            allocated.as_mut_slice()?.copy_from_slice(&values::<T>(rank, salt, len));
            let allocated = comm.run(Collective::AllReduce(op), allocated)?;
            is_bits(allocated.as_slice()?, &expected, ("by layers, allocated", T::TYPE, op, len));
        }
    }
    Ok(())
}

/// Each rank gets the part of its place on its host, with the bits of the all-reduce.
fn scattered_by_hosts<T: Value>(world: &World, hosts: &[char]) -> Result<()> {
    let (rank, by_host) = (world.rank(), by_host(hosts));
    let own = by_host.iter().find(|ranks| ranks.contains(&rank)).expect("every rank has a host");
    let comm = world.hierarchical()?;
    assert!(world.comm().replica().is_none(), "the world is not divided");
    let is_even = by_host.iter().all(|ranks| ranks.len() == own.len());
    let replica = comm.replica();
    assert_eq!(replica.is_some(), is_even && world.world_size() > 1, "{hosts:?}");
    let Some(replica) = replica else { return Ok(()) };
    assert_eq!(replica.ranks(), &own[..]);
    let place = replica.rank();
    for (salt, first) in [0, 1, 7, 40_001].into_iter().enumerate() {
        // The part of the last place is empty.
        let parts: Vec<usize> = (0..own.len())
            .map(|place| if place + 1 == own.len() { 0 } else { first + place })
            .collect();
        let parts = if own.len() == 1 { vec![first] } else { parts };
        let (len, start) = (parts.iter().sum(), parts[..place].iter().sum::<usize>());
        let range = start..start + parts[place];
        for op in operations::<T>() {
            let salt = salt as u64 + 20;
            let expected = expected::<T>(op, hosts, salt, len);
            let before = replica.stats();
            let mine = Payload::from_slice(&values::<T>(rank, salt, len)).with_parts(&parts[..])?;
            let result = replica.run(Collective::ReduceScatterV(op), mine)?;
            let own_part = &result.as_slice::<T>()?[range.clone()];
            is_bits(own_part, &expected[range.clone()], ("scattered by hosts", T::TYPE, op, len));
            let mut allocated = replica.alloc(T::TYPE, len)?;
            allocated.as_mut_slice()?.copy_from_slice(&values::<T>(rank, salt, len));
            let allocated = allocated.with_parts(&parts[..])?;
            let result = replica.run(Collective::ReduceScatterV(op), allocated)?;
            let own_part = &result.as_slice::<T>()?[range.clone()];
            is_bits(own_part, &expected[range.clone()], ("scattered by hosts, allocated", op, len));
            if own.len() > 1 {
                let between = if by_host.len() > 1 { range.len() } else { 0 };
                let bytes = |elements: usize| (2 * elements * T::TYPE.size()) as u64;
                let moved = replica.stats() - before;
                assert_eq!(moved.bytes_sent, bytes(len + between), "{op:?} of {len}");
                assert_eq!(moved.bytes_received, bytes(range.len() + between), "{op:?} of {len}");
            }
        }
    }
    // Every other operation is one of this host alone.
    let mut one = [1_i32];
    replica.all_reduce(&mut one, ReduceOp::Sum)?;
    assert_eq!(one, [own.len() as i32]);
    Ok(())
}

fn in_the_background(world: &World, hosts: &[char]) -> Result<()> {
    let (rank, n) = (world.rank(), world.world_size());
    let comm = world.hierarchical()?;
    let before = comm.stats();
    let mean = Collective::AllReduce(ReduceOp::Mean);
    let started: Vec<_> = (0..6)
        .map(|salt| comm.start(mean, Payload::from_slice(&values::<f32>(rank, salt, 20_000))))
        .collect();
    // Every rank calls the world's operation after the started ones.
    let mut one = [1_i32];
    world.comm().all_reduce(&mut one, ReduceOp::Sum)?;
    assert_eq!(one, [n as i32]);
    for (salt, pending) in started.into_iter().enumerate() {
        let expected = expected::<f32>(ReduceOp::Mean, hosts, salt as u64, 20_000);
        is_bits(pending.wait()?.as_slice()?, &expected, ("in the background", salt));
    }
    let moved = comm.stats() - before;
    assert_eq!(moved.bytes_sent, if n == 1 { 0 } else { 6 * 80_000 });
    Ok(())
}

fn everything_else_is_flat(world: &World) -> Result<()> {
    let (rank, n) = (world.rank(), world.world_size());
    let comm = world.hierarchical()?;
    let part = comm.reduce_scatter(&values::<f32>(rank, 5, 10 * n), ReduceOp::Sum)?;
    let whole = reduced::<f32>(ReduceOp::Sum, n, 5, 10 * n);
    is_bits(&part, &whole[rank * 10..(rank + 1) * 10], "reduce_scatter beside layers");
    assert_eq!(comm.all_gather(&[rank as i32])?, (0..n as i32).collect::<Vec<_>>());
    let error =
        comm.hierarchical(&Mesh::new(vec![0; n + 1])).expect_err("one host too many").to_string();
    assert!(error.contains("hierarchical"), "{error}");
    comm.run(Collective::Barrier, Payload::zeros(ElementType::U8, 0)).map(drop)
}
