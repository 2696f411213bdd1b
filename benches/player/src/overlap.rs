//! `bench-player overlap`: copies of one network train in turns, with the exchange of gradients after
//! the backward pass, with overlap, and without an exchange. A fourth way is the exchange without any
//! other work, to find its shortest time.

use anyhow::ensure;
use candelabrum::dist::{
    Collective, Communicator, DistOptConfig, ElementType, Payload, Pending, ReduceOp, World,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pace::{Pace, Request, Timed};
use crate::serve::{Player, Seconds, serve};
use crate::settings::{Contender, Settings};
use crate::training::Training;

pub(crate) fn run(settings: &Settings, world: &World) -> anyhow::Result<()> {
    ensure!(settings.contender == Contender::Ours, "only ours overlaps");
    let training = |overlap, strangers| {
        Training::new(&Settings { overlap, strangers, ..settings.clone() }, world)
    };
    let (off, on, alone) = (training(false, false)?, training(true, false)?, training(true, true)?);
    let exchange = Exchange::new(off.gradient_bytes(), world)?;
    serve(&mut Overlap { off, on, alone, exchange }, world)
}

struct Overlap {
    off: Training,
    on: Training,
    alone: Training,
    exchange: Exchange,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    way: Way,
    seconds: Seconds,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Off,
    On,
    Alone,
    Exchange,
}

impl Player for Overlap {
    type Request = Ask;

    fn ready(&self) -> Value {
        json!({"gradient_bytes": self.off.gradient_bytes()})
    }

    fn sample(&mut self, Ask { way, seconds }: Ask) -> anyhow::Result<Value> {
        let training = match way {
            Way::Off => &mut self.off,
            Way::On => &mut self.on,
            Way::Alone => &mut self.alone,
            Way::Exchange => return Ok(self.exchange.run(seconds)?.fields()),
        };
        training.sample(Request::Seconds(seconds))
    }
}

/// Buffers with about the sizes of the buckets of a network's gradients.
struct Exchange {
    buckets: Vec<Payload>,
    pace: Pace,
}

impl Exchange {
    fn new(bytes: usize, world: &World) -> anyhow::Result<Self> {
        let config = DistOptConfig::default();
        let mut buckets = Vec::new();
        let (mut left, mut cap) = (bytes, config.first_bucket_bytes);
        while left > 0 {
            let len = left.min(cap).div_ceil(size_of::<f32>());
            buckets.push(world.comm().alloc(ElementType::F32, len)?);
            (left, cap) = (left - left.min(cap), config.bucket_bytes);
        }
        let mut exchange = Self { buckets, pace: Pace::new(world) };
        for _ in 0..2 {
            exchange.run(Seconds(0.01))?; // Finds the pace. The first run touches new memory.
        }
        Ok(exchange)
    }

    fn run(&mut self, seconds: Seconds) -> anyhow::Result<Timed> {
        let (group, buckets) = (self.pace.world.group(), &mut self.buckets);
        let work = |times| (0..times).try_for_each(|_| all_reduce(&*group, buckets));
        Ok(self.pace.run(Request::Seconds(seconds), work)?.0)
    }
}

/// All buckets are exchanged at the same time, as in a step.
fn all_reduce(group: &dyn Communicator, buckets: &mut Vec<Payload>) -> anyhow::Result<()> {
    let start = |bucket| group.start(Collective::AllReduce(ReduceOp::Sum), bucket);
    let started: Vec<Pending> = buckets.drain(..).map(start).collect();
    for pending in started {
        buckets.push(pending.wait()?);
    }
    Ok(())
}
