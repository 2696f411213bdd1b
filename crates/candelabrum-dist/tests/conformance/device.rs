//! The cases of operations on numbers in a GPU's memory: their results, what they wait for, and
//! their failures. Backends without such memory leave them out.

use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{
    Collective, Element, ElementType, Error, Payload, Pending, ReduceOp, Result, World,
};
use candelabrum_memory::{FlatTensor, Location};
use candle_core::{DType, Device, Tensor};

use crate::faults::kill_soon;
use crate::tracking;

/// The content of a payload, for error messages.
const LABEL: &str = "bucket 2: conv1.weight";

pub(crate) fn run(case: &str, world: &World) -> Result<()> {
    world.comm().barrier()?;
    match case {
        "device" => results(world),
        "device untracked" => {
            tracking::disable(world.device());
            results(world)
        }
        "device overlap" => overlap(world),
        fault => faults(fault, world),
    }
}

/// The same results as on the host, whatever waits for them.
fn results(world: &World) -> Result<()> {
    every_operation(world)?;
    tensors_without_a_wait_of_the_host(world)?;
    several_under_way(world)?;
    groups(world)?;
    messages(world)
}

pub(crate) fn on_device<T: Element>(world: &World, values: &[T]) -> Result<Payload> {
    let mut flat =
        FlatTensor::zeros_on(&Location::from_device(world.device()), T::TYPE, values.len())?;
    flat.copy_from_host(&FlatTensor::from_slice(values))?;
    Ok(flat.into())
}

fn both<T: Element>(
    world: &World,
    op: Collective,
    values: &[T],
    parts: Option<&[usize]>,
) -> Result<()> {
    let cut = |payload: Payload| match parts {
        Some(parts) => payload.with_parts(parts),
        None => Ok(payload),
    };
    let host = world.comm().run(op, cut(Payload::from_slice(values))?)?;
    for on_stream in [false, true] {
        let started = world.comm().start(op, cut(on_device(world, values)?)?);
        let result = if on_stream { started.wait_on_stream()? } else { started.wait()? };
        let copy = result.to_host()?;
        assert_eq!(copy.bytes(), host.bytes(), "{op} of {} × {}", values.len(), T::TYPE);
        assert_eq!(result.parts(), host.parts(), "{op}");
    }
    Ok(())
}

/// A reduce-scatter and an all-gather by parts of different lengths, which leave the numbers where they are.
fn in_parts(world: &World, op: ReduceOp, values: &[f32]) -> Result<()> {
    let (rank, n, len) = (world.rank(), world.world_size(), values.len());
    let mut parts = vec![0; n];
    parts[0] = len / 3;
    parts[n - 1] += len - len / 3;
    let start = parts[..rank].iter().sum::<usize>();
    let own = start..start + parts[rank];
    let run = |op, payload: Payload| world.comm().start(op, payload.with_parts(&*parts)?).wait();
    let host = run(Collective::ReduceScatterV(op), Payload::from_slice(values))?;
    let device = run(Collective::ReduceScatterV(op), on_device(world, values)?)?;
    let reduced = device.to_host()?.to_vec::<f32>()?;
    assert_eq!(reduced[own.clone()], host.to_vec::<f32>()?[own], "{op:?} of {len} in {parts:?}");
    let mut expected = values.to_vec();
    world.comm().all_reduce(&mut expected, op)?;
    let all = run(Collective::AllGatherInPlace, device)?.to_host()?;
    assert_eq!(all.to_vec::<f32>()?, expected, "{op:?} of {len} in {parts:?}");
    Ok(())
}

fn every_operation(world: &World) -> Result<()> {
    let (rank, n) = (world.rank(), world.world_size());
    for len in [6 * n, 0, n, 50_000 * n] {
        // Whole numbers, so that the order of additions does not matter.
        let values: Vec<f32> =
            (0..len).map(|i| ((i * 31 + rank * 17) % 101) as f32 - 50.0).collect();
        for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
            both(world, Collective::AllReduce(op), &values, None)?;
            both(world, Collective::ReduceScatter(op), &values, None)?;
            both(world, Collective::Reduce { op, root: n - 1 }, &values, None)?;
            in_parts(world, op, &values)?;
        }
        both(world, Collective::Broadcast { root: n - 1 }, &values, None)?;
        both(world, Collective::AllGather, &values, None)?;
        both(world, Collective::Gather { root: 0 }, &values, None)?;
        both(world, Collective::Scatter { root: 0 }, &values, None)?;
        both(world, Collective::AllToAll, &values, None)?;
        both(world, Collective::AllGatherV, &values[..len * rank / n], None)?;
        let mut parts = vec![len / n; n];
        if len >= 6 * n && n > 1 {
            parts[0] += 1;
            parts[n - 1] -= 1;
        }
        both(world, Collective::AllToAllV, &values, Some(&parts))?;
        let integers: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        both(world, Collective::AllReduce(ReduceOp::Product), &integers, None)?;
    }
    both(world, Collective::Barrier, &[0_f32; 0], None)?;
    let op = Collective::AllReduce(ReduceOp::Max);
    let result = world.comm().run(op, on_device(world, &[f32::NAN, rank as f32])?)?;
    let got = result.to_host()?.to_vec::<f32>()?;
    assert!(got[0].is_nan() && got[1] == (n - 1) as f32, "a NaN stays: {got:?}");
    Ok(())
}

fn sum() -> Collective {
    Collective::AllReduce(ReduceOp::Sum)
}

/// A tensor's numbers through an all-reduce to another tensor. candle's work before and after is
/// under way.
fn start_of(world: &World, tensor: &Tensor) -> Result<Pending> {
    let location = Location::from_device(world.device());
    let mut flat = FlatTensor::zeros_on(&location, ElementType::F32, tensor.elem_count())?;
    flat.copy_from_tensor(tensor)?;
    Ok(world.comm().start(sum(), flat.into()))
}

fn tensors_without_a_wait_of_the_host(world: &World) -> Result<()> {
    let (rank, n, device) = (world.rank(), world.world_size(), world.device());
    const LEN: usize = 20_000;
    let mut results = Vec::new();
    for round in 0..30 {
        let x = Tensor::full((rank + round) as f32, LEN, device)?.affine(2.0, 1.0)?.sqr()?;
        let reduced = start_of(world, &x)?.wait_on_stream()?;
        let out = Tensor::zeros(LEN, DType::F32, device)?;
        reduced.copy_to_tensor(&out)?;
        // Its memory is given back while the operation may still be under way.
        drop(reduced);
        results.push(out.affine(0.5, 0.0)?);
    }
    for (round, result) in results.iter().enumerate() {
        let got = result.to_vec1::<f32>()?;
        let square = |other: usize| (2.0 * (other + round) as f32 + 1.0).powi(2);
        let want = (0..n).map(square).sum::<f32>() * 0.5;
        let wrong = got.iter().find(|&&value| value != want);
        assert_eq!(wrong, None, "round {round}: not {want}");
    }
    Ok(())
}

/// Operations that are waited for in another order, in either way, or not at all.
fn several_under_way(world: &World) -> Result<()> {
    let (rank, n) = (world.rank(), world.world_size());
    for round in 0..10 {
        let mut started = Vec::new();
        for i in 0..12 {
            let values = vec![(rank + i + round) as i32; 1_000 * (i + 1)];
            started.push((i, world.comm().start(sum(), on_device(world, &values)?)));
        }
        for (i, pending) in started.into_iter().rev() {
            let result = match i % 3 {
                0 => continue, // it is dropped
                1 => pending.wait()?,
                _ => pending.wait_on_stream()?,
            };
            let want = (0..n).map(|other| (other + i + round) as i32).sum::<i32>();
            assert_eq!(result.to_host()?.to_vec::<i32>()?, vec![want; 1_000 * (i + 1)]);
        }
    }
    Ok(())
}

fn groups(world: &World) -> Result<()> {
    let (comm, rank, n) = (world.comm(), world.rank(), world.world_size());
    let pairs = comm.split(Some(rank as u64 / 2), 0)?.expect("a colour was given");
    let mut started = Vec::new();
    for round in 0..8_i32 {
        let values = vec![round + rank as i32; 30_000];
        started.push((round, n, comm.start(sum(), on_device(world, &values)?)));
        let len = pairs.world_size();
        started.push((round, len, pairs.start(sum(), on_device(world, &values)?)));
    }
    for (round, size, pending) in started {
        let first = if size == n { 0 } else { rank / 2 * 2 };
        let want = (first..first + size).map(|other| round + other as i32).sum::<i32>();
        let got = pending.wait_on_stream()?.to_host()?.to_vec::<i32>()?;
        assert_eq!(got, vec![want; 30_000], "group of {size}, round {round}");
    }
    Ok(())
}

fn messages(world: &World) -> Result<()> {
    let (comm, rank, n) = (world.comm(), world.rank(), world.world_size());
    let (to, from) = ((rank + 1) % n, (rank + n - 1) % n);
    let sent = comm.start(Collective::Send { to }, on_device(world, &[rank as i32; 40])?);
    let got = comm.run(Collective::Recv { from }, on_device(world, &[0_i32; 40])?)?;
    assert!(got.is_on_device());
    assert_eq!(got.to_host()?.to_vec::<i32>()?, [from as i32; 40]);
    sent.wait().map(drop)
}

/// Gives the device's stream work for at least this time, and returns at once.
fn keep_busy(device: &Device, time: Duration) -> Result<Tensor> {
    let step = |x: &Tensor| x.matmul(x).and_then(|y| y.affine(1e-3, 0.0));
    let wait = |x: &Tensor| x.flatten_all()?.narrow(0, 0, 1)?.to_vec1::<f32>();
    let steps_of = |x: &Tensor, steps: usize| {
        let mut y = x.clone();
        for _ in 0..steps {
            y = step(x)?;
        }
        Ok::<_, Error>(y)
    };
    let mut side = 256;
    loop {
        let x = Tensor::ones((side, side), DType::F32, device)?;
        // The first steps of a size load code and get memory from the driver.
        wait(&steps_of(&x, 4)?)?;
        let start = Instant::now();
        wait(&steps_of(&x, 4)?)?;
        let steps = time.as_secs_f64() / (start.elapsed().as_secs_f64() / 4.0);
        // A stream takes about a thousand launches before the host has to wait.
        if steps <= 200.0 {
            return steps_of(&x, steps.ceil() as usize + 1);
        }
        side *= 2;
    }
}

/// The first reduction of so many numbers, in which NCCL connects the ranks: it waits for the device.
fn connect(world: &World, len: usize) -> Result<()> {
    world.comm().run(sum(), on_device(world, &vec![0_f32; len])?).map(drop)
}

fn ends(busy: &Tensor) -> Result<()> {
    busy.flatten_all()?.narrow(0, 0, 1)?.to_vec1::<f32>()?;
    Ok(())
}

/// What operations wait for, and what not.
fn overlap(world: &World) -> Result<()> {
    let (comm, rank, n, device) = (world.comm(), world.rank(), world.world_size(), world.device());
    const LONG: usize = 200_000;
    let want = (0..n).map(|other| other as f32).sum::<f32>();
    let all = |payload: Payload| -> Result<()> {
        let got = payload.to_host()?.to_vec::<f32>()?;
        assert!(got.iter().all(|&value| value == want), "{} is not {want}", got[0]);
        Ok(())
    };

    // Rank 1's device is late. Both operations are begun, on every rank, before the first is
    // complete.
    let numbers = [(); 2].map(|()| on_device(world, &vec![rank as f32; LONG]));
    let [first, second] = numbers;
    let (first, second) = (first?, second?);
    connect(world, LONG)?;
    comm.barrier()?;
    let start = Instant::now();
    let busy = (rank == 1).then(|| keep_busy(device, Duration::from_secs(2))).transpose()?;
    let started = [first, second].map(|payload| comm.start(sum(), payload));
    let returned = start.elapsed();
    let [mut first, mut second] = started;
    assert!(!first.is_complete() && !second.is_complete(), "rank 1 is late");
    let (first, second) = (first.wait_on_stream()?, second.wait_on_stream()?);
    let begun = start.elapsed();
    all(first)?;
    let complete = start.elapsed();
    all(second)?;
    println!("rank {rank}: started {returned:?}, begun {begun:?}, complete {complete:?}");
    assert!(2 * begun < complete, "begun after {begun:?} of {complete:?}");
    // On every rank the operations were behind rank 1's other work, so that is over too. How long it
    // takes is not said here, since the load of the machine changes.
    let both = start.elapsed();
    busy.iter().try_for_each(ends)?;
    comm.barrier()?;
    let all_work = start.elapsed();
    assert!(all_work < 2 * both, "complete after {both:?}, the work before it after {all_work:?}");

    // Work that the stream is given after the start is not waited for, although the other rank is
    // late and the operation is given to the device later than this work.
    comm.barrier()?;
    if rank == 1 {
        thread::sleep(Duration::from_millis(300));
    }
    let mut pending = comm.start(sum(), on_device(world, &vec![rank as f32; LONG])?);
    let start = Instant::now();
    let busy = keep_busy(device, Duration::from_secs(2))?;
    while !pending.is_complete() {
        thread::sleep(Duration::from_millis(1));
    }
    let complete = start.elapsed();
    ends(&busy)?;
    let all_work = start.elapsed();
    println!("rank {rank}: complete {complete:?}, later work {all_work:?}");
    assert!(complete < all_work / 2, "complete after {complete:?} of {all_work:?}");
    all(pending.wait()?)
}

/// Faults while the device works: rank 1's own work keeps its part of the operation back.
fn faults(case: &str, world: &World) -> Result<()> {
    let (comm, rank, device) = (world.comm(), world.rank(), world.device());
    let labelled = |len: usize| -> Result<Payload> {
        Ok(on_device(world, &vec![1_f32; len])?.labelled(LABEL))
    };
    let (first, second) = (labelled(10)?, labelled(20_000)?);
    connect(world, 10)?;
    connect(world, 20_000)?;
    let _busy = (rank == 1).then(|| keep_busy(device, Duration::from_secs(4))).transpose()?;
    comm.barrier()?;
    let start = Instant::now();
    let first = comm.start(sum(), first);
    let second = comm.start(sum(), second);
    if rank == 1 {
        match case {
            "device killed" | "device killed on stream" | "device killed unseen" => {
                // Both operations are given to the device meanwhile.
                thread::sleep(Duration::from_millis(200));
                kill_soon();
            }
            "device fails" => {
                thread::sleep(Duration::from_millis(200));
                let error = Error::Unsupported { what: "a fault on purpose".to_owned() };
                comm.fail(&error);
                return Err(error);
            }
            "device deadline" => {}
            other => panic!("there is no case `{other}`"),
        }
    }
    let noticed = |error: Error| {
        println!("noticed within {} ms", start.elapsed().as_millis());
        error
    };
    if case == "device killed on stream" {
        // The host has not waited for the device, and learns of the failure after it does.
        let payload = second.wait_on_stream()?;
        payload.to_host()?;
        return Err(noticed(comm.failure().expect("the numbers are not a sum")));
    }
    if case == "device killed unseen" {
        return first.wait_on_stream().and(second.wait_on_stream()).map(drop);
    }
    let error = second.wait().map(drop).expect_err("rank 1 takes no part");
    let again = first.wait().map(drop).expect_err("all operations after it fail");
    assert_eq!(error.to_string(), again.to_string());
    let later = comm.barrier().expect_err("all operations after it fail");
    assert_eq!(error.to_string(), later.to_string());
    Err(noticed(error))
}
