//! An embedding of 10 million rows on servers, of which a worker has only the rows of its batch.
//!
//! The task is to predict clicks. A page shows eight items, and each item has an appeal, which the
//! model does not know. A visitor clicks if the appeals add up to more than 0. The n-th most popular
//! item is shown about 1/n as often as the most popular one (Zipf's law), so most items are hardly ever
//! shown. The model has a vector for each item, and a small dense head, which gets the sum of a page's
//! vectors. The vectors are in a `SparseEmbedding`. The head's parameters are dense values of the same
//! store, and this program pushes and pulls them by hand.
//!
//! ```text
//! cargo run --release --example sparse_embedding -- --workers 2 --servers 2
//! cargo run --release --example sparse_embedding -- --workers 2 --servers 2 --sweep
//! cargo run --release --example sparse_embedding -- --workers 3 --kvstore dist_async
//! mpiexec --bind-to none -n 4 cargo run --release --example sparse_embedding -- --servers 2
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use std::fs;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candelabrum::candle::Result as CandleResult;
use candelabrum::dist::launch::DeviceChoice;
use candelabrum::kvstore::{PendingPull, Prefetch, RowInit};
use candelabrum::nn::ops::softmax_cross_entropy;
use candelabrum::nn::seed;
use candelabrum::prelude::*;
use candelabrum::train::cli::{parse, run_with_servers};
use clap::Parser;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Items on a page.
const ITEMS: usize = 8;

/// Train an embedding that is too large for a worker
#[derive(Parser)]
struct Args {
    /// Start this many workers on this machine; without them, one process is worker and server
    #[arg(long, value_name = "N")]
    workers: Option<NonZeroUsize>,
    /// Start this many servers beside the workers, or let this many of the started ranks be servers
    /// [default: 1]
    #[arg(long, value_name = "N")]
    servers: Option<NonZeroUsize>,
    /// local, dist_sync or dist_async [default: dist_sync, or local in one process]
    #[arg(long, value_name = "KIND")]
    kvstore: Option<StoreKind>,
    /// Rows of the table: items that may be shown
    #[arg(long, value_name = "N", default_value = "10000000")]
    rows: NonZeroUsize,
    /// Elements of a row
    #[arg(long, value_name = "N", default_value = "16")]
    dim: NonZeroUsize,
    /// Steps of every worker
    #[arg(long, value_name = "N", default_value = "5000")]
    steps: NonZeroUsize,
    /// Pages per step and worker
    #[arg(long, value_name = "N", default_value = "256")]
    batch_size: NonZeroUsize,
    /// Learning rate of AdaGrad
    #[arg(long, default_value = "0.1")]
    lr: f64,
    /// Seed of the pages and of the first values
    #[arg(long, default_value = "0")]
    seed: u64,
    /// Measure the traffic of a step at several batch sizes, too
    #[arg(long)]
    sweep: bool,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    let workers = args.workers.map(NonZeroUsize::get);
    let servers = args.servers.map(NonZeroUsize::get).or(workers.and(Some(1)));
    // Servers serve, and do not call `train`.
    run_with_servers(workers, servers, Some(1), Some(DeviceChoice::Cpu), |world| {
        train(&args, world)
    })
}

fn train(args: &Args, world: &World) -> Result<()> {
    let alone = world.everyone().world_size() == 1;
    let usual = if alone { StoreKind::Local } else { StoreKind::DistSync };
    let kind = args.kvstore.unwrap_or(usual);
    let store = KvStore::create(&kind.to_string(), world)?;
    let (rows, dim, workers) = (args.rows.get(), args.dim.get(), store.num_workers());
    let table_bytes = rows as f64 * dim as f64 * size_of::<f32>() as f64;
    if store.rank() == 0 {
        let servers = world.servers();
        println!("{kind}: {workers} worker(s), {servers} server(s), {} backend", world.backend());
        println!("table: {rows} rows of {dim} elements, {:.1} MB", table_bytes / 1e6);
    }
    let init = RowInit::Normal { std: 0.05, seed: args.seed };
    let items = SparseEmbedding::new(&store, "items", rows, dim, init)?;
    let head = Head::new(&store, args)?;
    // A server adds the gradients of a round of dist_sync, and takes all others one by one.
    let summed = if kind == StoreKind::DistSync { workers } else { 1 };
    store.set_optimizer(AdaGrad::new(args.lr), summed as f32)?;
    let head_bytes = head.bytes_per_step()?;

    let pages = Pages::new(args, store.rank());
    let mut worker = Worker { store: &store, items, head, pages };
    let steps = args.steps.get();
    let cost = worker.run(steps, args.batch_size.get(), steps.div_ceil(10))?;
    if store.rank() == 0 {
        println!("{:.1} s, {:.1} steps/s\n", cost.seconds * steps as f64, 1.0 / cost.seconds);
        println!("pages  rows touched  bytes sent  bytes received  bytes per row");
        cost.print(args.batch_size.get(), head_bytes);
    }
    for batch_size in [64, 256, 1024, 4096] {
        if args.sweep {
            let cost = worker.run(20, batch_size, usize::MAX)?;
            if store.rank() == 0 {
                cost.print(batch_size, head_bytes);
            }
        }
    }
    if store.rank() == 0 {
        println!(
            "on average over steps and workers; bytes per row without the head's {head_bytes}"
        );
    }
    print_memory(&store, kind, table_bytes)
}

/// One worker: its layers, its part of the pages.
struct Worker<'a> {
    store: &'a KvStore,
    items: SparseEmbedding,
    head: Head<'a>,
    pages: Pages,
}

impl Worker<'_> {
    /// Takes `steps` steps, and prints the mean loss of each `every` steps. Returns the cost of a step.
    fn run(&mut self, steps: usize, batch_size: usize, every: usize) -> Result<Cost> {
        self.store.barrier()?;
        let (start, before) = (Instant::now(), self.store.traffic());
        let (mut touched, mut losses) = (0, Vec::new());
        let mut next = Some(self.prefetch(batch_size)?);
        for step in 1..=steps {
            let (rows, clicks) = next.take().context("no batch")?;
            touched += rows.rows();
            let vectors = rows.wait()?; // (N, ITEMS, D)
            let loss = softmax_cross_entropy(&self.head.forward(&vectors)?, &clicks)?;
            let gradients = loss.backward()?; // pushes the gradient of the rows
            let gradients = self.head.params.list().into_iter().map(|param| {
                gradients.get(param.var()).cloned().context("a parameter without gradient")
            });
            let pulls = self.head.start_update(&gradients.collect::<Result<Vec<_>>>()?)?;
            if step < steps {
                next = Some(self.prefetch(batch_size)?);
            }
            self.head.finish_update(pulls)?;
            losses.push(loss.to_scalar::<f32>()?);
            if losses.len() == every || step == steps {
                let loss = self.mean(losses.iter().sum::<f32>() / losses.len() as f32)?;
                losses.clear();
                ensure!(loss.is_finite(), "the loss is {loss}: --lr is too large");
                if self.store.rank() == 0 && every <= steps {
                    println!("step {step:>5}: loss {loss:.4}");
                }
            }
        }
        self.store.stats()?; // returns when every server has all messages of this worker
        let traffic = self.store.traffic() - before;
        let per_step = |count: f64| self.mean((count / steps as f64) as f32).map(f64::from);
        Ok(Cost {
            seconds: per_step(start.elapsed().as_secs_f64())?,
            rows: per_step(touched as f64)?,
            sent: per_step(traffic.bytes_sent as f64)?,
            received: per_step(traffic.bytes_received as f64)?,
        })
    }

    /// The next batch: its rows are on their way, its clicks are here.
    fn prefetch(&mut self, batch_size: usize) -> Result<(Prefetch, Tensor)> {
        let (items, clicks) = self.pages.batch(batch_size)?;
        Ok((self.items.prefetch(&items)?, clicks))
    }

    /// The mean over all workers.
    fn mean(&self, value: f32) -> Result<f32> {
        let mut values = [value];
        self.store.workers().all_reduce(&mut values, ReduceOp::Sum)?;
        Ok(values[0] / self.store.num_workers() as f32)
    }
}

/// The cost of a step, on average over steps and workers.
struct Cost {
    seconds: f64,
    rows: f64,
    sent: f64,
    received: f64,
}

impl Cost {
    fn print(&self, pages: usize, head_bytes: f64) {
        let Self { rows, sent, received, .. } = self;
        let per_row = (sent + received - head_bytes).max(0.0) / rows;
        println!("{pages:>5}{rows:>14.0}{sent:>12.0}{received:>16.0}{per_row:>15.1}");
    }
}

/// The dense part of the model. Its parameters are dense values of the store.
struct Head<'a> {
    store: &'a KvStore,
    params: Params,
    hidden: Linear,
    out: Linear,
}

impl<'a> Head<'a> {
    fn new(store: &'a KvStore, args: &Args) -> Result<Self> {
        let params = Params::new(args.seed);
        let root = params.root();
        let hidden = Linear::new(&root.pp("hidden"), 32).activation(Activation::Relu);
        let head = Self { store, hidden, out: Linear::new(&root.pp("out"), 2), params };
        let page = Tensor::zeros((1, ITEMS, args.dim.get()), DType::F32, &Device::Cpu)?;
        head.forward(&page)?; // creates the parameters
        let value = |param: &candelabrum::nn::Param| {
            (param.name().into(), param.var().as_detached_tensor())
        };
        store.init_all(head.params.list().iter().map(value))?;
        Ok(head)
    }

    /// (N, ITEMS, D) -> (N, 2)
    fn forward(&self, vectors: &Tensor) -> CandleResult<Tensor> {
        self.out.forward(&self.hidden.forward(&vectors.sum(1)?)?)
    }

    /// Pushes the gradients, and asks for the updated values by the same messages.
    fn start_update(&self, gradients: &[Tensor]) -> Result<Vec<PendingPull>> {
        let params = self.params.list();
        let params = params.iter().zip(gradients);
        params.map(|(param, grad)| Ok(self.store.pushpull(param.name(), grad, 0)?)).collect()
    }

    fn finish_update(&self, pulls: Vec<PendingPull>) -> Result<()> {
        for (param, pull) in self.params.list().iter().zip(pulls) {
            param.set(&pull.wait()?)?;
        }
        Ok(())
    }

    /// Bytes sent and received by an update, measured by one that changes nothing.
    fn bytes_per_step(&self) -> Result<f64> {
        self.store.barrier()?;
        let before = self.store.traffic();
        let params = self.params.list();
        let zeros = params.iter().map(|param| param.var().zeros_like());
        self.finish_update(self.start_update(&zeros.collect::<CandleResult<Vec<_>>>()?)?)?;
        let traffic = self.store.traffic() - before;
        Ok((traffic.bytes_sent + traffic.bytes_received) as f64)
    }
}

/// Pages without end, and whether a visitor has clicked.
struct Pages {
    rows: u64,
    /// The seed of the appeals.
    appeals: u64,
    rng: ChaCha8Rng,
}

impl Pages {
    fn new(args: &Args, worker: usize) -> Self {
        let rng = seed::rng(seed::nth(seed::derive(args.seed, "pages"), worker as u64));
        let appeals = seed::derive(args.seed, "appeals");
        Self { rows: args.rows.get() as u64, appeals, rng }
    }

    /// Items (N, ITEMS) and clicks (N).
    fn batch(&mut self, pages: usize) -> Result<(Tensor, Tensor)> {
        let mut items = Vec::with_capacity(pages * ITEMS);
        let mut clicks = Vec::with_capacity(pages);
        for _ in 0..pages {
            let mut appeal = 0.0;
            for _ in 0..ITEMS {
                let item = self.item();
                items.push(item as u32);
                appeal += seed::nth(self.appeals, item) as f64 / u64::MAX as f64 - 0.5;
            }
            clicks.push(u32::from(appeal > 0.0));
        }
        let items = Tensor::from_vec(items, (pages, ITEMS), &Device::Cpu)?;
        Ok((items, Tensor::from_vec(clicks, pages, &Device::Cpu)?))
    }

    fn item(&mut self) -> u64 {
        // The logarithm is uniform, so the density at n is proportional to 1/n.
        let popularity = (self.rows as f64).powf(self.rng.random()) as u64 - 1;
        // The popular items are all over the table, so that each server has as many. The factor is
        // prime.
        popularity * 2_654_435_761 % self.rows
    }
}

fn print_memory(store: &KvStore, kind: StoreKind, table_bytes: f64) -> Result<()> {
    let peaks = store.workers().all_gather(&[peak_memory()?])?;
    if store.rank() != 0 {
        return Ok(());
    }
    println!("\nprocess   peak memory, MB  % of the table  rows held");
    let row = |name: String, bytes: f64, rows: String| {
        let (mb, percent) = (bytes / 1e6, 100.0 * bytes / table_bytes);
        println!("{name:<10}{mb:>15.1}{percent:>16.1}{rows:>11}");
    };
    for (worker, peak) in peaks.into_iter().enumerate() {
        row(format!("worker {worker}"), peak, "-".to_owned());
    }
    for (number, server) in store.stats()?.into_iter().enumerate() {
        let name = if kind == StoreKind::Local {
            "(the same)".to_owned()
        } else {
            format!("server {number}")
        };
        row(name, server.peak_memory as f64, server.rows.to_string());
    }
    Ok(())
}

/// The most memory that this process has had at a time, in bytes.
fn peak_memory() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 =
        line.and_then(|line| line.split_whitespace().next()).context("VmHWM")?.parse()?;
    Ok(kib * 1024.0)
}
