//! Stochastic gradient descent by messages, without `DistOpt`, in three programs.
//!
//! - `sync-server`: in each step the server, which is rank 0, adds a gradient of every worker, in rank
//!   order, and sends all workers the parameters that it has updated by the mean (Li et al., "Scaling
//!   Distributed Machine Learning with the Parameter Server", OSDI 2014).
//! - `all-reduce`: all ranks are workers, and each one updates its own parameters by the mean of all
//!   gradients. For the same number of workers the parameters have the same bits as with a server.
//! - `async-server`: the server applies each gradient by itself and answers its worker only, so no
//!   worker waits for another one (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012).
//!   But gradients are *stale*: the parameters have had updates since the worker received them.
//!
//! The asynchronous server is fair. It moves all gradients that have arrived into a queue per worker
//! and serves the workers in turn. So a gradient in a queue waits for at most one gradient of each
//! other worker, however fast they are.
//!
//! ```text
//! cargo run --release --example mpi_sgd -- --workers 3
//! cargo run --release --example mpi_sgd -- --workers 3 --program async-server --slow-rank 2
//! mpiexec --bind-to none -n 3 cargo run --release --features mpi --example mpi_sgd
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::{BTreeMap, VecDeque};
use std::num::{NonZeroU16, NonZeroUsize};
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candelabrum::candle::Var;
use candelabrum::datasets::Batch;
use candelabrum::dist::comm::{Collective, Payload};
use candelabrum::dist::launch::DeviceChoice;
use candelabrum::dist::parameters_sha256;
use candelabrum::nn::ops::softmax_cross_entropy;
use candelabrum::prelude::*;
use candelabrum::train::cli::{parse, run_ranks};
use clap::Parser;

const PROGRAMS: [&str; 3] = ["sync-server", "all-reduce", "async-server"];
const SERVER: usize = 0;
/// The parameters of softmax regression: a weight for each pixel and digit.
const SHAPE: (usize, usize) = (28 * 28, 10);
const PARAMETERS: usize = SHAPE.0 * SHAPE.1;
/// A message has parameters or a gradient, then the count of updates that the parameters have had.
const MESSAGE: usize = PARAMETERS + 1;
const LEARNING_RATE: f32 = 0.2;

/// Train by messages: a synchronous server, an all-reduce, an asynchronous server
#[derive(Parser)]
struct Args {
    /// The programs to run, one after the other; repeat the option for several
    #[arg(long, value_parser = PROGRAMS, default_values = PROGRAMS)]
    program: Vec<String>,
    /// Start this many ranks on this machine; in a program with a server one of them is the server
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Gradients per worker (async-server: on average)
    #[arg(long, value_name = "N", default_value = "500")]
    steps: NonZeroU16, // an f32 counts the updates by 256 workers exactly
    /// Let each gradient of this rank take twenty times as long
    #[arg(long, value_name = "RANK")]
    slow_rank: Option<usize>,
    /// Print all gradients, not only those of the first eight updates
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    // The model is small: one thread is enough for a rank, and a GPU would only wait for messages.
    let (workers, device) = (args.workers.map(NonZeroUsize::get), Some(DeviceChoice::Cpu));
    run_ranks(workers, Some(1), device, |world| run(&args, world))
}

fn run(args: &Args, world: &World) -> Result<()> {
    let (ranks, slow) = (world.world_size(), args.slow_rank.unwrap_or_default());
    ensure!(ranks > 1, "messages need two ranks: start three by `--workers 3` or `mpiexec -n 3`");
    ensure!(slow < ranks, "--slow-rank is {slow}: the last rank is {}", ranks - 1);
    let data = Mnist::synthetic(0, 6000, 1000)?;
    let batches = data.train.batches(30)?.collect::<Result<Vec<_>, _>>()?;
    for program in &args.program {
        let workers = usize::from(program != "all-reduce")..ranks;
        if world.is_root() {
            println!("{program}: {} worker(s), {} backend", workers.len(), world.backend());
        }
        let own = world.rank().saturating_sub(workers.start);
        let batches = Box::new(batches.iter().cycle().skip(own).step_by(workers.len()));
        let (parameters, table) = (vec![0.0; MESSAGE], BTreeMap::new());
        let mut rank = Rank { args, comm: world.comm(), workers, batches, parameters, table };
        let start = Instant::now();
        match program.as_str() {
            "sync-server" => rank.sync_server(),
            "all-reduce" => rank.all_reduce(),
            _ if world.is_root() => rank.async_server(),
            _ => rank.async_worker(),
        }?;
        if world.is_root() {
            rank.report(start.elapsed(), &data.test)?;
        }
    }
    Ok(())
}

/// This rank in one program.
struct Rank<'a> {
    args: &'a Args,
    comm: &'a dyn Communicator,
    workers: Range<usize>,
    batches: Box<dyn Iterator<Item = &'a Batch> + 'a>,
    parameters: Vec<f32>,
    /// For each worker: gradients, the sum of their staleness, the greatest one, the longest wait.
    table: BTreeMap<usize, [usize; 4]>,
}

/// The three programs, and then what they have in common.
impl Rank<'_> {
    fn sync_server(&mut self) -> Result<()> {
        for _ in 0..self.args.steps.get() {
            if self.comm.rank() == SERVER {
                let (mut sum, mut gradient) = (vec![0.0; MESSAGE], vec![0.0; MESSAGE]);
                for worker in self.workers.clone() {
                    self.comm.recv(&mut gradient, worker)?;
                    self.count(worker, &gradient, 0);
                    sum.iter_mut().zip(&gradient).for_each(|(sum, number)| *sum += number);
                }
                self.update(&sum, self.workers.len());
            } else {
                let gradient = self.gradient()?;
                self.comm.send(&gradient, SERVER)?;
            }
            self.comm.broadcast(&mut self.parameters, SERVER)?;
        }
        Ok(())
    }

    fn all_reduce(&mut self) -> Result<()> {
        for _ in 0..self.args.steps.get() {
            let gradient = self.gradient()?;
            let mut sum = gradient.clone();
            self.comm.all_reduce(&mut sum, ReduceOp::Sum)?;
            for worker in self.workers.clone() {
                self.count(worker, &gradient, 0);
            }
            self.update(&sum, self.workers.len());
        }
        Ok(())
    }

    fn async_server(&mut self) -> Result<()> {
        let (comm, ranks, workers) = (self.comm, self.workers.end, self.workers.len());
        let receive = || comm.start(Collective::RecvAny, Payload::from_slice::<f32>(&[]));
        // A receive for each gradient that a worker computes. They are complete in this order.
        let mut receives: VecDeque<_> = self.workers.clone().map(|_| receive()).collect();
        // The gradients of each rank, with the count of updates at which they arrived.
        let (mut queues, mut last) = (vec![VecDeque::new(); ranks], SERVER);
        let all = usize::from(self.args.steps.get()) * workers;
        for updates in 0..all {
            // The server waits only if it has no gradient.
            while let Some(receive) = receives.pop_front_if(|receive| {
                queues.iter().all(VecDeque::is_empty) || receive.is_complete()
            }) {
                let message = receive.wait()?;
                let from = message.source().context("a message without a sender")?;
                ensure!(message.len() == MESSAGE, "rank {from} sent no gradient");
                queues[from].push_back((updates, message.to_vec::<f32>()?));
            }
            let mut turns = (last + 1..=last + ranks).map(|turn| turn % ranks);
            let next = turns.find_map(|worker| Some((worker, queues[worker].pop_front()?)));
            let (worker, (arrived, gradient)) = next.context("the server has no gradient")?;
            self.count(worker, &gradient, updates - arrived);
            self.update(&gradient, 1);
            // Each of the other workers computes a gradient, which may be all that is missing.
            let more = updates + workers < all;
            comm.send(if more { &self.parameters[..] } else { &[] }, worker)?;
            receives.extend(more.then(receive));
            last = worker;
        }
        Ok(())
    }

    fn async_worker(&mut self) -> Result<()> {
        while !self.parameters.is_empty() {
            let gradient = self.gradient()?;
            self.comm.send(&gradient, SERVER)?;
            (_, self.parameters) = self.comm.recv_any()?; // only the server sends to a worker
        }
        Ok(())
    }

    /// The gradient of the loss of this worker's next batch.
    fn gradient(&mut self) -> Result<Vec<f32>> {
        let start = Instant::now();
        let batch = self.batches.next().context("a worker without images")?;
        let message = self.parameters.split_at_checked(PARAMETERS);
        let (weight, updates) = message.context("rank 0 sent no parameters")?;
        let weight = Var::from_slice(weight, SHAPE, &Device::Cpu)?;
        let scores = batch.xs.flatten_from(1)?.matmul(&weight)?; // (N, 10)
        let grads = softmax_cross_entropy(&scores, &batch.ys)?.backward()?;
        let gradient = grads.get(&weight).context("the weight has no gradient")?.flatten_all()?;
        if self.args.slow_rank == Some(self.comm.rank()) {
            std::thread::sleep(start.elapsed() * 19);
        }
        Ok([&gradient.to_vec1()?, updates].concat())
    }

    /// A step of SGD by the mean of this many gradients.
    fn update(&mut self, sum: &[f32], gradients: usize) {
        for (parameter, sum) in self.parameters[..PARAMETERS].iter_mut().zip(sum) {
            *parameter -= LEARNING_RATE * (sum / gradients as f32);
        }
        self.parameters[PARAMETERS] += 1.0;
    }

    /// Counts a gradient that is applied now. While it was in a queue, `wait` others were applied.
    fn count(&mut self, worker: usize, gradient: &[f32], wait: usize) {
        let updates = self.parameters[PARAMETERS];
        let staleness = (updates - gradient[PARAMETERS]) as usize;
        let row = self.table.entry(worker).or_default();
        *row = [row[0] + 1, row[1] + staleness, row[2].max(staleness), row[3].max(wait)];
        if self.comm.is_world_root() && (updates < 8.0 || self.args.verbose) {
            println!("update {updates}: rank {worker}, staleness {staleness}, wait {wait}");
        }
    }

    fn report(&self, time: Duration, test: &ImageDataset) -> Result<()> {
        println!("rank  gradients  mean staleness  greatest  longest wait");
        for (rank, [gradients, sum, greatest, wait]) in &self.table {
            let mean = *sum as f64 / *gradients as f64;
            println!("{rank:>4}{gradients:>11}{mean:>16.3}{greatest:>10}{wait:>14}");
        }
        let weight = Var::from_slice(&self.parameters[..PARAMETERS], SHAPE, &Device::Cpu)?;
        let test = test.batches(test.len())?.next().context("no test images")??;
        let digits = test.xs.flatten_from(1)?.matmul(&weight)?.argmax(1)?;
        let accuracy: f32 = digits.eq(&test.ys)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()?;
        let digest = parameters_sha256(&Params::from_vars([("weight", weight)])?)?;
        println!("{time:.1?}, accuracy {accuracy:.3}, SHA-256 of the parameters {digest}\n");
        Ok(())
    }
}
