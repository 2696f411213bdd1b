//! Collectives on the caller's slices, with lengths near the piece sizes of the local backend.

use std::hash::Hasher;

use candelabrum_dist::{Collective, ElementType, Payload, ReduceOp, Result};
use half::{bf16, f16};

use super::check::{Comm, is_bits, operations};
use crate::data::{Value, reduced, values};

/// Bytes of a piece of the local backend, before rounding to whole cache lines for every rank.
const PIECE: usize = 128 * 1024;

/// Up to this number of bytes, of all ranks together, each rank of the local backend computes the
/// whole result for itself.
const LITTLE: usize = 64 * 1024;

pub(super) fn all(comm: Comm<'_>, digest: &mut impl Hasher) -> Result<()> {
    for op in operations::<f32>() {
        around_the_cuts::<f32>(comm, op, digest)?;
    }
    around_the_cuts::<f16>(comm, ReduceOp::Mean, digest)?;
    around_the_cuts::<bf16>(comm, ReduceOp::Sum, digest)?;
    around_the_cuts::<f64>(comm, ReduceOp::Mean, digest)?;
    around_the_cuts::<i32>(comm, ReduceOp::Product, digest)?;
    around_the_cuts::<i64>(comm, ReduceOp::Sum, digest)?;
    around_the_cuts::<u8>(comm, ReduceOp::Max, digest)?;
    for len in [10, 5_000, 80_000] {
        in_other_memory_on_every_rank(comm, len)?;
    }
    one_after_the_other(comm)
}

fn around_the_cuts<T: Value>(comm: Comm<'_>, op: ReduceOp, digest: &mut impl Hasher) -> Result<()> {
    let (rank, n, size) = (comm.rank(), comm.world_size(), size_of::<T>());
    let piece = PIECE / n / 64 * 64 * n / size;
    let little = LITTLE / n / size;
    // The last piece is whole, has one element, or has a cache line for some of the ranks only.
    let lens = [
        little,
        little + 1,
        piece - 1,
        piece,
        piece + 1,
        piece + 64 * (n - 1) / size + 1,
        2 * piece + 1,
        3 * piece,
    ];
    for (len, salt) in lens.into_iter().zip(200..) {
        let mut mine = values::<T>(rank, salt, len);
        comm.all_reduce(&mut mine, op)?;
        is_bits(&mine, &reduced::<T>(op, n, salt, len), ("around the cuts", T::TYPE, op, len, n));
        digest.write(bytemuck::cast_slice(&mine));
    }
    let (root, len) = (n / 2, piece + 1);
    let mut mine = values::<T>(rank, 199, len);
    comm.broadcast(&mut mine, root)?;
    is_bits(&mine, &values::<T>(root, 199, len), ("broadcast around the cuts", T::TYPE, n));
    Ok(())
}

/// One rank passes a slice, another a payload, and a third a buffer of the communicator. Meanwhile
/// an earlier operation is under way on some ranks.
fn in_other_memory_on_every_rank(comm: Comm<'_>, len: usize) -> Result<()> {
    let (rank, n, sum) = (comm.rank(), comm.world_size(), ReduceOp::Sum);
    let expected = reduced::<f32>(sum, n, 210, len);
    for first in 0..3 {
        let mut allocated = comm.alloc(ElementType::F32, len)?;
        let before = comm.start(Collective::AllReduce(sum), Payload::from_slice(&[1_i32; 70_000]));
        let before = if rank % 2 == 0 {
            before.wait()?;
            None
        } else {
            Some(before)
        };
        let mut mine = values::<f32>(rank, 210, len);
        match (rank + first) % 3 {
            0 => comm.all_reduce(&mut mine, sum)?,
            1 => {
                let payload = Payload::from_slice(&mine);
                mine = comm.run(Collective::AllReduce(sum), payload)?.to_vec()?;
            }
            _ => {
                allocated.as_mut_slice()?.copy_from_slice(&mine);
                mine = comm.run(Collective::AllReduce(sum), allocated)?.to_vec()?;
            }
        }
        is_bits(&mine, &expected, ("in other memory", first, len));
        if let Some(before) = before {
            assert_eq!(before.wait()?.as_slice::<i32>()?, vec![n as i32; 70_000]);
        }
    }
    Ok(())
}

/// Short operations of different kinds without a pause: a rank that begins the next operation must
/// not overwrite numbers that a slower rank still reads in the last one.
fn one_after_the_other(comm: Comm<'_>) -> Result<()> {
    let (rank, n) = (comm.rank(), comm.world_size());
    let lens = [1, 40_000, 300, 17_000];
    let inputs = lens.map(|len| values::<i32>(rank, 220, len));
    let sums = lens.map(|len| reduced::<i32>(ReduceOp::Sum, n, 220, len));
    for round in 0..60 {
        let (len, root) = (lens[round % 4], round % n);
        let mut mine = inputs[round % 4].clone();
        comm.all_reduce(&mut mine, ReduceOp::Sum)?;
        is_bits(&mine, &sums[round % 4], ("one after the other", round));
        mine.fill((rank + round) as i32);
        comm.broadcast(&mut mine, root)?;
        assert!(mine.iter().all(|&x| x == (root + round) as i32), "broadcast {round}");
        let gathered = comm.all_gather(&mine[..len.min(50)])?;
        assert!(gathered.iter().all(|&x| x == (root + round) as i32), "all_gather {round}");
        let total = comm.reduce(&inputs[round % 4], ReduceOp::Sum, root)?;
        is_bits(&total, if rank == root { &sums[round % 4] } else { &[] }, ("reduce", round));
        let part = comm.reduce_scatter(&vec![round as i32; n * 30], ReduceOp::Sum)?;
        assert_eq!(part, vec![(n * round) as i32; 30]);
    }
    Ok(())
}
