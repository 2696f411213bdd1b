//! The exchanges between workers that are measured apart from a training: their names in requests, and
//! buckets that all ranks reduce at the same time.

use candelabrum::dist::{
    Collective, DistOptConfig, ElementType, Payload, Pending, ReduceOp, World,
};
use candelabrum::prelude::StoreKind;
use serde::Deserialize;

/// How workers exchange parameters or gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exchange {
    DistSync,
    DistAsync,
    /// The steps of an optimizer whose updates servers make.
    ServedSteps,
    /// The same steps without servers.
    Steps,
    /// Without servers.
    AllReduce,
    /// None: each rank changes numbers of its own, which shows the memory's speed.
    Memory,
}

impl Exchange {
    /// The kind of the store, if it is one.
    pub(crate) fn store(self) -> Option<StoreKind> {
        match self {
            Self::DistSync => Some(StoreKind::DistSync),
            Self::DistAsync => Some(StoreKind::DistAsync),
            Self::ServedSteps | Self::Steps | Self::AllReduce | Self::Memory => None,
        }
    }
}

/// Buffers of the communicator.
pub(crate) struct Buckets {
    pub(crate) world: World,
    buckets: Vec<Payload>,
}

impl Buckets {
    /// Buckets for gradients of so many bytes, with about the sizes of [`DistOptConfig`]'s.
    pub(crate) fn new(world: &World, bytes: usize) -> anyhow::Result<Self> {
        let config = DistOptConfig::default();
        let mut buckets = Vec::new();
        let (mut left, mut cap) = (bytes, config.first_bucket_bytes);
        while left > 0 {
            let len = left.min(cap).div_ceil(size_of::<f32>());
            buckets.push(world.comm().alloc(ElementType::F32, len)?);
            (left, cap) = (left - left.min(cap), config.bucket_bytes);
        }
        Ok(Self { world: world.clone(), buckets })
    }

    /// Reduces all of them at the same time, as a step does.
    pub(crate) fn all_reduce(&mut self) -> anyhow::Result<()> {
        let comm = self.world.comm();
        let start = |bucket| comm.start(Collective::AllReduce(ReduceOp::Sum), bucket);
        let started: Vec<Pending> = self.buckets.drain(..).map(start).collect();
        for pending in started {
            self.buckets.push(pending.wait()?);
        }
        Ok(())
    }

    /// The numbers of each bucket.
    pub(crate) fn values(&mut self) -> anyhow::Result<Vec<&mut [f32]>> {
        self.buckets.iter_mut().map(|bucket| Ok(bucket.as_mut_slice()?)).collect()
    }
}

/// A rank's number at a place: below a half, exact in fp16, and f32 adds such numbers exactly.
pub(crate) fn number(rank: usize, place: usize) -> f32 {
    ((place + 7 * rank) % 1009) as f32 / 1024.0 - 0.5
}

/// A rank's numbers at the first places.
pub(crate) fn numbers(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|place| number(rank, place)).collect()
}

/// The sum of all ranks' numbers at a place.
pub(crate) fn sum(ranks: usize, place: usize) -> f32 {
    (0..ranks).map(|rank| number(rank, place)).sum()
}
