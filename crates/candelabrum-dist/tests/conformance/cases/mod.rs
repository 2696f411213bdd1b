//! The cases that every communicator must pass. All ranks of a world call each case together. Each
//! result is compared with a sequential one, bit by bit, because all backends add in rank order.

mod check;
mod exchanges;
mod groups;
pub(crate) mod hosts;
mod messages;
mod slices;
mod threads;

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use std::time::Duration;

use candelabrum_dist::{Collective, ElementType, Payload, Pending, ReduceOp, Result};
use candelabrum_testkit::split_mix;
use half::{bf16, f16};

use self::check::{ANY_ORDER, operations};
pub(crate) use self::check::{Comm, is_bits};
use crate::data::{Value, reduced, values};

/// Runs every case. Returns a digest of all results, which must not depend on rank or backend.
pub(crate) fn all(comm: Comm<'_>) -> Result<u64> {
    // NCCL chooses the order of its additions itself.
    ANY_ORDER.store(comm.backend() == "nccl", Ordering::Relaxed);
    let mut digest = DefaultHasher::new();
    every_collective::<f32>(comm, &mut digest)?;
    every_collective::<f16>(comm, &mut digest)?;
    every_collective::<bf16>(comm, &mut digest)?;
    every_collective::<i32>(comm, &mut digest)?;
    every_collective::<u8>(comm, &mut digest)?;
    every_collective::<f64>(comm, &mut digest)?;
    every_collective::<i64>(comm, &mut digest)?;
    long_buffers(comm, &mut digest)?;
    slices::all(comm, &mut digest)?;
    identities(comm)?;
    not_a_number_stays(comm)?;
    many_at_once(comm, &mut digest)?;
    a_random_programme(comm, &mut digest)?;
    messages::all(comm)?;
    exchanges::all(comm, &mut digest)?;
    groups::all(comm)?;
    threads::all(comm)?;
    texts(comm)?;
    counted_bytes(comm)?;
    refusals_leave_the_world_usable(comm)?;
    an_early_rank_waits_without_harm(comm)?;
    nothing_named_is_shared(comm);
    let digest = digest.finish();
    let all = comm.all_gather(&digest.to_le_bytes())?;
    assert!(all.chunks(8).all(|other| other == digest.to_le_bytes()), "ranks differ");
    comm.barrier()?;
    Ok(digest)
}

/// A few operations of each kind, for worlds in which all cases would take long.
pub(crate) fn many(comm: Comm<'_>) -> Result<u64> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let mut digest = DefaultHasher::new();
    let len = 3 * n + 1;
    for op in operations::<f32>() {
        let mut mine = values::<f32>(rank, 1, len);
        comm.all_reduce(&mut mine, op)?;
        is_bits(&mine, &reduced::<f32>(op, n, 1, len), ("all_reduce of many", op));
        digest.write(bytemuck::cast_slice(&mine));
    }
    let mut allocated = comm.alloc(ElementType::F32, 100 * len)?;
    allocated.as_mut_slice()?.copy_from_slice(&values::<f32>(rank, 2, 100 * len));
    let allocated = comm.run(Collective::AllReduce(ReduceOp::Sum), allocated)?;
    let expected = reduced::<f32>(ReduceOp::Sum, n, 2, 100 * len);
    is_bits(allocated.as_slice()?, &expected, "all_reduce of many in place");
    moves::<i32>(comm, n - 1, 3, len, &mut comm.alloc(ElementType::I32, len)?)?;

    comm.send(&[rank as i32], (rank + 1) % n)?;
    let mut got = [0];
    comm.recv(&mut got, (rank + n - 1) % n)?;
    assert_eq!(got, [((rank + n - 1) % n) as i32]);
    let group = comm.split(Some(rank as u64 % 4), 0)?.expect("every rank has a group");
    let sum: i32 = group.all_gather(&[rank as i32])?.iter().sum();
    assert_eq!(sum, (rank % 4..n).step_by(4).sum::<usize>() as i32);
    comm.barrier()?;
    Ok(digest.finish())
}

/// Buffers so long that each rank's part exceeds one piece of the MPI backend on one host.
pub(crate) fn long(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let len = 6_000_002 / n * n;
    let value = |rank: usize, i: usize| ((rank + 1) * (i % 1_009)) as f32;
    let sum = |i: usize| value(n * (n + 1) / 2 - 1, i);
    let mine: Vec<f32> = (0..len).map(|i| value(rank, i)).collect();
    let is = |got: &[f32], start: usize, expected: &dyn Fn(usize) -> f32, what: &str| {
        let wrong = (start..).zip(got).find(|&(i, &x)| x != expected(i));
        assert_eq!(wrong, None, "{what} of {len} numbers");
    };
    let mut numbers = mine.clone();
    comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
    is(&numbers, 0, &sum, "all_reduce");
    let part = comm.reduce_scatter(&mine, ReduceOp::Sum)?;
    is(&part, rank * (len / n), &sum, "reduce_scatter");
    let root = n - 1;
    let total = comm.reduce(&mine, ReduceOp::Sum, root)?;
    assert_eq!(total.len(), if rank == root { len } else { 0 });
    is(&total, 0, &sum, "reduce");
    numbers.copy_from_slice(&mine);
    comm.broadcast(&mut numbers, root)?;
    is(&numbers, 0, &|i| value(root, i), "broadcast");
    Ok(())
}

/// Every collective of one element type, with awkward lengths.
fn every_collective<T: Value>(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let mut salt = 1;
    for len in [0, 1, 127, 4 * n + 1, 6 * n] {
        for op in operations::<T>() {
            salt += 1;
            let what = (T::TYPE, op, len, rank, n);
            let expected = reduced::<T>(op, n, salt, len);
            let mut mine = values::<T>(rank, salt, len);
            comm.all_reduce(&mut mine, op)?;
            is_bits(&mine, &expected, ("all_reduce", what));
            digest.write(bytemuck::cast_slice(&mine));

            let whole = reduced::<T>(op, n, salt, len * n);
            let part = comm.reduce_scatter(&values::<T>(rank, salt, len * n), op)?;
            is_bits(&part, &whole[rank * len..(rank + 1) * len], ("reduce_scatter", what));

            in_parts::<T>(comm, op, salt, len, Memory::Heap)?;

            let root = salt as usize % n;
            let total = comm.reduce(&values::<T>(rank, salt, len), op, root)?;
            is_bits(&total, if rank == root { &expected } else { &[] }, ("reduce", what));
        }
        let mut allocated = comm.alloc(T::TYPE, len)?;
        assert!(bytemuck::cast_slice::<T, u8>(allocated.as_slice()?).iter().all(|&b| b == 0));
        for op in operations::<T>() {
            salt += 1;
            allocated.as_mut_slice()?.copy_from_slice(&values::<T>(rank, salt, len));
            allocated = comm.start(Collective::AllReduce(op), allocated).wait()?;
            let expected = reduced::<T>(op, n, salt, len);
            is_bits(allocated.as_slice()?, &expected, ("all_reduce in place", T::TYPE, op, len));
            in_parts::<T>(comm, op, salt, len, Memory::Allocated)?;
        }
        for root in 0..n {
            salt += 1;
            moves::<T>(comm, root, salt, len, &mut allocated)?;
        }
        let everything: Vec<T> = (0..n).flat_map(|r| values::<T>(r, salt, len)).collect();
        let gathered = comm.all_gather(&values::<T>(rank, salt, len))?;
        is_bits(&gathered, &everything, ("all_gather", T::TYPE, len));
    }
    Ok(())
}

/// The memory of a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Heap,
    Allocated,
}

/// A reduce-scatter and an all-gather of `len` elements by parts of different lengths, in place. Some ranks' parts are
/// empty.
fn in_parts<T: Value>(
    comm: Comm<'_>,
    op: ReduceOp,
    salt: u64,
    len: usize,
    memory: Memory,
) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let cut = |rank: usize| len * (rank * rank % (n + 1)).min(rank) / n.max(1);
    let mut cuts: Vec<usize> = (0..n).map(cut).collect();
    cuts.sort_unstable();
    cuts.push(len);
    cuts[0] = 0;
    let parts: Vec<usize> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let own = cuts[rank]..cuts[rank + 1];
    let what = (T::TYPE, op, len, &parts, memory);
    let mine = values::<T>(rank, salt, len);
    let expected = reduced::<T>(op, n, salt, len);
    let mut payload = match memory {
        Memory::Heap => {
            let part = comm.reduce_scatter_v(&mine, &parts, op)?;
            is_bits(&part, &expected[own.clone()], ("reduce_scatter_v of a slice", what));
            Payload::from_slice(&mine)
        }
        Memory::Allocated => comm.alloc(T::TYPE, len)?,
    };
    payload.as_mut_slice()?.copy_from_slice(&mine);
    let payload = payload.with_parts(&*parts)?;
    let mut payload = comm.start(Collective::ReduceScatterV(op), payload).wait()?;
    is_bits(&payload.as_slice::<T>()?[own.clone()], &expected[own.clone()], ("parts", what));
    // What the other parts have now is no rank's business.
    let kept = payload.as_slice::<T>()?[own.clone()].to_vec();
    payload.as_mut_slice()?.copy_from_slice(&mine);
    payload.as_mut_slice()?[own].copy_from_slice(&kept);
    let payload = payload.with_parts(&*parts)?;
    let payload = comm.start(Collective::AllGatherInPlace, payload).wait()?;
    is_bits(payload.as_slice()?, &expected, ("all_gather_in_place", what));
    let mut gathered = mine;
    gathered[cuts[rank]..cuts[rank + 1]].copy_from_slice(&kept);
    comm.all_gather_in_place(&mut gathered, &parts)?;
    is_bits(&gathered, &expected, ("all_gather_in_place of a slice", what));
    Ok(())
}

/// The collectives that have a root.
fn moves<T: Value>(
    comm: Comm<'_>,
    root: usize,
    salt: u64,
    len: usize,
    allocated: &mut Payload,
) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let what = (T::TYPE, root, len, rank, n);
    let roots = values::<T>(root, salt, len);
    let mut mine = values::<T>(rank, salt, len);
    comm.broadcast(&mut mine, root)?;
    is_bits(&mine, &roots, ("broadcast", what));
    comm.broadcast(&mut mine, root)?;
    is_bits(&mine, &roots, ("broadcast twice", what));

    allocated.as_mut_slice()?.copy_from_slice(&values::<T>(rank, salt, len));
    let buffer = std::mem::replace(allocated, Payload::zeros(T::TYPE, 0));
    *allocated = comm.start(Collective::Broadcast { root }, buffer).wait()?;
    is_bits(allocated.as_slice()?, &roots, ("broadcast in place", what));

    let everything: Vec<T> = (0..n).flat_map(|r| values::<T>(r, salt, len)).collect();
    let gathered = comm.gather(&values::<T>(rank, salt, len), root)?;
    is_bits(&gathered, if rank == root { &everything } else { &[] }, ("gather", what));

    // The input of all ranks but the root is ignored, even its length.
    let input = if rank == root { everything.clone() } else { values(rank, salt, rank) };
    let part = comm.scatter(&input, root)?;
    is_bits(&part, &values::<T>(rank, salt, len), ("scatter", what));
    let back = comm.gather(&part, root)?;
    is_bits(&back, if rank == root { &everything } else { &[] }, ("scatter, gather", what));
    Ok(())
}

/// Buffers longer than one piece of any backend, on the heap and allocated by the communicator.
fn long_buffers(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    fn one<T: Value>(comm: Comm<'_>, len: usize, digest: &mut DefaultHasher) -> Result<()> {
        let (rank, n) = (comm.rank(), comm.world_size());
        let expected = reduced::<T>(ReduceOp::Sum, n, 77, len);
        let mine = values::<T>(rank, 77, len);
        let mut heap = mine.clone();
        comm.all_reduce(&mut heap, ReduceOp::Sum)?;
        is_bits(&heap, &expected, ("long", T::TYPE, len));
        digest.write(bytemuck::cast_slice(&heap));
        let mut allocated = comm.alloc(T::TYPE, len)?;
        allocated.as_mut_slice()?.copy_from_slice(&mine);
        let sum = Collective::AllReduce(ReduceOp::Sum);
        let allocated = comm.start(sum, allocated).wait()?;
        is_bits(allocated.as_slice()?, &expected, ("long in place", T::TYPE, len));

        in_parts::<T>(comm, ReduceOp::Sum, 77, len, Memory::Heap)?;
        in_parts::<T>(comm, ReduceOp::Sum, 77, len, Memory::Allocated)?;
        let even = len / n * n;
        let part = comm.reduce_scatter(&mine[..even], ReduceOp::Sum)?;
        let own = rank * (even / n)..(rank + 1) * (even / n);
        is_bits(&part, &expected[own], ("long reduce_scatter", T::TYPE));
        let everything: Vec<T> = (0..n).flat_map(|r| values::<T>(r, 77, len)).collect();
        is_bits(&comm.all_gather(&mine)?, &everything, ("long all_gather", T::TYPE));
        let root = n - 1;
        let gathered = comm.gather(&mine, root)?;
        is_bits(&gathered, if rank == root { &everything } else { &[] }, "long gather");
        is_bits(&comm.scatter(&gathered, root)?, &mine, "long scatter");
        let mut broadcast = mine;
        comm.broadcast(&mut broadcast, root)?;
        is_bits(&broadcast, &values::<T>(root, 77, len), "long broadcast");
        Ok(())
    }
    one::<f32>(comm, 300_007, digest)?;
    one::<f16>(comm, 200_003, digest)?;
    one::<u8>(comm, 1_000_003, digest)
}

/// Different collectives that must give equal bits.
fn identities(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for (len, op) in [(8 * n, ReduceOp::Sum), (9_000 * n, ReduceOp::Mean), (n, ReduceOp::Max)] {
        let mine = values::<f32>(rank, 5, len);
        let parts = comm.all_gather(&comm.reduce_scatter(&mine, op)?)?;
        let mut whole = mine.clone();
        comm.all_reduce(&mut whole, op)?;
        is_bits(&parts, &whole, ("reduce_scatter, all_gather", op, len));
        // The same numbers give the same bits in any position, length and memory.
        let mut shifted = vec![1.0; len + 3];
        shifted[3..].copy_from_slice(&mine);
        comm.all_reduce(&mut shifted, op)?;
        is_bits(&shifted[3..], &whole, ("shifted all_reduce", op, len));
    }
    Ok(())
}

fn not_a_number_stays(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for op in ReduceOp::ALL {
        for len in [3, 20_000] {
            // Every rank spoils one element of its own, and all leave the last one alone.
            let spoil = |mine: &mut [f32]| mine[rank % 2] = f32::NAN;
            let mut mine = vec![1.5; len];
            spoil(&mut mine);
            comm.all_reduce(&mut mine, op)?;
            assert!(mine[0].is_nan() && (n == 1 || mine[1].is_nan()), "{op:?} forgets NaN");
            let sum = match op {
                ReduceOp::Sum => 1.5 * n as f32,
                ReduceOp::Product => 1.5_f32.powi(n as i32),
                _ => 1.5,
            };
            assert_eq!(mine[len - 1], sum, "{op:?}");
            let mut half = vec![f16::from_f32(1.5); len];
            half[rank % 2] = f16::NAN;
            comm.all_reduce(&mut half, op)?;
            assert!(half[0].is_nan(), "{op:?} of f16 forgets NaN");
        }
    }
    let mut mine = [f32::INFINITY, if rank == 0 { f32::NEG_INFINITY } else { 1.0 }];
    comm.all_reduce(&mut mine, ReduceOp::Sum)?;
    assert_eq!(mine, [f32::INFINITY, f32::NEG_INFINITY]);
    Ok(())
}

/// Several operations are started before the first wait. The waits are in reverse order.
fn many_at_once(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let lens = [10, 40_000, 0, 1, 1_003, 70_001];
    let mut started: Vec<(usize, Pending)> = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        let mine = values::<f32>(rank, 30 + i as u64, len);
        let buffer = match i % 2 {
            0 => Payload::from_slice(&mine),
            _ => {
                let mut buffer = comm.alloc(ElementType::F32, len)?;
                buffer.as_mut_slice()?.copy_from_slice(&mine);
                buffer
            }
        };
        started.push((i, comm.start(Collective::AllReduce(ReduceOp::Mean), buffer)));
    }
    while let Some((i, pending)) = started.pop() {
        let buffer = pending.wait()?;
        let expected = reduced::<f32>(ReduceOp::Mean, n, 30 + i as u64, lens[i]);
        is_bits(buffer.as_slice()?, &expected, ("at once", i));
        digest.write(bytemuck::cast_slice(buffer.as_slice::<f32>()?));
    }
    // An operation runs even if nobody waits for it.
    drop(comm.start(Collective::AllReduce(ReduceOp::Sum), Payload::from_slice(&[1_i32])));
    let mut one = [1_i32];
    comm.all_reduce(&mut one, ReduceOp::Sum)?;
    assert_eq!(one, [n as i32]);
    Ok(())
}

/// A long sequence of pseudo-random operations.
fn a_random_programme(comm: Comm<'_>, digest: &mut DefaultHasher) -> Result<()> {
    fn step<T: Value>(comm: Comm<'_>, bits: u64, digest: &mut DefaultHasher) -> Result<()> {
        let (rank, n) = (comm.rank(), comm.world_size());
        let len = (bits >> 8) as usize % 3000;
        let salt = bits >> 40;
        let op = operations::<T>()[(bits >> 20) as usize % operations::<T>().len()];
        match bits >> 4 & 3 {
            0 => {
                let mut mine = values::<T>(rank, salt, len);
                comm.all_reduce(&mut mine, op)?;
                is_bits(&mine, &reduced::<T>(op, n, salt, len), ("random", bits));
                digest.write(bytemuck::cast_slice(&mine));
            }
            1 => {
                let part = comm.reduce_scatter(&values::<T>(rank, salt, len * n), op)?;
                let expected = &reduced::<T>(op, n, salt, len * n)[rank * len..(rank + 1) * len];
                is_bits(&part, expected, ("random", bits));
            }
            2 => {
                let mut mine = values::<T>(rank, salt, len);
                let root = (bits >> 30) as usize % n;
                comm.broadcast(&mut mine, root)?;
                is_bits(&mine, &values::<T>(root, salt, len), ("random", bits));
            }
            _ => {
                let everything: Vec<T> = (0..n).flat_map(|r| values::<T>(r, salt, len)).collect();
                let gathered = comm.all_gather(&values::<T>(rank, salt, len))?;
                is_bits(&gathered, &everything, ("random", bits));
            }
        }
        Ok(())
    }
    for i in 0..60 {
        let bits = split_mix(1_000 + i);
        match bits & 7 {
            0 => step::<f16>(comm, bits, digest)?,
            1 => step::<bf16>(comm, bits, digest)?,
            2 => step::<i32>(comm, bits, digest)?,
            3 => step::<u8>(comm, bits, digest)?,
            _ => step::<f32>(comm, bits, digest)?,
        }
    }
    Ok(())
}

fn texts(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let text_of = |rank: usize| "né ".repeat(rank * 7 % 5);
    let expected: Vec<String> = (0..n).map(text_of).collect();
    assert_eq!(comm.all_gather_text(&text_of(rank))?, expected);
    assert_eq!(comm.all_gather_text("")?, vec![""; n]);
    for root in 0..n {
        assert_eq!(comm.broadcast_text(&text_of(rank), root)?, text_of(root));
    }
    let long = "x".repeat(100_000);
    assert_eq!(comm.broadcast_text(if rank == 0 { &long } else { "short" }, 0)?, long);
    Ok(())
}

/// The numbers of bytes are those that `CommStats` documents.
fn counted_bytes(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size() as u64);
    let others = n - 1;
    let alone = |sent: u64, received: u64| if n == 1 { (0, 0) } else { (sent, received) };
    let check = |what: &str, (sent, received): (u64, u64), run: &dyn Fn() -> Result<()>| {
        let before = comm.stats();
        run()?;
        let moved = comm.stats() - before;
        assert_eq!((moved.bytes_sent, moved.bytes_received), (sent, received), "{what}");
        Result::Ok(())
    };
    let len = 12 * n as usize;
    let bytes = 4 * len as u64;
    let ones = vec![1.0_f32; len];
    let at_root = |yes, no| if rank == 0 { yes } else { no };
    let sum = ReduceOp::Sum;
    check("all_reduce", alone(bytes, bytes), &|| comm.all_reduce(&mut ones.clone(), sum))?;
    check("all_gather", alone(bytes, others * bytes), &|| comm.all_gather(&ones).map(drop))?;
    let scattered = alone(bytes, bytes / n);
    check("reduce_scatter", scattered, &|| comm.reduce_scatter(&ones, sum).map(drop))?;
    // Rank r has r + 1 parts of the whole.
    let piece = 24 * n as usize;
    let parts: Vec<usize> = (1..=n as usize).map(|part| part * piece).collect();
    let whole = parts.iter().sum::<usize>();
    let (own, all) = (4 * parts[rank] as u64, 4 * whole as u64);
    let many = vec![1.0_f32; whole];
    let by_parts = &|| comm.reduce_scatter_v(&many, &parts, sum).map(drop);
    check("reduce_scatter_v", alone(all, own), by_parts)?;
    check("all_gather_in_place", alone(own, all - own), &|| {
        comm.all_gather_in_place(&mut many.clone(), &parts)
    })?;
    let broadcast = at_root(alone(bytes, 0), alone(0, bytes));
    check("broadcast", broadcast, &|| comm.broadcast(&mut ones.clone(), 0))?;
    let gather = at_root(alone(0, others * bytes), alone(bytes, 0));
    check("gather", gather, &|| comm.gather(&ones, 0).map(drop))?;
    let scatter = at_root(alone(others * bytes / n, 0), alone(0, bytes / n));
    check("scatter", scatter, &|| comm.scatter(&ones, 0).map(drop))?;
    check("barrier", (0, 0), &|| comm.barrier())?;
    check("messages", (bytes, bytes), &|| {
        let to = (rank + 1) % n as usize;
        comm.send(&ones, to)?;
        comm.recv(&mut ones.clone(), (rank + n as usize - 1) % n as usize)
    })
}

/// A request that is invalid by itself returns an error at once and has no other effect.
fn refusals_leave_the_world_usable(comm: Comm<'_>) -> Result<()> {
    let n = comm.world_size();
    let refused = |result: Result<()>, parts: &[&str]| {
        let message = result.expect_err("a request that cannot be carried out").to_string();
        for part in parts {
            assert!(message.contains(part), "`{message}` does not say `{part}`");
        }
    };
    let out_of_range = [format!("no rank {n}"), format!("world of {n}")];
    let out_of_range = [&*out_of_range[0], &*out_of_range[1]];
    refused(comm.all_reduce(&mut [1_i32], ReduceOp::Mean), &["mean", "i32"]);
    refused(comm.all_reduce(&mut [1_u8], ReduceOp::Mean), &["mean", "u8"]);
    refused(comm.broadcast(&mut [1_u8], n), &out_of_range);
    refused(comm.send(&[1_u8], n), &out_of_range);
    refused(comm.recv(&mut [1_u8], n), &out_of_range);
    refused(comm.gather(&[1_u8], n).map(drop), &out_of_range);
    if n > 1 {
        let odd = vec![1_u8; n + 1];
        let parts = ["reduce_scatter", "divide"];
        refused(comm.reduce_scatter(&odd, ReduceOp::Sum).map(drop), &parts);
        let parts = ["reduce_scatter_v", "1 parts"];
        refused(comm.reduce_scatter_v(&odd, &[n + 1], ReduceOp::Sum).map(drop), &parts);
    }
    let pending = comm.start(Collective::Broadcast { root: 0 }, Payload::from_slice(&[1_i32]));
    assert!(pending.wait()?.as_slice::<f32>().is_err(), "i32 are not f32");
    comm.barrier()
}

/// One rank is late by much longer than a rank spins while it waits.
fn an_early_rank_waits_without_harm(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    for late in 0..n {
        if rank == late {
            std::thread::sleep(Duration::from_millis(60));
        }
        let mut ones = vec![1_i32; 50_000];
        comm.all_reduce(&mut ones, ReduceOp::Sum)?;
        assert!(ones.iter().all(|&x| x == n as i32));
    }
    Ok(())
}

/// The local backend's memory has no name in a file system, because a name outlives a killed rank.
fn nothing_named_is_shared(comm: Comm<'_>) {
    if comm.backend() == "local" {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process's memory map");
        let named = maps.lines().find(|line| line.contains("/dev/shm/"));
        assert!(named.is_none(), "{named:?}");
    }
}
