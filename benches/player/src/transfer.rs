//! `bench-player transfer`: the time of one round of push and pull of all parameters of ResNet-18, for
//! a key-value store and for the exchanges that are compared with it.
//!
//! A round of a store is a `pushpull` of every parameter and the wait for every value. Every sample makes
//! a store of its own, so one set of processes serves all settings of a store. A sample is the median of
//! the rounds that fill its time, on the slowest worker.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use candelabrum::dist::{Collective, CommStats, DistOptConfig, ElementType, Payload};
use candelabrum::kvstore::Compression;
use candelabrum::models::ResNet18;
use candelabrum::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pace;
use crate::serve::{Player, Seconds, serve};

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
struct Request {
    exchange: Exchange,
    /// Whether servers update by SGD with momentum. Otherwise the sum becomes the value.
    #[serde(default)]
    optimizer: bool,
    compression: Option<Code>,
    seconds: Seconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Exchange {
    DistSync,
    DistAsync,
    /// All parameters in buckets, as `DistOpt` divides them.
    AllReduce,
    /// The memory's speed: each rank negates a vector of its own.
    Memory,
}

/// The compression of pushes.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Code {
    #[serde(rename = "fp16")]
    Fp16,
    #[serde(rename = "2bit")]
    TwoBit,
}

impl Player for Transfer {
    type Request = Request;

    fn ready(&self) -> Value {
        json!({"parameters": self.params.len(), "bytes": self.bytes()})
    }

    fn sample(&mut self, request: Request) -> anyhow::Result<Value> {
        if self.world.is_server() {
            Server::new().run(&self.world)?;
            return Ok(json!({}));
        }
        let mut work = self.work(request)?;
        let is_right =
            self.expected(request).map(|expected| work.is_right(&expected)).transpose()?;
        work.forget();
        let mut pace = pace::Pace::new(&self.world);
        let mut times = Vec::new();
        let mut rounds = |count: u32| -> anyhow::Result<CommStats> {
            times.clear();
            let before = work.traffic(&self.world);
            for _ in 0..count {
                let start = Instant::now();
                work.round()?;
                times.push(start.elapsed().as_secs_f64());
            }
            Ok(work.traffic(&self.world) - before)
        };
        pace.run(pace::Request::Steps(WARM_UP.try_into()?), &mut rounds)?;
        let (timed, traffic) = pace.run(pace::Request::Seconds(request.seconds), rounds)?;
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

    fn work(&self, request: Request) -> anyhow::Result<Work> {
        let (rank, sizes) = (self.world.rank(), self.sizes());
        Ok(match request.exchange {
            Exchange::DistSync => self.store(StoreKind::DistSync, request)?,
            Exchange::DistAsync => self.store(StoreKind::DistAsync, request)?,
            Exchange::AllReduce => {
                let alloc = |len: usize| -> anyhow::Result<Option<Payload>> {
                    let mut bucket = self.world.comm().alloc(ElementType::F32, len)?;
                    bucket.as_mut_slice()?.copy_from_slice(&gradient(rank, len));
                    Ok(Some(bucket))
                };
                let buckets = bucket_sizes(&sizes).into_iter().map(alloc);
                Work::Buckets(self.world.clone(), buckets.collect::<anyhow::Result<_>>()?)
            }
            Exchange::Memory => Work::Own(gradient(rank, sizes.iter().sum())),
        })
    }

    fn store(&self, kind: StoreKind, request: Request) -> anyhow::Result<Work> {
        let store = KvStore::with_config(&StoreConfig::new(kind), &self.world)?;
        store.set_gradient_compression(match request.compression {
            None => Compression::None,
            Some(Code::Fp16) => Compression::Fp16,
            Some(Code::TwoBit) => Compression::TwoBit { threshold: 0.5 },
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
        Ok(Work::Store {
            names: params.iter().map(|param| param.name().to_owned()).collect(),
            gradients: sizes.iter().map(|&len| gradient(store.rank(), len)).collect(),
            values: sizes.iter().map(|&len| vec![0.0; len]).collect(),
            store,
        })
    }

    /// The number at each place after the first round, if it is certain.
    fn expected(&self, request: Request) -> Option<Box<dyn Fn(usize) -> f32>> {
        let (rank, ranks) = (self.world.rank(), self.world.world_size());
        let is_lossy = matches!(request.compression, Some(Code::TwoBit));
        match request.exchange {
            Exchange::Memory => Some(Box::new(move |i| -number(rank, i))),
            Exchange::DistSync if request.optimizer || is_lossy => None,
            Exchange::DistSync | Exchange::AllReduce => {
                Some(Box::new(move |i| (0..ranks).map(|rank| number(rank, i)).sum()))
            }
            Exchange::DistAsync => None,
        }
    }
}

/// What is measured.
enum Work {
    Store {
        store: KvStore,
        names: Vec<String>,
        gradients: Vec<Vec<f32>>,
        values: Vec<Vec<f32>>,
    },
    /// A bucket is `None` only while it is being reduced.
    Buckets(World, Vec<Option<Payload>>),
    Own(Vec<f32>),
}

impl Work {
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
            Self::Buckets(world, buckets) => {
                let op = Collective::AllReduce(ReduceOp::Sum);
                let mut started = Vec::new();
                for bucket in &mut *buckets {
                    started.push(world.comm().start(op, bucket.take().context("no bucket")?));
                }
                for (bucket, pending) in buckets.iter_mut().zip(started) {
                    *bucket = Some(pending.wait()?);
                }
                Ok(())
            }
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
            Self::Buckets(_, buckets) => {
                let values = buckets.iter().flatten().map(|bucket| Ok(right(bucket.as_slice()?)));
                values.collect::<anyhow::Result<Vec<bool>>>()?.into_iter().all(|is_right| is_right)
            }
            Self::Own(values) => right(values),
        })
    }

    /// Makes the numbers zeros where repeated sums would overflow.
    fn forget(&mut self) {
        if let Self::Buckets(_, buckets) = self {
            let values = buckets.iter_mut().flatten().filter_map(|b| b.as_mut_slice::<f32>().ok());
            values.for_each(|values| values.fill(0.0));
        }
    }

    /// The payload of this worker so far.
    fn traffic(&self, world: &World) -> CommStats {
        match self {
            Self::Store { store, .. } => store.traffic(),
            Self::Buckets(..) => world.comm().stats(),
            Self::Own(_) => CommStats::default(),
        }
    }
}

/// A worker's gradient of a parameter.
fn gradient(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|place| number(rank, place)).collect()
}

/// A number of magnitude below a half, which fp16 represents exactly, and of which f32 adds exactly.
fn number(rank: usize, place: usize) -> f32 {
    ((place + 7 * rank) % 1009) as f32 / 1024.0 - 0.5
}

/// The elements of the buckets of parameters of these sizes: from the last parameter on, as many as
/// [`DistOptConfig`] puts into one by default.
fn bucket_sizes(sizes: &[usize]) -> Vec<usize> {
    let DistOptConfig { first_bucket_bytes, bucket_bytes, .. } = DistOptConfig::default();
    let (mut buckets, mut open) = (Vec::new(), 0);
    for &size in sizes.iter().rev() {
        let cap = if buckets.is_empty() { first_bucket_bytes } else { bucket_bytes };
        if open > 0 && (open + size) * size_of::<f32>() > cap {
            buckets.push(std::mem::take(&mut open));
        }
        open += size;
    }
    buckets.extend((open > 0).then_some(open));
    buckets
}
