//! The plan of a bucket: parameters whose gradients lie one after the other and are sent together.

use std::ops::Range;

/// The parameters of a bucket, and the place of each in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPlan {
    /// One slot per parameter, in the order of their places.
    pub slots: Vec<BucketSlot>,
    /// Elements of all slots together.
    pub len: usize,
}

/// One parameter's place in its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSlot {
    /// The parameter's number in the model's order.
    pub param: usize,
    /// The parameter's elements in the bucket.
    pub range: Range<usize>,
}

impl BucketPlan {
    /// Appends parameter number `param`, of `size` elements.
    pub fn push(&mut self, param: usize, size: usize) {
        self.slots.push(BucketSlot { param, range: self.len..self.len + size });
        self.len += size;
    }

    /// Moves the parameters whose sizes are multiples of `step` elements to the front. Their places, and the
    /// first place behind them, then begin at multiples of `step`, whatever the other sizes are. Both groups keep
    /// their order.
    pub fn align(&mut self, step: usize) {
        let (whole, rest): (Vec<BucketSlot>, Vec<BucketSlot>) =
            self.slots.drain(..).partition(|slot| slot.range.len().is_multiple_of(step));
        self.len = 0;
        for BucketSlot { param, range } in whole.into_iter().chain(rest) {
            self.push(param, range.len());
        }
    }

    /// The slot of the element at `position`.
    pub fn slot_at(&self, position: usize) -> Option<&BucketSlot> {
        self.slots.iter().find(|slot| slot.range.contains(&position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_multiples_come_first_and_nothing_is_lost() {
        let mut plan = BucketPlan::default();
        for (param, size) in [10, 8, 0, 3, 4].into_iter().enumerate() {
            plan.push(param, size);
        }
        plan.align(4);
        let slots: Vec<_> =
            plan.slots.iter().map(|slot| (slot.param, slot.range.clone())).collect();
        assert_eq!(slots, [(1, 0..8), (2, 8..8), (4, 8..12), (0, 12..22), (3, 22..25)]);
        assert_eq!(plan.len, 25);
    }
}
