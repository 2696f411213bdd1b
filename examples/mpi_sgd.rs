//! Stochastic gradient descent by messages, without `DistOpt`, in three programs.
//!
//! - `sync-server`: rank 0 is the server, the other ranks are workers. In each step the server adds
//!   one gradient of every worker, in rank order, updates the parameters by the mean and sends them to
//!   all workers. This is synchronous SGD with a parameter server (Li et al., "Scaling Distributed
//!   Machine Learning with the Parameter Server", OSDI 2014).
//! - `all-reduce`: all ranks are workers, and each one updates its own parameters by the mean of all
//!   gradients. For the same number of workers the parameters have the same bits as with a server.
//! - `async-server`: the server applies each gradient by itself, as soon as it can, and sends the new
//!   parameters to its worker only. No worker waits for another one, as in Downpour SGD (Dean et al.,
//!   "Large Scale Distributed Deep Networks", NIPS 2012) and Hogwild (Recht et al., NIPS 2011). But
//!   gradients are *stale*: the parameters have had other updates since the worker received them.
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

use std::collections::VecDeque;
use std::num::{NonZeroU32, NonZeroUsize};
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candelabrum::candle::{Result as CandleResult, Var};
use candelabrum::datasets::Batches;
use candelabrum::dist::comm::{Collective, ElementType, Payload, Pending};
use candelabrum::dist::launch::DeviceChoice;
use candelabrum::dist::parameters_sha256;
use candelabrum::nn::ops::softmax_cross_entropy;
use candelabrum::prelude::*;
use candelabrum::train::cli::{parse, run_ranks};
use clap::{Parser, ValueEnum};

const SERVER: usize = 0;
const PIXELS: usize = 28 * 28;
const DIGITS: usize = 10;
const PARAMETERS: usize = PIXELS * DIGITS + DIGITS;
/// A message has the count of updates as an f32, which is exact up to this number.
const MOST_UPDATES: usize = 1 << 24;

/// Train by messages: a synchronous server, an all-reduce, an asynchronous server
#[derive(Parser)]
struct Args {
    /// The program to run, or all of them, one after the other
    #[arg(long, value_enum, default_value = "all")]
    program: Program,
    /// Start this many ranks on this machine; in a program with a server one of them is the server
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Gradients per worker (async-server: on average)
    #[arg(long, value_name = "N", default_value = "500")]
    steps: NonZeroUsize,
    /// Images per gradient
    #[arg(long, value_name = "N", default_value = "32")]
    batch_size: usize,
    /// Learning rate
    #[arg(long, default_value = "0.05")]
    lr: f32,
    /// Seed of the images
    #[arg(long, default_value = "0")]
    seed: u64,
    /// Make this rank slower
    #[arg(long, value_name = "RANK")]
    slow_rank: Option<usize>,
    /// Let a gradient of the slow rank take this many times as long
    #[arg(long, value_name = "F", default_value = "5")]
    slow_factor: NonZeroU32,
    /// Print every gradient that was served, not only the first ten
    #[arg(long)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Program {
    SyncServer,
    AllReduce,
    AsyncServer,
    All,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    // The model is small: one thread is enough for a rank, and a GPU would only wait for messages.
    let (workers, device) = (args.workers.map(NonZeroUsize::get), Some(DeviceChoice::Cpu));
    run_ranks(workers, Some(1), device, |world| run(&args, world))
}

fn run(args: &Args, world: &World) -> Result<()> {
    let (ranks, slow) = (world.world_size(), args.slow_rank.unwrap_or_default());
    ensure!(slow < ranks, "--slow-rank is {slow}: the last rank is {}", ranks - 1);
    let updates = args.steps.get().saturating_mul(ranks);
    ensure!(updates <= MOST_UPDATES, "--steps is {}: these are too many updates", args.steps);
    let has_worker = ranks > 1 || args.program == Program::AllReduce;
    let start = "start three with `--workers 3` or `mpiexec -n 3`";
    ensure!(has_worker, "a server and a worker need two ranks, but there is one: {start}");
    let data = Mnist::synthetic(args.seed, 6000, 1000)?;
    for program in [Program::SyncServer, Program::AllReduce, Program::AsyncServer] {
        if [program, Program::All].contains(&args.program) {
            train(args, world, &data, program)?;
        }
    }
    Ok(())
}

/// Runs one program on this rank.
fn train(args: &Args, world: &World, data: &Mnist, program: Program) -> Result<()> {
    let (comm, first) = (world.comm(), usize::from(program != Program::AllReduce));
    let (workers, train, services) = (world.world_size() - first, &data.train, Vec::new());
    let mut rank = Rank { args, comm, first, workers, train, batches: None, services };
    if world.is_root() {
        let name = program.to_possible_value().unwrap_or_default();
        println!("{}: {workers} worker(s), {} backend", name.get_name(), world.backend());
    }
    let (before, _) = evaluate(&[0.0; PARAMETERS], data)?;
    comm.barrier()?;
    let start = Instant::now();
    let parameters = match program {
        Program::SyncServer => rank.sync_server()?,
        Program::AsyncServer if world.is_root() => rank.async_server()?,
        Program::AsyncServer => rank.async_worker()?,
        Program::AllReduce | Program::All => rank.all_reduce()?,
    };
    let seconds = start.elapsed().as_secs_f64();
    if world.is_root() {
        rank.print_table();
        let (after, accuracy) = evaluate(&parameters, data)?;
        ensure!(after.is_finite(), "the loss is {after}: --lr {} is too large", args.lr);
        println!("test loss before {before:.4}, after {after:.4}, accuracy {accuracy:.3}");
        let params = Params::from_vars([("parameters", Var::new(&*parameters, &Device::Cpu)?)])?;
        println!("{seconds:.3} s, SHA-256 of the parameters {}\n", parameters_sha256(&params)?);
    }
    Ok(())
}

/// This rank in one program.
struct Rank<'a> {
    args: &'a Args,
    comm: &'a dyn Communicator,
    /// The rank of worker 0.
    first: usize,
    workers: usize,
    train: &'a ImageDataset,
    /// The rest of this worker's share of the images.
    batches: Option<Batches>,
    services: Vec<Service>,
}

/// A gradient that has been applied.
struct Service {
    worker: usize,
    /// The number of updates since its parameters were sent.
    staleness: usize,
    /// The number of other gradients that were applied while it was in a queue.
    wait: usize,
}

impl Rank<'_> {
    /// Server and workers of `sync-server`.
    fn sync_server(&mut self) -> Result<Vec<f32>> {
        let mut parameters = vec![0.0; PARAMETERS];
        let mut message = vec![0.0; 1 + PARAMETERS];
        for updates in 0..self.args.steps.get() {
            if self.comm.rank() == SERVER {
                let mut sum = vec![0.0; PARAMETERS];
                for worker in 0..self.workers {
                    self.comm.recv(&mut message, self.first + worker)?;
                    sum.iter_mut().zip(&message[1..]).for_each(|(sum, gradient)| *sum += gradient);
                    self.served(worker, updates.saturating_sub(message[0] as usize), 0);
                }
                self.update(&mut parameters, &sum, self.workers);
            } else {
                let gradient = self.gradient(&parameters)?;
                self.comm.send(&with_updates(updates, &gradient), SERVER)?;
            }
            self.comm.broadcast(&mut parameters, SERVER)?;
        }
        Ok(parameters)
    }

    /// A worker of `all-reduce`.
    fn all_reduce(&mut self) -> Result<Vec<f32>> {
        let mut parameters = vec![0.0; PARAMETERS];
        for _ in 0..self.args.steps.get() {
            let mut sum = self.gradient(&parameters)?;
            self.comm.all_reduce(&mut sum, ReduceOp::Sum)?;
            self.update(&mut parameters, &sum, self.workers);
            (0..self.workers).for_each(|worker| self.served(worker, 0, 0));
        }
        Ok(parameters)
    }

    /// The server of `async-server`.
    fn async_server(&mut self) -> Result<Vec<f32>> {
        let all = self.args.steps.get() * self.workers;
        let mut parameters = vec![0.0; PARAMETERS];
        // A receive for each gradient that a worker computes. They are complete in this order.
        let mut receives = VecDeque::new();
        for worker in 0..self.workers {
            receives.push_back(self.order(worker, 0, &parameters)?);
        }
        // The gradients of each worker, with the count of updates at which they arrived.
        let mut queues = vec![VecDeque::new(); self.workers];
        let mut last = self.workers - 1;
        for updates in 0..all {
            // The server waits only if it has no gradient.
            while let Some(receive) = receives.pop_front_if(|receive: &mut Pending| {
                queues.iter().all(VecDeque::is_empty) || receive.is_complete()
            }) {
                let message = receive.wait()?;
                let from = message.source().context("a message without a sender")?;
                ensure!(message.len() == 1 + PARAMETERS, "rank {from} sent no gradient");
                queues[from - self.first].push_back((updates, message.to_vec::<f32>()?));
            }
            let mut turns = (last + 1..=last + self.workers).map(|turn| turn % self.workers);
            let found = turns.find_map(|worker| Some((worker, queues[worker].pop_front()?)));
            let (worker, (arrived, message)) = found.context("the server has no gradient")?;
            self.update(&mut parameters, &message[1..], 1);
            self.served(worker, updates.saturating_sub(message[0] as usize), updates - arrived);
            // Each of the other workers computes a gradient, which may be all that is missing.
            if updates + self.workers < all {
                receives.push_back(self.order(worker, updates + 1, &parameters)?);
            } else {
                self.comm.send::<f32>(&[], self.first + worker)?; // the end
            }
            last = worker;
        }
        Ok(parameters)
    }

    /// Sends a worker the parameters and starts to receive the next gradient of any worker.
    fn order(&self, worker: usize, updates: usize, parameters: &[f32]) -> Result<Pending> {
        self.comm.send(&with_updates(updates, parameters), self.first + worker)?;
        Ok(self.comm.start(Collective::RecvAny, Payload::zeros(ElementType::F32, 0)))
    }

    /// A worker of `async-server`. Returns the last parameters that it received.
    fn async_worker(&mut self) -> Result<Vec<f32>> {
        let mut parameters = Vec::new();
        loop {
            // Only the server sends to a worker.
            let (_, mut message) = self.comm.recv_any::<f32>()?;
            if message.is_empty() {
                return Ok(parameters);
            }
            parameters = message.split_off(1);
            let gradient = self.gradient(&parameters)?;
            self.comm.send(&with_updates(message[0] as usize, &gradient), SERVER)?;
        }
    }

    /// The gradient of the loss of this worker's next batch.
    fn gradient(&mut self, parameters: &[f32]) -> Result<Vec<f32>> {
        let start = Instant::now();
        let batch = match self.batches.as_mut().and_then(Iterator::next) {
            Some(batch) => batch?,
            None => {
                // Shares are divided by workers, so they are the same with and without a server.
                let worker = self.comm.rank() - self.first;
                let share = self.train.partition(worker, self.workers, Remainder::Drop)?;
                let batches = self.batches.insert(share.batches(self.args.batch_size)?);
                batches.next().context("a worker without images")??
            }
        };
        let parameters = Var::new(parameters, &Device::Cpu)?;
        let loss = softmax_cross_entropy(&scores(&parameters, &batch.xs)?, &batch.ys)?;
        let grads = loss.backward()?;
        let gradient =
            grads.get(&parameters).context("the parameters have no gradient")?.to_vec1()?;
        if self.args.slow_rank == Some(self.comm.rank()) {
            thread::sleep(start.elapsed() * (self.args.slow_factor.get() - 1));
        }
        Ok(gradient)
    }

    /// One step of SGD by the mean of `count` gradients.
    fn update(&self, parameters: &mut [f32], sum: &[f32], count: usize) {
        for (parameter, sum) in parameters.iter_mut().zip(sum) {
            *parameter -= self.args.lr * (sum / count as f32);
        }
    }

    /// Counts a gradient that has been applied, and prints it on rank 0.
    fn served(&mut self, worker: usize, staleness: usize, wait: usize) {
        self.services.push(Service { worker, staleness, wait });
        let (number, rank) = (self.services.len(), self.first + worker);
        if self.comm.is_world_root() && (number <= 10 || self.args.verbose) {
            println!("gradient {number:>4}: worker {worker} (rank {rank}), staleness {staleness}");
        }
    }

    fn print_table(&self) {
        println!("worker  gradients  mean staleness  greatest  longest run  longest wait");
        for worker in 0..self.workers {
            let own = || self.services.iter().filter(|one| one.worker == worker);
            let (count, sum): (usize, usize) =
                (own().count(), own().map(|one| one.staleness).sum());
            let greatest = own().map(|one| one.staleness).max().unwrap_or(0);
            let wait = own().map(|one| one.wait).max().unwrap_or(0);
            let runs = self.services.chunk_by(|one, next| one.worker == next.worker);
            let run = runs.filter(|run| run[0].worker == worker).map(<[_]>::len).max().unwrap_or(0);
            let mean = sum as f64 / count.max(1) as f64;
            println!("{worker:>6}{count:>11}{mean:>16.3}{greatest:>10}{run:>13}{wait:>14}");
        }
    }
}

/// A message with parameters, or with a gradient by them: the count of updates that these parameters
/// have had, then the numbers.
fn with_updates(updates: usize, numbers: &[f32]) -> Vec<f32> {
    [&[updates as f32], numbers].concat()
}

/// Softmax regression: (N, 1, 28, 28) -> (N, 10).
fn scores(parameters: &Tensor, xs: &Tensor) -> CandleResult<Tensor> {
    let weight = parameters.narrow(0, 0, PIXELS * DIGITS)?.reshape((PIXELS, DIGITS))?;
    let bias = parameters.narrow(0, PIXELS * DIGITS, DIGITS)?;
    xs.flatten_from(1)?.matmul(&weight)?.broadcast_add(&bias)
}

/// The loss and the accuracy on the test images.
fn evaluate(parameters: &[f32], data: &Mnist) -> Result<(f32, f32)> {
    let batch = data.test.batches(data.test.len())?.next().context("no test images")??;
    let parameters = Var::new(parameters, &Device::Cpu)?;
    let scores = scores(&parameters, &batch.xs)?; // (N, 10)
    let hits = scores.argmax(1)?.eq(&batch.ys)?.to_dtype(DType::F32)?;
    let loss = softmax_cross_entropy(&scores, &batch.ys)?;
    Ok((loss.to_scalar()?, hits.mean_all()?.to_scalar()?))
}
