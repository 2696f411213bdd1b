//! Measurements, and a case that needs more memory than a test may use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use candelabrum_dist::{Collective, Communicator, ElementType, Payload, ReduceOp, Result};

type Comm<'a> = &'a (dyn Communicator + 'static);

/// Measures all-reduces while `computing` threads compute. Returns the median, lowest and highest
/// time for each size.
pub(crate) fn bench(comm: Comm<'_>, computing: usize) -> Result<String> {
    let done = AtomicBool::new(false);
    let compute = || {
        let mut x = 0.5_f32;
        while !done.load(Ordering::Relaxed) {
            x = std::hint::black_box(3.7 * x * (1.0 - x));
        }
    };
    std::thread::scope(|scope| {
        (0..computing).for_each(|_| drop(scope.spawn(compute)));
        let lines = time_all_reduces(comm);
        done.store(true, Ordering::Relaxed);
        Ok(format!("{}, {computing} threads computing\n{}", comm.backend(), lines?))
    })
}

fn time_all_reduces(comm: Comm<'_>) -> Result<String> {
    let mut lines = Vec::new();
    for (len, rounds) in [(1_024, 300), (65_536, 200), (445_000, 100), (6_553_600, 20)] {
        let mut buffer = comm.alloc(ElementType::F32, len)?;
        let mut times = Vec::new();
        for round in 0..rounds + rounds / 10 {
            comm.barrier()?;
            let start = Instant::now();
            buffer = comm.run(Collective::AllReduce(ReduceOp::Sum), buffer)?;
            if round >= rounds / 10 {
                times.push(start.elapsed());
            }
        }
        times.sort();
        let (low, median, high) = (times[0], times[rounds / 2], times[rounds - 1]);
        lines.push(format!("{:>9} bytes: {median:?} ({low:?} to {high:?})", len * 4));
    }
    Ok(lines.join("\n"))
}

/// Buffers with more bytes than a C `int` can count.
pub(crate) fn huge(comm: Comm<'_>) -> Result<String> {
    let (rank, len) = (comm.rank(), (1_usize << 31) + 12_345);
    let mut buffer = Payload::zeros(ElementType::U8, len);
    let marks = [0, len / 2, len - 1];
    for mark in marks {
        buffer.as_mut_slice::<u8>()?[mark] = 1 + rank as u8;
    }
    let sum = Collective::AllReduce(ReduceOp::Sum);
    let buffer = comm.start(sum, buffer).wait()?;
    let buffer = comm.start(Collective::Broadcast { root: 1 }, buffer).wait()?;
    assert!(marks.iter().all(|&mark| buffer.as_slice::<u8>().is_ok_and(|b| b[mark] == 3)));
    let buffer = match rank {
        0 => comm.start(Collective::Send { to: 1 }, buffer).wait()?,
        _ => {
            comm.start(Collective::Recv { from: 0 }, Payload::zeros(ElementType::U8, len)).wait()?
        }
    };
    let received =
        rank == 0 || marks.iter().all(|&m| buffer.as_slice::<u8>().is_ok_and(|b| b[m] == 3));
    assert!(received);
    comm.barrier()?;
    Ok("huge".to_owned())
}
