//! `bench-player transfer`: the time of one round of push and pull of all parameters of ResNet-18, for
//! a key-value store and for the exchanges that are compared with it.
//!
//! A round of a store is a `pushpull` of every parameter and the wait for every value. Every sample makes
//! a store of its own, so one set of processes serves all settings of a store. A sample is the median of
//! the rounds that fill its time, on the slowest worker.

use std::hint::black_box;
use std::time::Instant;

use candelabrum::dist::CommStats;
use candelabrum::kvstore::Compression;
use candelabrum::models::ResNet18;
use candelabrum::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exchange::{Buckets, Exchange, number, numbers, sum};
use crate::pace::{RankPace, Repeat};
use crate::serve::{RequestHandler, Seconds, serve};

/// The classes of ImageNet.
const CLASSES: usize = 1000;

/// Rounds before the measured ones.
const WARM_UP: u32 = 3;

pub(crate) fn run(world: &World) -> anyhow::Result<()> {
    let params = Params::on(0, DType::F32, &Device::Cpu);
    ResNet18::new(&params.root(), CLASSES).compile(&params, (1, 3, 32, 32))?;
    serve(&mut Transfer { world: world.clone(), params }, world)
}

struct Transfer {
    world: World,
    params: Params,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferRequest {
    exchange: Exchange,
    /// Whether servers update by SGD with momentum. Otherwise the sum becomes the value.
    #[serde(default)]
    optimizer: bool,
    compression: Option<PushCompression>,
    seconds: Seconds,
}

/// The compression of pushes.
#[derive(Clone, Copy, Debug, Deserialize)]
enum PushCompression {
    #[serde(rename = "fp16")]
    Fp16,
    #[serde(rename = "2bit")]
    TwoBit,
}

impl RequestHandler for Transfer {
    type Request = TransferRequest;

    fn ready(&self) -> Value {
        json!({"parameters": self.params.len(), "bytes": self.bytes()})
    }

    fn sample(&mut self, request: TransferRequest) -> anyhow::Result<Value> {
        if self.world.is_server() {
            Server::new().run(&self.world)?;
            return Ok(json!({}));
        }
        let mut work = self.work(request)?;
        let is_right =
            self.expected(request).map(|expected| work.is_right(&expected)).transpose()?;
        work.forget()?;
        let mut pace = RankPace::new(&self.world);
        let mut times = Vec::new();
        let mut rounds = |count: u32| -> anyhow::Result<CommStats> {
            times.clear();
            let before = work.traffic();
            for _ in 0..count {
                let start = Instant::now();
                work.round()?;
                times.push(start.elapsed().as_secs_f64());
            }
            Ok(work.traffic() - before)
        };
        pace.run(Repeat::Steps(WARM_UP.try_into()?), &mut rounds)?;
        let (timed, traffic) = pace.run(Repeat::Seconds(request.seconds), rounds)?;
        times.sort_by(f64::total_cmp);
        let is_wrong = is_right == Some(false);
        let mut slowest = [times[times.len() / 2], f64::from(u8::from(is_wrong))];
        self.world.comm().all_reduce(&mut slowest, ReduceOp::Max)?;
        let [seconds, wrong] = slowest;
        let per_round = |bytes: u64| bytes as f64 / f64::from(timed.steps);
        let mut sample = json!({
            "speed": self.bytes() as f64 / seconds / 1e9, // GB/s
            "round_seconds": seconds,
            "steps": timed.steps,
            "bytes_sent_per_round": per_round(traffic.bytes_sent),
            "bytes_received_per_round": per_round(traffic.bytes_received),
        });
        if is_right.is_some() {
            sample["correct"] = (wrong == 0.0).into();
        }
        Ok(sample)
    }
}

impl Transfer {
    /// The bytes of all parameters.
    fn bytes(&self) -> usize {
        self.params.element_count() * size_of::<f32>()
    }

    /// The elements of each parameter.
    fn sizes(&self) -> Vec<usize> {
        self.params.list().iter().map(|param| param.var().elem_count()).collect()
    }

    fn work(&self, request: TransferRequest) -> anyhow::Result<TransferWork> {
        let (rank, sizes) = (self.world.rank(), self.sizes());
        if let Some(kind) = request.exchange.store() {
            return self.store(kind, request);
        }
        if matches!(request.exchange, Exchange::Steps | Exchange::ServedSteps) {
            return self.steps(request.exchange == Exchange::ServedSteps);
        }
        if request.exchange == Exchange::Memory {
            return Ok(TransferWork::Own(numbers(rank, sizes.iter().sum())));
        }
        let mut buckets = Buckets::new(&self.world, self.bytes())?;
        for values in buckets.values()? {
            values.copy_from_slice(&numbers(rank, values.len()));
        }
        Ok(TransferWork::Buckets(buckets))
    }

    fn store(&self, kind: StoreKind, request: TransferRequest) -> anyhow::Result<TransferWork> {
        let store = KvStore::with_config(&StoreConfig::new(kind), &self.world)?;
        store.set_gradient_compression(match request.compression {
            None => Compression::None,
            Some(PushCompression::Fp16) => Compression::Fp16,
            Some(PushCompression::TwoBit) => Compression::TwoBit { threshold: 0.5 },
        })?;
        if request.optimizer {
            store.set_optimizer(Sgd::new(0.05).momentum(0.9), store.num_workers() as f32)?;
        }
        let params = self.params.list();
        let value = |param: &candelabrum::nn::Param| {
            (param.name().into(), param.var().as_detached_tensor())
        };
        store.init_all(params.iter().map(value))?;
        let sizes = self.sizes();
        Ok(TransferWork::Store {
            names: params.iter().map(|param| param.name().to_owned()).collect(),
            gradients: sizes.iter().map(|&len| numbers(store.rank(), len)).collect(),
            values: sizes.iter().map(|&len| vec![0.0; len]).collect(),
            store,
        })
    }

    /// Steps of all parameters by SGD with momentum.
    fn steps(&self, by_servers: bool) -> anyhow::Result<TransferWork> {
        let (params, config) = (self.params.clone(), DistOptConfig::default());
        let sgd = Sgd::new(1e-6).momentum(0.9);
        let opt = if by_servers {
            let store = KvStore::create("dist_sync", &self.world)?;
            DistOpt::with_servers(sgd, &params, store.servers(), config)?
        } else {
            DistOpt::with_config(sgd, &params, &self.world, config)?
        };
        Ok(TransferWork::Steps { params, opt: Box::new(opt) })
    }

    /// The number at each place after the first round, if it is certain.
    fn expected(&self, request: TransferRequest) -> Option<Box<dyn Fn(usize) -> f32>> {
        let (rank, ranks) = (self.world.rank(), self.world.world_size());
        let is_lossy = matches!(request.compression, Some(PushCompression::TwoBit));
        match request.exchange {
            Exchange::Memory => Some(Box::new(move |i| -number(rank, i))),
            Exchange::DistSync if request.optimizer || is_lossy => None,
            Exchange::DistSync | Exchange::AllReduce => Some(Box::new(move |i| sum(ranks, i))),
            Exchange::DistAsync | Exchange::ServedSteps | Exchange::Steps => None,
        }
    }
}

/// What is measured.
enum TransferWork {
    Store { store: KvStore, names: Vec<String>, gradients: Vec<Vec<f32>>, values: Vec<Vec<f32>> },
    Steps { params: Params, opt: Box<DistOpt> },
    Buckets(Buckets),
    Own(Vec<f32>),
}

impl TransferWork {
    fn round(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Store { store, names, gradients, values } => {
                let mut pulls = Vec::new();
                // In the order and with the priorities of a training step.
                for (place, name) in names.iter().enumerate().rev() {
                    pulls.push(store.pushpull(&**name, &*gradients[place], -(place as i32))?);
                }
                let mut pulls = pulls.into_iter().rev().zip(values);
                pulls.try_for_each(|(pull, values)| Ok(pull.wait_into(values)?))
            }
            Self::Steps { params, opt } => {
                // The loss whose gradients cost least.
                let params = params.list();
                let sums = params.iter().map(|param| param.tensor().sum_all());
                let sums = sums.collect::<candelabrum::candle::Result<Vec<_>>>()?;
                Ok(opt.backward_and_update_with(
                    &Tensor::stack(&sums, 0)?.sum_all()?,
                    DistOption::Fp32,
                    0.0,
                )?)
            }
            Self::Buckets(buckets) => buckets.all_reduce(),
            Self::Own(values) => {
                black_box(values).iter_mut().for_each(|x| *x = -*x);
                Ok(())
            }
        }
    }

    /// Whether a round makes the expected numbers.
    fn is_right(&mut self, expected: &dyn Fn(usize) -> f32) -> anyhow::Result<bool> {
        self.round()?;
        let right = |values: &[f32]| values.iter().enumerate().all(|(i, x)| *x == expected(i));
        Ok(match self {
            Self::Store { values, .. } => values.iter().all(|values| right(values)),
            Self::Buckets(buckets) => buckets.values()?.into_iter().all(|values| right(values)),
            Self::Own(values) => right(values),
            Self::Steps { .. } => true,
        })
    }

    /// Makes the numbers zeros where repeated sums would overflow.
    fn forget(&mut self) -> anyhow::Result<()> {
        if let Self::Buckets(buckets) = self {
            buckets.values()?.into_iter().for_each(|values| values.fill(0.0));
        }
        Ok(())
    }

    /// The payload of this worker so far.
    fn traffic(&self) -> CommStats {
        match self {
            Self::Store { store, .. } => store.traffic(),
            Self::Steps { opt, .. } => opt.traffic(),
            Self::Buckets(buckets) => buckets.world.comm().stats(),
            Self::Own(_) => CommStats::default(),
        }
    }
}
