//! Gradients packed into buckets, each of which travels as one.
//!
//! Small messages waste latency, one large message leaves nothing to overlap; PyTorch's DDP (Li et
//! al., VLDB 2020) fills buckets in reverse order of the parameters, which is roughly the order in
//! which backward makes their gradients, the first one small so that it can leave early.

use std::ops::Range;

/// Which parameters share a bucket, and where in it they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketPlan {
    /// The parameters in it, in the order of their gradients.
    pub(crate) slots: Vec<Slot>,
    /// Elements in all.
    pub(crate) len: usize,
}

/// One parameter's place in its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The parameter's number in the model's order.
    pub(crate) param: usize,
    /// Its elements.
    pub(crate) range: Range<usize>,
}

/// Assigns parameters of `sizes` elements to buckets of at most `cap` elements, the first of at
/// most `first_cap`. A parameter larger than the cap has a bucket for itself.
pub(crate) fn plan(sizes: &[usize], first_cap: usize, cap: usize) -> Vec<BucketPlan> {
    let mut buckets: Vec<BucketPlan> = Vec::new();
    let mut open = BucketPlan { slots: Vec::new(), len: 0 };
    for (param, &size) in sizes.iter().enumerate().rev() {
        let cap = if buckets.is_empty() { first_cap } else { cap };
        if !open.slots.is_empty() && open.len + size > cap {
            buckets.push(std::mem::replace(&mut open, BucketPlan { slots: Vec::new(), len: 0 }));
        }
        open.slots.push(Slot { param, range: open.len..open.len + size });
        open.len += size;
    }
    if !open.slots.is_empty() {
        buckets.push(open);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_are_filled_from_the_last_parameter_on() {
        let plan = plan(&[500, 20, 400, 10, 50], 60, 450);
        let params: Vec<Vec<usize>> =
            plan.iter().map(|b| b.slots.iter().map(|s| s.param).collect()).collect();
        assert_eq!(params, [vec![4, 3], vec![2, 1], vec![0]]);
    }

    proptest! {
        #[test]
        fn every_element_has_one_place(
            sizes in prop::collection::vec(0_usize..100, 0..40),
            first_cap in 1_usize..100,
            cap in 1_usize..200,
        ) {
            let plan = plan(&sizes, first_cap, cap);
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
                let cap = if i == 0 { first_cap } else { cap };
                prop_assert!(bucket.len <= cap || bucket.slots.len() == 1
                    || bucket.slots.iter().filter(|s| !s.range.is_empty()).count() <= 1);
            }
            prop_assert!(seen.iter().all(|&s| s));
        }
    }
}
