//! `bench-player overlap`: copies of one network train in turns, with the exchange of gradients after
//! the backward pass, with overlap, and without an exchange. A fourth way is the exchange without any
//! other work, to find its shortest time.

use anyhow::ensure;
use candelabrum::dist::World;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::exchange::Buckets;
use crate::pace::{RankPace, Repeat, Timing};
use crate::serve::{RequestHandler, Seconds, serve};
use crate::settings::{ContenderKind, TrainingSettings};
use crate::training::Training;

pub(crate) fn run(settings: &TrainingSettings, world: &World) -> anyhow::Result<()> {
    ensure!(settings.contender == ContenderKind::Ours, "only ours overlaps");
    let training = |overlap, strangers| {
        Training::new(&TrainingSettings { overlap, strangers, ..settings.clone() }, world)
    };
    let (off, on, alone) = (training(false, false)?, training(true, false)?, training(true, true)?);
    let exchange = ExchangeAlone::new(off.gradient_bytes(), world)?;
    serve(&mut Overlap { off, on, alone, exchange }, world)
}

struct Overlap {
    off: Training,
    on: Training,
    alone: Training,
    exchange: ExchangeAlone,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverlapRequest {
    way: OverlapMode,
    seconds: Seconds,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverlapMode {
    Off,
    On,
    Alone,
    Exchange,
}

impl RequestHandler for Overlap {
    type Request = OverlapRequest;

    fn ready(&self) -> Value {
        json!({"gradient_bytes": self.off.gradient_bytes()})
    }

    fn sample(&mut self, request: OverlapRequest) -> anyhow::Result<Value> {
        let OverlapRequest { way, seconds } = request;
        let training = match way {
            OverlapMode::Off => &mut self.off,
            OverlapMode::On => &mut self.on,
            OverlapMode::Alone => &mut self.alone,
            OverlapMode::Exchange => return Ok(self.exchange.run(seconds)?.fields()),
        };
        training.train(Repeat::Seconds(seconds))
    }
}

/// The exchange alone.
struct ExchangeAlone {
    buckets: Buckets,
    pace: RankPace,
}

impl ExchangeAlone {
    fn new(bytes: usize, world: &World) -> anyhow::Result<Self> {
        let mut exchange =
            Self { buckets: Buckets::new(world, bytes)?, pace: RankPace::new(world) };
        for _ in 0..2 {
            exchange.run(Seconds(0.01))?; // Finds the pace. The first run touches new memory.
        }
        Ok(exchange)
    }

    fn run(&mut self, seconds: Seconds) -> anyhow::Result<Timing> {
        let Self { buckets, pace } = self;
        let work = |times| (0..times).try_for_each(|_| buckets.all_reduce());
        Ok(pace.run(Repeat::Seconds(seconds), work)?.0)
    }
}
