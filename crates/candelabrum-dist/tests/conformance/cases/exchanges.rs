//! Collectives in which each pair of ranks exchanges its own data, or ranks send different amounts.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use candelabrum_dist::{Collective, ElementType, Payload, ReduceOp, Result};
use candelabrum_testkit::split_mix;
use half::{bf16, f16};

use super::check::{Comm, is_bits};
use crate::data::{Value, reduced, values};

pub(super) fn all(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    every_type::<f32>(comm, digest)?;
    every_type::<f16>(comm, digest)?;
    every_type::<bf16>(comm, digest)?;
    every_type::<i32>(comm, digest)?;
    every_type::<u8>(comm, digest)?;
    every_type::<f64>(comm, digest)?;
    every_type::<i64>(comm, digest)?;
    a_transposition_twice_is_nothing(comm)?;
    gathering_is_reducing_what_is_disjoint(comm)?;
    only_one_rank_has_something(comm)?;
    allocated_and_other_memory(comm)?;
    parts_must_fit(comm)
}

fn every_type<T: Value>(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    let n = comm.world_size();
    for (salt, len) in [0, 1, 13, 6 * n + 1].into_iter().enumerate() {
        equal_parts::<T>(comm, salt as u64, len, digest)?;
        unequal_parts::<T>(comm, salt as u64, len, digest)?;
    }
    if matches!(T::TYPE, ElementType::F32 | ElementType::U8) {
        equal_parts::<T>(comm, 9, 150_001, digest)?;
        unequal_parts::<T>(comm, 9, 150_001, digest)?;
    }
    Ok(())
}

fn equal_parts<T: Value>(
    comm: Comm<'_>,
    salt: u64,
    len: usize,
    digest: &mut DefaultHasher,
) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let part_of =
        |from: usize, to: usize| values::<T>(from, salt << 4, len * n)[to * len..][..len].to_vec();
    let expected: Vec<T> = (0..n).flat_map(|from| part_of(from, rank)).collect();
    let got = comm.all_to_all(&values::<T>(rank, salt << 4, len * n))?;
    is_bits(&got, &expected, ("all_to_all", T::TYPE, len, rank, n));
    // Each rank has its own result. The results of all ranks together are equal on every rank.
    digest.write(bytemuck::cast_slice(&comm.all_gather(&got)?));

    let mut allocated = comm.alloc(T::TYPE, len * n)?;
    allocated.as_mut_slice()?.copy_from_slice(&values::<T>(rank, salt << 4, len * n));
    let got = comm.run(Collective::AllToAll, allocated)?;
    is_bits(got.as_slice()?, &expected, ("all_to_all of allocated memory", T::TYPE, len, rank, n));
    Ok(())
}

/// The number of elements that one rank sends to another.
fn amount(from: usize, to: usize, len: usize) -> usize {
    split_mix((from * 31 + to) as u64) as usize % (len + 1)
}

fn unequal_parts<T: Value>(
    comm: Comm<'_>,
    salt: u64,
    len: usize,
    digest: &mut DefaultHasher,
) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let part =
        |from: usize, to: usize| values::<T>(from, salt << 8 | to as u64, amount(from, to, len));
    let sent: Vec<Vec<T>> = (0..n).map(|to| part(rank, to)).collect();
    let got = comm.all_to_all_v(&sent)?;
    assert_eq!(got.len(), n);
    for (from, got) in got.iter().enumerate() {
        is_bits(got, &part(from, rank), ("all_to_all_v", T::TYPE, len, from, rank));
    }
    let all = comm.all_gather_v(&got.concat())?;
    for (other, got) in all.iter().enumerate() {
        let expected: Vec<T> = (0..n).flat_map(|from| part(from, other)).collect();
        is_bits(got, &expected, ("all_gather_v", T::TYPE, len, other));
        digest.write(bytemuck::cast_slice(got));
    }
    Ok(())
}

fn a_transposition_twice_is_nothing(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let mine = values::<f32>(rank, 3, 700 * n);
    is_bits(&comm.all_to_all(&comm.all_to_all(&mine)?)?, &mine, "all_to_all twice");
    let parts: Vec<Vec<i64>> =
        (0..n).map(|to| values(rank, to as u64, amount(rank, to, 500))).collect();
    assert_eq!(comm.all_to_all_v(&comm.all_to_all_v(&parts)?)?, parts);
    Ok(())
}

fn gathering_is_reducing_what_is_disjoint(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let mine = values::<i32>(rank, 11, 33);
    let mut disjoint = vec![0_i32; 33 * n];
    disjoint[rank * 33..(rank + 1) * 33].copy_from_slice(&mine);
    for root in 0..n {
        let gathered = comm.gather(&mine, root)?;
        assert_eq!(comm.reduce(&disjoint, ReduceOp::Sum, root)?, gathered);
    }
    // The sum of the parts that a rank receives in an all-to-all is its part of a reduce-scatter.
    let whole = values::<f32>(rank, 12, 40 * n);
    let parts = comm.all_to_all(&whole)?;
    let sum = |i: usize| parts.chunks(40).map(|part| part[i]).reduce(|a, b| a + b);
    let sums: Vec<f32> = (0..40).filter_map(sum).collect();
    is_bits(&comm.reduce_scatter(&whole, ReduceOp::Sum)?, &sums, "all_to_all, sums");
    Ok(())
}

fn only_one_rank_has_something(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for who in 0..n {
        let mine = if rank == who { values::<u8>(who, 2, 300_000) } else { Vec::new() };
        let all = comm.all_gather_v(&mine)?;
        for (other, got) in all.iter().enumerate() {
            is_bits(got, if other == who { &all[who] } else { &[] }, ("one of all", who));
        }
        is_bits(&all[who], &values::<u8>(who, 2, 300_000), ("the one", who));
        let parts: Vec<Vec<u8>> =
            (0..n).map(|_| if rank == who { vec![7; 3] } else { vec![] }).collect();
        let got = comm.all_to_all_v(&parts)?;
        assert!((0..n).all(|from| got[from] == if from == who { &[7_u8; 3][..] } else { &[] }));
    }
    Ok(())
}

/// The ranks of a collective may use different kinds of memory and different allocations.
fn allocated_and_other_memory(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for len in [12 * n, 90_000 * n] {
        let mine = values::<f32>(rank, 21, len);
        let expected = reduced::<f32>(ReduceOp::Mean, n, 21, len);
        let mut two = [comm.alloc(ElementType::F32, len)?, comm.alloc(ElementType::F32, len)?];
        for buffer in &mut two {
            buffer.as_mut_slice()?.copy_from_slice(&mine);
        }
        let [one, other] = two;
        let mean = ReduceOp::Mean;
        // A rank reduces the first allocation, the second one, or memory of the heap.
        let buffer = match rank % 3 {
            0 => one,
            1 => other,
            _ => Payload::from_slice(&mine),
        };
        let mut buffer = comm.run(Collective::AllReduce(mean), buffer)?;
        is_bits(buffer.as_slice()?, &expected, ("mixed memory", len));
        buffer.as_mut_slice()?.copy_from_slice(&mine);
        let part = comm.run(Collective::ReduceScatter(mean), buffer)?;
        let own = rank * (len / n)..(rank + 1) * (len / n);
        is_bits(part.as_slice()?, &expected[own.clone()], ("mixed memory, scattered", len));

        // All ranks use one allocation, so each rank reads the others' numbers in place.
        let fresh = || -> Result<Payload> {
            let mut buffer = comm.alloc(ElementType::F32, len)?;
            buffer.as_mut_slice()?.copy_from_slice(&mine);
            Ok(buffer)
        };
        let everything: Vec<f32> = (0..n).flat_map(|r| values::<f32>(r, 21, len)).collect();
        let part = comm.run(Collective::ReduceScatter(mean), fresh()?)?;
        is_bits(part.as_slice()?, &expected[own], ("allocated, scattered", len));
        let all = comm.run(Collective::AllGather, fresh()?)?;
        is_bits(all.as_slice()?, &everything, ("allocated, gathered", len));
        let all = comm.run(Collective::AllGatherV, fresh()?)?;
        assert_eq!(all.parts(), Some(&*vec![len; n]));
        is_bits(all.as_slice()?, &everything, ("allocated, gathered by lengths", len));
        let root = n - 1;
        let total = comm.run(Collective::Reduce { op: mean, root }, fresh()?)?;
        let at_root = |all| if rank == root { all } else { &[][..] };
        is_bits(total.as_slice()?, at_root(&*expected), ("allocated, reduced to one", len));
        let all = comm.run(Collective::Gather { root }, fresh()?)?;
        is_bits(all.as_slice()?, at_root(&*everything), ("allocated, gathered to one", len));
        let part = comm.run(Collective::Scatter { root }, fresh()?)?;
        let theirs = &values::<f32>(root, 21, len)[rank * (len / n)..][..len / n];
        is_bits(part.as_slice()?, theirs, ("allocated, scattered by one", len));
        let lens = vec![len / n; n];
        let all = comm.run(Collective::AllToAllV, fresh()?.with_parts(lens)?)?;
        is_bits(all.as_slice::<f32>()?, &comm.all_to_all(&mine)?, ("allocated, cut", len));
    }
    Ok(())
}

fn parts_must_fit(comm: Comm<'_>) -> Result<()> {
    let n = comm.world_size();
    let buffer = || Payload::from_slice(&vec![0_f32; 2 * n]);
    assert!(buffer().with_parts(vec![1; n]).is_err(), "half of it");
    let uncut = comm.run(Collective::AllToAllV, buffer()).expect_err("it was not cut");
    assert!(uncut.to_string().contains("with_parts"), "{uncut}");
    let cut = buffer().with_parts(vec![2 * n, 0])?;
    if n != 2 {
        let error = comm.run(Collective::AllToAllV, cut).expect_err("two parts");
        assert!(error.to_string().contains(&format!("2 parts for {n} ranks")), "{error}");
    }
    let error = comm.reduce(&[1_i32], ReduceOp::Mean, 0).expect_err("a mean of integers");
    assert!(error.to_string().contains("mean"), "{error}");
    comm.barrier()
}
