//! `bench-player straggler`: two workers train SINGA's CNN for a fixed time, of which the second one may
//! be slower, and the model is evaluated afterwards.
//!
//! A slower worker sleeps between its forward and its backward pass, as if both took longer. Where the
//! workers wait for each other in every step, the first one decides by its clock when both stop.
//! Otherwise each stops by its own clock. With a bound a worker may then still wait for pushes of the
//! other one. So the second worker leaves the store when it has stopped, and the first one goes on with
//! steps that do not count until the second one has left.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use candelabrum::datasets::{Batches, DataRequest, DatasetKind, Environment};
use candelabrum::dist::{Collective, Payload};
use candelabrum::kvstore::ServerStats;
use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum::train::{Accuracy, Metrics, Score, load_data};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exchange::Exchange;
use crate::serve::{RequestHandler, Seconds, serve};

/// Steps of each worker before the clock starts.
const WARM_UP: usize = 5;

/// Images in a batch of the evaluation.
const EVALUATED: usize = 500;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct StragglerArgs {
    /// Images in a worker's batch
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    #[arg(long, default_value_t = 0.02)]
    lr: f64,
    #[arg(long, default_value_t = 0.9)]
    momentum: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StragglerRequest {
    exchange: Exchange,
    /// The most rounds by which a worker may be ahead.
    bound: Option<u64>,
    /// How many times as long the second worker computes.
    slow: f64,
    seconds: Seconds,
}

pub(crate) fn run(args: &StragglerArgs, world: &World) -> anyhow::Result<()> {
    let (mut data, mut name) = (None, "");
    if !world.is_server() {
        let workers = world.world_size();
        ensure!(workers == 2, "a straggler needs 2 workers, there are {workers}");
        let request = DataRequest {
            kind: DatasetKind::Auto,
            environment: Environment::of_process(),
            quiet: true,
            ..DataRequest::default()
        };
        let loaded = load_data(&request, world)?;
        name = loaded.name;
        let train = loaded.train.partition(world.rank(), workers, Remainder::Drop)?;
        data = Some(Mnist { train, test: loaded.test });
    }
    serve(&mut Straggler { args: *args, world: world.clone(), data, name }, world)
}

struct Straggler {
    args: StragglerArgs,
    world: World,
    /// This worker's share for training and all images for the test. Servers have none.
    data: Option<Mnist>,
    name: &'static str,
}

impl RequestHandler for Straggler {
    type Request = StragglerRequest;

    fn ready(&self) -> Value {
        json!({"dataset": self.name})
    }

    fn sample(&mut self, request: StragglerRequest) -> anyhow::Result<Value> {
        let Self { args, world, data, .. } = self;
        let Some(data) = data else {
            Server::new().run(world)?;
            return Ok(json!({}));
        };
        ensure!((1.0..=1e3).contains(&request.slow), "a worker is 1 to 1000 times as slow");
        let time = Duration::from_secs_f64(request.seconds.0);
        let mut worker = Worker::new(args, request, world, data)?;
        for _ in 0..WARM_UP {
            worker.step()?;
        }
        let own = worker.run_for(time, request.exchange != Exchange::DistAsync)?;
        let comm = world.comm();
        if !world.is_root() {
            worker.leave();
            comm.send(&[f64::from(own.steps), own.seconds], 0)?;
            return Ok(json!({}));
        }
        let message = Payload::from_slice(&[0.0_f64; 2]);
        let mut left = comm.start(Collective::Recv { from: 1 }, message);
        while request.exchange == Exchange::DistAsync && !left.is_complete() {
            worker.step()?;
        }
        let [steps, seconds] = left.wait()?.to_vec::<f64>()?[..].try_into()?;
        let stats = worker.take_servers_parameters()?;
        let steps_per_second = f64::from(own.steps) / own.seconds + steps / seconds;
        let mut sample = json!({
            "speed": args.batch_size as f64 * steps_per_second, // images/s
            "seconds": own.seconds,
            "steps_of_worker_0": own.steps,
            "steps_of_worker_1": steps,
            "accuracy": worker.accuracy(&data.test)?,
        });
        if let Some(ServerStats { staleness, max_lead, .. }) = stats.first() {
            let sum: u64 = staleness.iter().map(|of_worker| of_worker.sum).sum();
            let count: u64 = staleness.iter().map(|of_worker| of_worker.count).sum();
            sample["mean_staleness"] = (sum as f64 / count.max(1) as f64).into();
            sample["max_staleness"] = staleness.iter().map(|of_worker| of_worker.max).max().into();
            sample["max_lead"] = (*max_lead).into();
        }
        Ok(sample)
    }
}

/// The steps of a worker, and the time that they took.
#[derive(Clone, Copy, Debug)]
struct TimedSteps {
    steps: u32,
    seconds: f64,
}

struct Worker {
    world: World,
    params: Params,
    model: Cnn,
    opt: DistOpt,
    store: Option<KvStore>,
    share: WorkerImages,
    /// The factor of its computing time.
    slow: f64,
    /// The time of the last backward pass.
    backward: Duration,
}

impl Worker {
    fn new(
        args: &StragglerArgs,
        request: StragglerRequest,
        world: &World,
        data: &Mnist,
    ) -> anyhow::Result<Self> {
        let params = Params::on(0, DType::F32, &Device::Cpu);
        let model = Cnn::new(&params.root(), data.train.classes());
        let [channels, height, width] = data.train.image_shape();
        model.compile(&params, (1, channels, height, width))?;
        let sgd = || Sgd::new(args.lr).momentum(args.momentum);
        let (opt, store) = match (request.exchange.store(), request.exchange) {
            (Some(kind), _) => {
                let config =
                    StoreConfig { staleness_bound: request.bound, ..StoreConfig::new(kind) };
                let store = KvStore::with_config(&config, world)?;
                let config = DistOptConfig { overlap_forward: true, ..DistOptConfig::default() };
                let opt = DistOpt::with_servers(sgd(), &params, store.servers(), config)?;
                (opt, Some(store))
            }
            (None, Exchange::Memory) => bail!("there is no training by memory"),
            (None, _) => (DistOpt::new(sgd(), &params, world)?, None),
        };
        let share = WorkerImages::new(&data.train, args.batch_size, world.rank() as u64)?;
        let slow = if world.rank() == 1 { request.slow } else { 1.0 };
        let (world, backward) = (world.clone(), Duration::ZERO);
        Ok(Self { world, params, model, opt, store, share, slow, backward })
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let (xs, ys) = self.share.next()?;
        let (start, waited) = (Instant::now(), self.waited());
        let loss = self.model.loss(&self.model.forward(&xs)?, &ys)?;
        // Parameters arrive during the forward pass. The wait for them is no computing.
        let forward = start.elapsed().saturating_sub(self.waited() - waited);
        thread::sleep((forward + self.backward).mul_f64(self.slow - 1.0));
        let before = self.opt.figures(DistOption::Fp32).backward;
        self.opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)?;
        self.backward = self.opt.figures(DistOption::Fp32).backward - before;
        Ok(())
    }

    /// The time of waits for servers so far.
    fn waited(&self) -> Duration {
        self.store.as_ref().map_or(Duration::ZERO, KvStore::waited)
    }

    /// Takes steps for this time. Together with the other worker it takes as many steps as that one.
    fn run_for(&mut self, time: Duration, together: bool) -> anyhow::Result<TimedSteps> {
        self.world.comm().barrier()?;
        let start = Instant::now();
        let mut steps = 0;
        loop {
            self.step()?;
            steps += 1;
            let mut goes_on = [u8::from(start.elapsed() < time)];
            if together {
                self.world.comm().broadcast(&mut goes_on, 0)?;
            }
            if goes_on == [0] {
                return Ok(TimedSteps { steps, seconds: start.elapsed().as_secs_f64() });
            }
        }
    }

    /// Leaves the store: drops all its handles, of which parameters on their way have some.
    fn leave(self) {
        for param in self.params.list() {
            param.var();
        }
    }

    /// Sets the parameters to those that the servers have, and returns what the servers have counted.
    fn take_servers_parameters(&self) -> anyhow::Result<Vec<ServerStats>> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        // The other worker has left. In dist_sync all ranks have the same values.
        for param in self.params.list().iter().filter(|_| !self.opt.is_in_step()) {
            param.set(&store.pull(param.name(), 0)?.wait()?)?;
        }
        Ok(store.stats()?)
    }

    /// The share of these images that the model classifies correctly.
    fn accuracy(&self, data: &ImageDataset) -> anyhow::Result<f64> {
        let mut metrics = Metrics::default();
        for batch in data.batches(EVALUATED)? {
            let batch = batch?;
            let output = self.params.in_mode(false, || self.model.forward(&batch.xs))?;
            Accuracy.add(&output, &batch.ys, &mut metrics)?;
        }
        Ok(metrics.accuracy())
    }
}

/// The images of a worker, shuffled anew each time it has seen all of them.
struct WorkerImages {
    data: ImageDataset,
    sampler: DistributedSampler,
    options: BatchOptions,
    epoch: usize,
    batches: Batches,
}

impl WorkerImages {
    fn new(data: &ImageDataset, batch_size: usize, seed: u64) -> anyhow::Result<Self> {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: data.len(),
            global_rank: 0,
            world_size: 1,
            batch_size,
            seed,
            shuffle: true,
            remainder: Remainder::Drop,
        })?;
        // No second thread of a worker computes.
        let options = BatchOptions { prefetch: 0, ..BatchOptions::default() };
        let batches = data.epoch_batches(&sampler, 0, &options)?;
        Ok(Self { data: data.clone(), sampler, options, epoch: 0, batches })
    }

    fn next(&mut self) -> anyhow::Result<(Tensor, Tensor)> {
        if self.batches.remaining() == 0 {
            self.epoch += 1;
            self.batches = self.data.epoch_batches(&self.sampler, self.epoch, &self.options)?;
        }
        let batch = self.batches.next().context("an epoch has no batch")??;
        Ok((batch.xs, batch.ys))
    }
}
