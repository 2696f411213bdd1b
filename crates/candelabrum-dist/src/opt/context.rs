//! The data that do not change during a step.

use std::ops::Range;
use std::sync::Arc;

use candelabrum_memory::Location;
use candelabrum_nn::{BucketPlan, BucketSlot, Param};

use super::bucket_sets::{self, BucketSet};
use super::param_shards::ParamShards;
use super::placement::StepRanks;
use super::shard::ShardRanges;
use crate::comm::{CommStats, Label};
use crate::strategy::Bucket;

/// The ranks, the buckets and the settings of one step.
#[derive(Clone, Debug)]
pub(super) struct StepContext {
    pub(super) ranks: StepRanks,
    pub(super) params: Arc<[Param]>,
    pub(super) plans: Arc<[BucketPlan]>,
    pub(super) labels: Arc<[Label]>,
    /// If ranks keep shards of the optimizer's state: which ones.
    pub(super) shards: Option<Arc<ShardRanges>>,
    /// The values of parameters of which each rank keeps its shard alone.
    pub(super) values: Option<Arc<ParamShards>>,
    /// The number of the layout.
    pub(super) layout: usize,
    /// Earlier steps of this strategy.
    pub(super) step: u64,
    pub(super) spars: f32,
}

impl StepContext {
    pub(super) fn new(
        ranks: &StepRanks,
        layout: &BucketSet,
        values: Option<Arc<ParamShards>>,
        (step, spars): (u64, f32),
    ) -> Self {
        Self {
            ranks: ranks.clone(),
            values,
            params: Arc::clone(layout.gradients.params()),
            plans: Arc::clone(layout.gradients.plans()),
            labels: Arc::clone(&layout.labels),
            shards: layout.shards.clone(),
            layout: layout.id,
            step,
            spars,
        }
    }

    /// The traffic so far.
    pub(super) fn traffic(&self) -> CommStats {
        self.ranks.traffic()
    }

    /// Bucket number `index`, as a strategy receives it.
    pub(super) fn bucket(&self, index: usize) -> Bucket<'_> {
        let &Self { layout, step, spars, .. } = self;
        let (rank, world_size) = (self.ranks.all.rank(), self.ranks.all.world_size());
        let workers = self.ranks.count;
        let (plan, params, count) = (&self.plans[index], &self.params[..], self.plans.len());
        Bucket { index, count, layout, step, spars, rank, world_size, workers, plan, params }
    }

    /// The memory of the parameters.
    pub(super) fn location(&self) -> Location {
        bucket_sets::location(&self.params)
    }

    /// The elements of a bucket of which this rank gets the averages.
    pub(super) fn own_range(&self, index: usize) -> Range<usize> {
        self.shards.as_ref().map_or(0..self.plans[index].len, |shards| shards.range(index))
    }

    /// The elements of the parameter in a slot that this rank updates, counted from the parameter's first one.
    pub(super) fn owned(&self, slot: &BucketSlot) -> Range<usize> {
        self.shards.as_ref().map_or(0..slot.range.len(), |shards| shards.owned(slot.param))
    }

    /// The same elements, counted from the first one that this rank keeps.
    pub(super) fn owned_of_kept(&self, slot: &BucketSlot) -> Range<usize> {
        let own = self.owned(slot);
        if self.is_sharded(slot.param) { 0..own.len() } else { own }
    }

    /// The place in the bucket of the elements that [`Self::owned`] counts from the parameter's first one.
    pub(super) fn place_of_owned(&self, slot: &BucketSlot) -> Range<usize> {
        let own = self.owned(slot);
        slot.range.start + own.start..slot.range.start + own.end
    }

    /// Whether blocks fetch the values of a bucket's parameters. Buckets have no other parameters then.
    pub(super) fn is_away(&self, index: usize) -> bool {
        let is_away = |slot: &BucketSlot| {
            self.is_sharded(slot.param) && self.params[slot.param].is_released()
        };
        self.plans[index].slots.iter().any(is_away)
    }

    /// Whether the values of this parameter are divided among ranks.
    pub(super) fn is_sharded(&self, param: usize) -> bool {
        self.values.as_ref().is_some_and(|values| values.has(param))
    }

    /// The name of the parameter at this position of a bucket.
    pub(super) fn name_at(&self, bucket: usize, position: usize) -> String {
        self.bucket(bucket).parameter_at(position).map_or("", Param::name).to_owned()
    }
}
