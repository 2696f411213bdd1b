//! The cases of announced operations: their results, how often ranks exchange headers, and a rank
//! that does not do what it has announced.

use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{
    Announcement, Collective, Communicator, ElementType, Error, Payload, Pending, ReduceOp, Result,
    World,
};
use candelabrum_testkit::SpanCount;
use rustix::process::Signal;

use crate::device::on_device;
use crate::faults::kill_soon;

type Comm<'a> = &'a (dyn Communicator + 'static);

pub(crate) fn run(case: &str, world: &World) -> Result<()> {
    let exchanges = SpanCount::new("agree");
    world.comm().barrier()?;
    exchanges.take();
    match case {
        "announced" => results(world, &exchanges),
        "announced differently" => differently(world, &exchanges),
        disagreement if disagreement.starts_with("announced with ") => {
            disagrees(disagreement, world)
        }
        fault => leaves(fault, world),
    }
}

/// An operation on a bucket.
#[derive(Clone, Copy)]
struct Bucket {
    element: ElementType,
    len: usize,
    label: &'static str,
}

const BUCKETS: [Bucket; 4] = [
    Bucket { element: ElementType::F32, len: 1_000, label: "bucket 0" },
    Bucket { element: ElementType::F32, len: 1_000, label: "bucket 1" },
    Bucket { element: ElementType::I32, len: 30_000, label: "bucket 2" },
    Bucket { element: ElementType::F32, len: 0, label: "bucket 3" },
];

fn sum() -> Collective {
    Collective::AllReduce(ReduceOp::Sum)
}

fn announce(comm: Comm<'_>, buckets: &[Bucket]) {
    let all = buckets.iter().map(|&Bucket { element, len, label }| {
        Announcement::all_reduce(ReduceOp::Sum, element, len).labelled(label)
    });
    comm.announce(all.collect());
}

fn bucket(world: &World, bucket: Bucket, value: usize) -> Result<Payload> {
    let Bucket { element, len, label } = bucket;
    let payload = match element {
        ElementType::I32 => on_device(world, &vec![value as i32; len])?,
        _ => on_device(world, &vec![value as f32; len])?,
    };
    Ok(payload.labelled(label))
}

fn start(world: &World, comm: Comm<'_>, which: Bucket, value: usize) -> Result<Pending> {
    Ok(comm.start(sum(), bucket(world, which, value)?))
}

fn assert_sum(result: &Payload, bucket: Bucket, sum: usize) -> Result<()> {
    let host = result.to_host()?;
    let all = match bucket.element {
        ElementType::I32 => host.to_vec::<i32>()?.iter().all(|&got| got == sum as i32),
        _ => host.to_vec::<f32>()?.iter().all(|&got| got == sum as f32),
    };
    assert!(all && host.len() == bucket.len, "not {sum} in {} of {}", bucket.len, bucket.element);
    Ok(())
}

/// Starts the buckets and checks the sums of the ranks' numbers plus `round`.
fn exchange(world: &World, comm: Comm<'_>, buckets: &[Bucket], round: usize) -> Result<()> {
    let all: usize = comm.ranks().iter().map(|rank| rank + round).sum();
    let value = world.rank() + round;
    let started = buckets.iter().map(|&which| start(world, comm, which, value));
    for (i, pending) in started.collect::<Result<Vec<_>>>()?.into_iter().enumerate() {
        let result = if i % 2 == 0 { pending.wait()? } else { pending.wait_on_stream()? };
        assert_sum(&result, buckets[i], all)?;
    }
    Ok(())
}

/// The same sums with and without announcements, and one exchange of headers for each list.
fn results(world: &World, exchanges: &SpanCount) -> Result<()> {
    let (comm, rank, k) = (world.comm(), world.rank(), BUCKETS.len());
    let assert_exchanges = |expected: usize, what: &str| {
        let expected = if comm.backend() == "nccl" { expected } else { 0 };
        assert_eq!(exchanges.take(), expected, "{what}");
    };
    for round in 0..5 {
        exchange(world, comm, &BUCKETS, round)?;
        assert_exchanges(k, "not announced");
        announce(comm, &BUCKETS);
        exchange(world, comm, &BUCKETS, round)?;
        assert_exchanges(1, "announced");
    }
    comm.barrier()?;
    assert_exchanges(1, "a list ends with its last operation");
    announce(comm, &BUCKETS);
    announce(comm, &BUCKETS[1..]);
    exchange(world, comm, &BUCKETS[1..], 7)?;
    assert_exchanges(1, "the later announcement counts before the first operation");
    announce(comm, &BUCKETS);
    comm.barrier()?;
    exchange(world, comm, &BUCKETS, 8)?;
    assert_exchanges(1 + k, "another operation came first");
    announce(comm, &BUCKETS[..2]);
    exchange(world, comm, &BUCKETS[..1], 9)?;
    announce(comm, &BUCKETS);
    exchange(world, comm, &BUCKETS[1..2], 9)?;
    exchange(world, comm, &BUCKETS, 10)?;
    assert_exchanges(1 + k, "a list that is agreed on stays until its end");
    announce(comm, &BUCKETS);
    comm.run(sum(), Payload::from_slice(&[0_f32; 1_000]).labelled("bucket 0"))?;
    exchange(world, comm, &BUCKETS, 11)?;
    assert_exchanges(1 + k, "numbers on the host are not announced");

    // Lists of two groups, whose operations alternate.
    let pairs = comm.split(Some(rank as u64 / 2), 0)?.expect("a colour was given");
    exchanges.take();
    announce(comm, &BUCKETS);
    announce(&*pairs, &BUCKETS);
    let mut started = Vec::new();
    for which in BUCKETS {
        started.push(start(world, comm, which, 1)?);
        started.push(start(world, &*pairs, which, 1)?);
    }
    for (i, pending) in started.into_iter().enumerate() {
        let ranks = if i % 2 == 0 { comm.world_size() } else { pairs.world_size() };
        assert_sum(&pending.wait()?, BUCKETS[i / 2], ranks)?;
    }
    assert_exchanges(2, "one for each group");

    comm.interleave();
    announce(comm, &BUCKETS);
    start(world, comm, BUCKETS[0], 1)?.wait()?;
    comm.barrier()?;
    start(world, comm, BUCKETS[1], 1)?.wait()?;
    assert_exchanges(3, "operations may come between");
    announce(&*pairs, &BUCKETS);
    exchange(world, &*pairs, &BUCKETS, 12)?;
    assert_exchanges(1, "the other group is as it was");
    Ok(())
}

/// Ranks whose announcements differ, although they start the same operations.
fn differently(world: &World, exchanges: &SpanCount) -> Result<()> {
    let (comm, differs, k) = (world.comm(), world.rank() == 1, BUCKETS.len());
    let other = Bucket { element: ElementType::F64, ..BUCKETS[1] };
    let lists: [&[Bucket]; 5] = [
        &[],
        &BUCKETS[..2],
        &[BUCKETS[0], BUCKETS[1], BUCKETS[2], BUCKETS[3], BUCKETS[0]],
        &[BUCKETS[0], BUCKETS[2], BUCKETS[1], BUCKETS[3]],
        &[BUCKETS[0], other, BUCKETS[2], BUCKETS[3]],
    ];
    for (round, list) in lists.into_iter().enumerate() {
        announce(comm, if differs { list } else { &BUCKETS });
        exchange(world, comm, &BUCKETS, round)?;
        assert_eq!(exchanges.take(), k, "list {round}");
        announce(comm, &BUCKETS);
        exchange(world, comm, &BUCKETS, round)?;
        assert_eq!(exchanges.take(), 1, "list {round}");
    }
    Ok(())
}

/// Ranks that announce different lists and start them.
fn disagrees(case: &str, world: &World) -> Result<()> {
    let [a, b, c, _] = BUCKETS;
    let list: &[Bucket] = match case {
        _ if world.rank() != 1 => &[a, b, c],
        "announced with another length" => &[a, Bucket { len: 999, ..b }, c],
        "announced with another type" => &[a, Bucket { element: ElementType::I32, ..b }, c],
        "announced with another order" => &[a, c, b],
        "announced with another label" => &[a, Bucket { label: "bucket 9", ..b }, c],
        "announced with fewer operations" => &[a],
        other => panic!("there is no case `{other}`"),
    };
    let comm = world.comm();
    announce(comm, list);
    let started = list.iter().map(|&which| start(world, comm, which, 1));
    let started = started.collect::<Result<Vec<_>>>()?;
    started.into_iter().try_for_each(|pending| pending.wait().map(drop))?;
    comm.barrier()
}

fn empty() -> Payload {
    Payload::from_slice(&[0_u8; 0])
}

/// Rank 1 does not go on with a list after its first operation. The other ranks wait for it on the
/// device.
fn leaves(case: &str, world: &World) -> Result<()> {
    let (rank, group) = (world.rank(), world.comm().split((world.rank() > 0).then_some(0), 0)?);
    let comm: Comm<'_> = match (case.strip_suffix(" in a group"), &group) {
        (None, _) => world.comm(),
        (Some(_), Some(group)) => &**group,
        (Some(_), None) => return world.comm().barrier(),
    };
    let [a, b, c, d] = BUCKETS;
    announce(comm, &[a, b, c, d]);
    let own = rustix::process::getpid();
    let mut pid = [own.as_raw_nonzero().get()];
    match rank {
        0 => world.comm().recv(&mut pid, 1)?,
        1 => world.comm().send(&pid, 0)?,
        _ => {}
    }
    start(world, comm, a, 1)?.wait()?;
    let now = Instant::now();
    if rank == 1 {
        // Until the other ranks wait in NCCL.
        thread::sleep(Duration::from_millis(200));
    }
    let result = match case {
        // The ranks of the group disagree in it. Their programs ignore the error.
        "announced, fails elsewhere" if rank > 0 => {
            let op = if rank == 1 { Collective::Barrier } else { sum() };
            let group = group.expect("a colour was given");
            drop(group.run(op, empty()).expect_err("the ranks of the group disagree"));
            // Rank 1 leaves first.
            thread::sleep(Duration::from_secs(2 * (rank as u64 - 1)));
            return Ok(());
        }
        _ if rank != 1 => {
            let all = [b, c, d].map(|which| start(world, comm, which, 1));
            all.into_iter().try_fold(empty(), |_, pending| pending?.wait())
        }
        // Without a check, its numbers would be added to those of another bucket.
        "announced, skips a bucket" => start(world, comm, Bucket { len: 1_000, ..d }, 1)?.wait(),
        "announced, another operation" | "announced, another operation in a group" => {
            comm.run(Collective::Barrier, empty())
        }
        "announced, on the host" => {
            comm.run(sum(), Payload::from_slice(&[1_f32; 1_000]).labelled(b.label))
        }
        "announced, refuses" => {
            let four = Payload::from_slice(&[0_f32; 4]);
            comm.run(Collective::ReduceScatter(ReduceOp::Sum), four)
        }
        "announced, leaves" => return Ok(()),
        "announced, panics" => panic!("a fault on purpose"),
        "announced, fails" => {
            let error = Error::Unsupported { what: "a fault on purpose".to_owned() };
            comm.fail(&error);
            Err(error)
        }
        "announced, killed" => {
            kill_soon();
            Ok(empty())
        }
        "announced, stopped" => {
            rustix::process::kill_process(own, Signal::STOP).expect("stop");
            // Another thread may receive the signal first.
            thread::sleep(Duration::from_millis(100));
            start(world, comm, b, 1)?.wait()
        }
        other => panic!("there is no case `{other}`"),
    }
    .map(drop);
    let result = result.and_then(|()| comm.barrier());
    println!("noticed within {} ms", now.elapsed().as_millis());
    if rank == 0 && case == "announced, stopped" {
        let stopped = rustix::process::Pid::from_raw(pid[0]).expect("rank 1");
        rustix::process::kill_process(stopped, Signal::CONT).expect("continue");
    }
    if rank == 1 {
        // The other ranks must not learn of the error from its end.
        thread::sleep(Duration::from_secs(2));
        let later = start(world, comm, b, 1)?.wait().map(drop);
        assert_eq!(later.map_err(|e| e.to_string()), result.clone().map_err(|e| e.to_string()));
    }
    result
}
