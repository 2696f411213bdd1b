//! `bench-player allreduce`: the time of one all-reduce, for this program and for the programs that
//! are compared with it.
//!
//! A clock is read around a *batch* of consecutive operations, because one operation on 4 KB is
//! shorter than the clock's resolution. All ranks meet in a barrier, read their clocks, run the
//! batch, and read their clocks again. The slowest rank's time is the time of the batch. The number
//! of operations in a batch is found once per size, by doubling until the best of three batches
//! takes [`BATCH`]. A sample is the median of as many batches as fill its time.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use candelabrum::dist::{Collective, ElementType, Payload, ReduceOp, World};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exchange::{number, sum};
use crate::serve::{RequestHandler, Seconds, serve};

/// The minimum time of a batch in seconds.
const BATCH: f64 = 2e-3;

/// The minimum and maximum number of batches of a sample.
const BATCHES: (usize, usize) = (3, 500);

#[derive(Debug, clap::Args)]
pub(crate) struct AllReduceArgs {
    #[arg(long, default_value = "segment")]
    numbers: RankOperand,
    /// Milliseconds by which rank 0 begins every batch later than the others; the clock starts then
    #[arg(long, default_value = "0")]
    late_ms: u64,
}

/// The memory of a rank's numbers, and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RankOperand {
    /// All-reduce in a buffer of the communicator's, as of gradients
    Segment,
    /// All-reduce in a vector of the caller's
    Slice,
    /// The memory's speed, which bounds an all-reduce: each rank negates a vector of its own
    Alone,
}

pub(crate) fn run(args: &AllReduceArgs, world: &World) -> anyhow::Result<()> {
    let mut all_reduce = AllReduceTimer {
        world: world.clone(),
        numbers: args.numbers,
        late: Duration::from_millis(args.late_ms),
        segment: None,
        slice: Vec::new(),
        batch: None,
    };
    serve(&mut all_reduce, world)
}

struct AllReduceTimer {
    world: World,
    numbers: RankOperand,
    late: Duration,
    /// `None` only while the buffer is being reduced.
    segment: Option<Payload>,
    slice: Vec<f32>,
    batch: Option<TimedBatch>,
}

/// A number of operations that is large enough to be timed.
#[derive(Clone, Copy, Debug)]
struct TimedBatch {
    operations: usize,
    seconds: f64,
    /// The number of elements, and whether their sums were right before the timing.
    elements: u32,
    correct: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllReduceRequest {
    elements: u32,
    seconds: Seconds,
}

impl RequestHandler for AllReduceTimer {
    type Request = AllReduceRequest;

    fn sample(&mut self, request: AllReduceRequest) -> anyhow::Result<Value> {
        let AllReduceRequest { elements, seconds } = request;
        let batch = match self.batch {
            Some(batch) if batch.elements == elements => batch,
            _ => self.prepare(elements)?,
        };
        self.batch = Some(batch);
        let TimedBatch { operations, correct, .. } = batch;
        // Every rank knows the same times, so all ranks run the same number of batches.
        let batches = ((seconds.0 / batch.seconds) as usize).clamp(BATCHES.0, BATCHES.1);
        let time = |_| self.time(operations);
        let mut times = (0..batches).map(time).collect::<anyhow::Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(json!({
            "seconds": times[batches / 2] / operations as f64, // of one operation
            "batches": batches, "operations": operations, "correct": correct,
        }))
    }
}

impl AllReduceTimer {
    /// Allocates the numbers, checks the result for known values, and finds the size of a batch. The
    /// numbers are zeros then, whose repeated sums stay finite.
    fn prepare(&mut self, elements: u32) -> anyhow::Result<TimedBatch> {
        // Frees the old buffer first, because two large buffers may not fit.
        (self.segment, self.slice) = (None, Vec::new());
        let comm = self.world.comm();
        match self.numbers {
            RankOperand::Segment => {
                self.segment = Some(comm.alloc(ElementType::F32, elements as usize)?);
            }
            RankOperand::Slice | RankOperand::Alone => self.slice = vec![0.0; elements as usize],
        }
        let (rank, ranks) = (self.world.rank(), self.world.world_size());
        self.values()?.iter_mut().enumerate().for_each(|(i, value)| *value = number(rank, i));
        self.operate()?;
        let numbers = self.numbers;
        let expected = |i| match numbers {
            RankOperand::Alone => -number(rank, i),
            RankOperand::Segment | RankOperand::Slice => sum(ranks, i),
        };
        let right = |(i, value): (usize, &f32)| *value == expected(i);
        let is_right = self.values()?.iter().enumerate().all(right);
        self.values()?.fill(0.0);
        let correct = self.max(if is_right { 0.0 } else { 1.0 })? == 0.0;
        let mut operations = 1;
        loop {
            // If the system delays a rank once, a single batch seems to be long enough.
            let times = [self.time(operations)?, self.time(operations)?, self.time(operations)?];
            let seconds = times.into_iter().fold(f64::INFINITY, f64::min);
            if seconds >= BATCH {
                return Ok(TimedBatch { operations, seconds, elements, correct });
            }
            operations *= 2;
        }
    }

    /// The slowest rank's seconds for `operations` operations, from when the root begins them.
    fn time(&mut self, operations: usize) -> anyhow::Result<f64> {
        self.world.comm().barrier()?;
        let start = Instant::now();
        if self.world.is_root() {
            thread::sleep(self.late);
        }
        for _ in 0..operations {
            self.operate()?;
        }
        self.max(start.elapsed().saturating_sub(self.late).as_secs_f64())
    }

    /// The measured operation.
    fn operate(&mut self) -> anyhow::Result<()> {
        let (comm, op) = (self.world.comm(), ReduceOp::Sum);
        match self.numbers {
            RankOperand::Segment => {
                let buffer = self.segment.take().context("no buffer")?;
                self.segment = Some(comm.run(Collective::AllReduce(op), buffer)?);
            }
            RankOperand::Slice => comm.all_reduce(&mut self.slice, op)?,
            RankOperand::Alone => black_box(&mut self.slice).iter_mut().for_each(|x| *x = -*x),
        }
        Ok(())
    }

    fn values(&mut self) -> anyhow::Result<&mut [f32]> {
        match &mut self.segment {
            Some(segment) => Ok(segment.as_mut_slice()?),
            None => Ok(&mut self.slice),
        }
    }

    /// The largest of all ranks' values.
    fn max(&self, value: f64) -> anyhow::Result<f64> {
        let mut value = [value];
        self.world.comm().all_reduce(&mut value, ReduceOp::Max)?;
        Ok(value[0])
    }
}
