//! The exchange of a step's gradients without any other work, to find its shortest time.

use candelabrum::dist::{
    Collective, DistOptConfig, ElementType, Payload, Pending, ReduceOp, World,
};

use crate::repeat;
use crate::talk::Event;

/// Buffers with about the sizes of the buckets of a network's gradients.
pub(crate) struct Exchange {
    world: World,
    buckets: Vec<Payload>,
    last: f64,
}

impl Exchange {
    pub(crate) fn new(elements: usize, world: &World) -> anyhow::Result<Self> {
        let config = DistOptConfig::default();
        let mut buckets = Vec::new();
        let (mut left, mut cap) = (elements, config.first_bucket_bytes);
        while left > 0 {
            let len = left.min((cap / size_of::<f32>()).max(1));
            buckets.push(world.comm().alloc(ElementType::F32, len)?);
            (left, cap) = (left - len, config.bucket_bytes);
        }
        let mut exchange = Self { world: world.clone(), buckets, last: 0.0 };
        let world = exchange.world.clone();
        // Measures the time of an exchange, so that `sample` can choose the number of repetitions.
        let mut last = 1.0;
        repeat(&world, 1.0, &mut last, || all_reduce(&world, &mut exchange.buckets))?;
        exchange.last = last;
        Ok(exchange)
    }

    pub(crate) fn sample(&mut self, seconds: f64) -> anyhow::Result<Event> {
        let Self { world, buckets, last } = self;
        let timed = repeat(world, seconds, last, || all_reduce(world, buckets))?;
        Ok(Event::Sample {
            times: timed.count,
            seconds: timed.seconds,
            step_seconds: None,
            communication_seconds: None,
        })
    }
}

/// All buckets are exchanged at the same time, as in a step.
fn all_reduce(world: &World, buckets: &mut Vec<Payload>) -> anyhow::Result<()> {
    let start = |bucket| world.comm().start(Collective::AllReduce(ReduceOp::Sum), bucket);
    let started: Vec<Pending> = buckets.drain(..).map(start).collect();
    for pending in started {
        buckets.push(pending.wait()?);
    }
    Ok(())
}
