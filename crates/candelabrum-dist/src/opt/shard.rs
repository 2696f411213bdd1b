//! Which elements' state each rank keeps (ZeRO: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
//! Trillion Parameter Models", SC 2020, arXiv:1910.02054).
//!
//! Each bucket is cut into one part for each rank, in rank order. A rank owns its part of every bucket: it gets the
//! average of these gradients alone, keeps the optimizer's state of these elements alone, updates them, and sends the
//! new values to the other ranks. The parts depend on nothing but the parameters, the sizes of buckets and the
//! number of ranks, so no message and no file has to say where they end.
//!
//! A cut lies where the sum of a norm may be cut, too: between two chunks of a parameter
//! ([`candelabrum_memory::chunks`]), or between two parameters. So the ranks can compute the norm of the whole
//! gradient with the bits that one rank would get. The state of an optimizer that needs whole parameters is cut
//! between parameters only.

use std::ops::Range;
use std::sync::Arc;

use candelabrum_memory::chunks::CHUNK;
use candelabrum_nn::BucketPlan;

/// The parts of all buckets.
#[derive(Debug)]
pub(super) struct ShardRanges {
    /// By bucket: the elements of each rank's part.
    parts: Vec<Arc<[usize]>>,
    /// By bucket: the range of this rank's part.
    ranges: Vec<Range<usize>>,
    /// By parameter and rank: the range of its elements that the rank owns, counted from the parameter's first one.
    owners: Vec<Vec<Range<usize>>>,
    rank: usize,
}

impl ShardRanges {
    /// The parts of buckets by these plans, as `rank` of `world_size` ranks sees them. Those before `first` own nothing.
    /// `whole`: parameters are not cut.
    pub(super) fn new(
        plans: &[BucketPlan],
        rank: usize,
        (first, world_size): (usize, usize),
        whole: bool,
    ) -> Self {
        let count = plans.iter().map(|plan| plan.slots.len()).sum();
        let mut owners = vec![Vec::new(); count];
        let (mut parts, mut ranges) = (Vec::new(), Vec::new());
        let mut loads = vec![0; world_size - first];
        for plan in plans {
            let own = cut(plan, &loads, whole);
            for (load, len) in loads.iter_mut().zip(&own) {
                *load += len;
            }
            let lens = [vec![0; first], own].concat();
            let mut start = 0;
            for len in &lens {
                let part = start..start + len;
                start = part.end;
                for slot in &plan.slots {
                    let begin = part.start.clamp(slot.range.start, slot.range.end);
                    let end = part.end.clamp(begin, slot.range.end);
                    owners[slot.param].push(begin - slot.range.start..end - slot.range.start);
                }
            }
            let start = lens[..rank].iter().sum::<usize>();
            ranges.push(start..start + lens[rank]);
            parts.push(lens.into());
        }
        Self { parts, ranges, owners, rank }
    }

    /// The elements of each rank's part of a bucket.
    pub(super) fn parts(&self, bucket: usize) -> &Arc<[usize]> {
        &self.parts[bucket]
    }

    /// This rank's part of a bucket.
    pub(super) fn range(&self, bucket: usize) -> Range<usize> {
        self.ranges[bucket].clone()
    }

    /// The elements of a parameter that this rank owns.
    pub(super) fn owned(&self, param: usize) -> Range<usize> {
        self.owners[param][self.rank].clone()
    }

    /// The elements of a parameter that each rank owns, in rank order.
    pub(super) fn owners(&self, param: usize) -> &[Range<usize>] {
        &self.owners[param]
    }
}

/// Cuts a bucket into one part for each rank, so that what a rank has together with its `loads` is as even as the
/// places of cuts permit.
fn cut(plan: &BucketPlan, loads: &[usize], whole: bool) -> Vec<usize> {
    // A rank that has less than its part gets so much more of this bucket.
    let even = (loads.iter().sum::<usize>() + plan.len) as f64 / loads.len() as f64;
    let wishes: Vec<f64> = loads.iter().map(|&load| (even - load as f64).max(0.0)).collect();
    let total = wishes.iter().sum::<f64>().max(1.0);
    let places = places(plan, whole);
    let (mut lens, mut start, mut wished) = (Vec::new(), 0, 0.0);
    for (rank, wish) in wishes.iter().enumerate() {
        wished += wish;
        let wanted = (wished / total * plan.len as f64).round() as usize;
        let end = if rank + 1 == loads.len() { plan.len } else { nearest(&places, wanted) };
        let end = end.max(start);
        lens.push(end - start);
        start = end;
    }
    lens
}

/// Where a bucket may be cut, in order.
fn places(plan: &BucketPlan, whole: bool) -> Vec<usize> {
    let mut places = vec![0];
    for slot in &plan.slots {
        if !whole {
            places.extend(slot.range.clone().step_by(CHUNK).skip(1));
        }
        places.push(slot.range.end);
    }
    places
}

/// The place that is nearest to `wanted`.
fn nearest(places: &[usize], wanted: usize) -> usize {
    let after = places.partition_point(|&place| place < wanted).min(places.len() - 1);
    let before = after.saturating_sub(1);
    let distance = |place: usize| places[place].abs_diff(wanted);
    if distance(before) < distance(after) { places[before] } else { places[after] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plans(buckets: &[Vec<usize>]) -> Vec<BucketPlan> {
        let mut param = 0;
        let plan = |sizes: &Vec<usize>| {
            let mut plan = BucketPlan::default();
            for &size in sizes {
                plan.push(param, size);
                param += 1;
            }
            plan
        };
        buckets.iter().map(plan).collect()
    }

    proptest! {
        #[test]
        fn every_element_has_one_owner_and_the_shares_are_even(
            buckets in prop::collection::vec(prop::collection::vec(0..200_000_usize, 1..6), 1..5),
            first in 0..3_usize,
            owners in 1..6_usize,
            whole in any::<bool>(),
        ) {
            let (plans, world_size) = (plans(&buckets), first + owners);
            let of = |rank| ShardRanges::new(&plans, rank, (first, world_size), whole);
            let shards: Vec<ShardRanges> = (0..world_size).map(of).collect();
            for (bucket, plan) in plans.iter().enumerate() {
                let mut end = 0;
                for (rank, one) in shards.iter().enumerate() {
                    let range = one.range(bucket);
                    prop_assert_eq!(range.start, end);
                    prop_assert!(rank >= first || range.is_empty());
                    end = range.end;
                    prop_assert_eq!(one.parts(bucket)[rank], range.len());
                    prop_assert_eq!(one.parts(bucket), shards[0].parts(bucket));
                }
                prop_assert_eq!(end, plan.len);
                for slot in &plan.slots {
                    let ranges = shards.iter().map(|one| one.owned(slot.param));
                    let ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
                    prop_assert!(!whole || ranges.len() <= 1);
                    let mut end = 0;
                    for range in ranges {
                        prop_assert!(range.start == end && range.start.is_multiple_of(CHUNK));
                        end = range.end;
                    }
                    prop_assert_eq!(end, slot.range.len());
                }
            }
            let loads = shards[first..].iter().map(|one| one.owners.iter().map(|owners| owners[one.rank].len()).sum::<usize>());
            let (least, most) = loads.fold((usize::MAX, 0), |(least, most), load| {
                (load.min(least), load.max(most))
            });
            prop_assert!(whole || most - least <= 2 * CHUNK * owners, "{least} and {most}");
        }
    }

    #[test]
    fn large_parameters_are_cut_within_a_chunk_of_the_middle() {
        let shards = ShardRanges::new(&plans(&[vec![10 * CHUNK, 3], vec![7]]), 1, (0, 2), false);
        assert_eq!(shards.owned(0), 5 * CHUNK..10 * CHUNK);
        assert_eq!((shards.owned(1), shards.range(0)), (0..3, 5 * CHUNK..10 * CHUNK + 3));
        // The first rank has less so far.
        assert!(shards.owned(2).is_empty());
    }
}
