//! The division of parameters into buckets. A bucket is sent as one message, and a
//! strategy sees one bucket at a time.
//!
//! Small messages waste time on latency. One large message leaves nothing to overlap with.
//! PyTorch's DDP (Li et al., VLDB 2020) fills buckets in reverse order of the parameters, because
//! the backward pass makes their gradients in roughly that order. The first bucket is small, so
//! that it can leave early. SINGA uses the same order with one number, its `threshold`.

use candelabrum_nn::BucketPlan;
use serde::{Deserialize, Serialize};

/// The rule that divides parameters into buckets. Sizes are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BucketSizing {
    /// PyTorch's rule: buckets of at most `cap` elements, the first of at most `first`. A parameter
    /// larger than the cap has a bucket of its own.
    Caps { first: usize, cap: usize },
    /// SINGA's rule: a parameter of more than this many elements has a bucket of its own. Other
    /// parameters fill a bucket until it has more than this many elements.
    Threshold(usize),
}

impl BucketSizing {
    /// The same rule with buckets of at most `most` elements, or of the size of the first one.
    pub(crate) fn at_most(self, most: usize) -> Self {
        match self {
            Self::Caps { first, cap } => Self::Caps { first, cap: cap.min(most.max(first)) },
            Self::Threshold(threshold) => Self::Threshold(threshold.min(most.max(1))),
        }
    }

    /// The elements above which a parameter has a bucket of its own.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Caps { cap, .. } => cap,
            Self::Threshold(threshold) => threshold,
        }
    }
}

/// Assigns parameters of `sizes` elements to buckets, in `order`. Before the first step `order`
/// starts with the last parameter. Later it is the order in which the gradients became complete.
pub(crate) fn plan(sizes: &[usize], sizing: BucketSizing, order: &[usize]) -> Vec<BucketPlan> {
    match sizing {
        BucketSizing::Caps { first, cap } => plan_by_caps(sizes, order, first, cap),
        BucketSizing::Threshold(threshold) => plan_by_threshold(sizes, order, threshold),
    }
}

fn plan_by_caps(sizes: &[usize], order: &[usize], first_cap: usize, cap: usize) -> Vec<BucketPlan> {
    let mut buckets = Vec::new();
    let mut open = BucketPlan::default();
    for &param in order {
        let size = sizes[param];
        let cap = if buckets.is_empty() { first_cap } else { cap };
        if !open.slots.is_empty() && open.len + size > cap {
            buckets.push(std::mem::take(&mut open));
        }
        open.push(param, size);
    }
    close(&mut buckets, open);
    buckets
}

fn plan_by_threshold(sizes: &[usize], order: &[usize], threshold: usize) -> Vec<BucketPlan> {
    let mut buckets = Vec::new();
    let mut open = BucketPlan::default();
    for &param in order {
        let size = sizes[param];
        if size > threshold {
            let mut own = BucketPlan::default();
            own.push(param, size);
            buckets.push(own);
            continue;
        }
        open.push(param, size);
        if open.len > threshold {
            buckets.push(std::mem::take(&mut open));
        }
    }
    close(&mut buckets, open);
    buckets
}

fn close(buckets: &mut Vec<BucketPlan>, open: BucketPlan) {
    if !open.slots.is_empty() {
        buckets.push(open);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plan for the first step, which starts with the last parameter.
    fn plan(sizes: &[usize], sizing: BucketSizing) -> Vec<BucketPlan> {
        let order: Vec<usize> = (0..sizes.len()).rev().collect();
        super::plan(sizes, sizing, &order)
    }

    fn params(plan: &[BucketPlan]) -> Vec<Vec<usize>> {
        plan.iter().map(|b| b.slots.iter().map(|s| s.param).collect()).collect()
    }

    #[test]
    fn buckets_are_filled_from_the_last_parameter_on() {
        let plan = plan(&[500, 20, 400, 10, 50], BucketSizing::Caps { first: 60, cap: 450 });
        assert_eq!(params(&plan), [vec![4, 3], vec![2, 1], vec![0]]);
    }

    #[test]
    fn singas_walk_is_singas() {
        // SINGA's MNIST network and the threshold of its example: the large weight has a bucket of
        // its own, and the other parameters share one.
        let cnn = [500, 20, 25_000, 50, 400_000, 500, 5_000, 10];
        let plan = plan(&cnn, BucketSizing::Threshold(50_000));
        assert_eq!(params(&plan), [vec![4], vec![7, 6, 5, 3, 2, 1, 0]]);
        assert_eq!(plan[1].len, 31_080);
        // A bucket is closed when it has more elements than the threshold, not when it has as many.
        let small = self::plan(&[1, 2, 2, 2, 2], BucketSizing::Threshold(4));
        assert_eq!(params(&small), [vec![4, 3, 2], vec![1, 0]]);
        // SINGA's default threshold leaves the whole network in one bucket.
        assert_eq!(self::plan(&cnn, BucketSizing::Threshold(2_097_152)).len(), 1);
    }

    #[test]
    fn another_order_fills_buckets_in_that_order() {
        let sizing = BucketSizing::Caps { first: 30, cap: 100 };
        let plan = super::plan(&[10, 20, 40, 50], sizing, &[1, 0, 3, 2]);
        assert_eq!(params(&plan), [vec![1, 0], vec![3, 2]]);
    }

    fn sizing() -> impl Strategy<Value = BucketSizing> {
        let caps =
            (1_usize..100, 1_usize..200).prop_map(|(first, cap)| BucketSizing::Caps { first, cap });
        prop_oneof![caps, (1_usize..200).prop_map(BucketSizing::Threshold)]
    }

    proptest! {
        #[test]
        fn every_element_has_one_place(
            sizes in prop::collection::vec(0_usize..100, 0..40),
            sizing in sizing(),
        ) {
            let plan = plan(&sizes, sizing);
            let mut seen = vec![false; sizes.len()];
            for (i, bucket) in plan.iter().enumerate() {
                let mut end = 0;
                for slot in &bucket.slots {
                    prop_assert_eq!(slot.range.start, end);
                    prop_assert_eq!(slot.range.len(), sizes[slot.param]);
                    prop_assert!(!std::mem::replace(&mut seen[slot.param], true));
                    end = slot.range.end;
                }
                prop_assert_eq!(bucket.len, end);
                let most = match sizing {
                    BucketSizing::Caps { first, .. } if i == 0 => first,
                    BucketSizing::Caps { cap, .. } => cap,
                    BucketSizing::Threshold(threshold) => 2 * threshold,
                };
                prop_assert!(bucket.len <= most || bucket.slots.len() == 1
                    || bucket.slots.iter().filter(|s| !s.range.is_empty()).count() <= 1);
            }
            prop_assert!(seen.iter().all(|&s| s));
        }
    }
}
