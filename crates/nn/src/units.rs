//! Units: parameters whose gradients lie one after the other in one bucket and are sent together.

use std::ops::Range;

/// The parameters of a unit, and the place of each in the unit's bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitPlan {
    /// One slot per parameter, in the order of their places.
    pub slots: Vec<Slot>,
    /// Elements of all slots together.
    pub len: usize,
}

/// One parameter's place in its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The parameter's number in the model's order.
    pub param: usize,
    /// The parameter's elements in the bucket.
    pub range: Range<usize>,
}

impl UnitPlan {
    /// Appends parameter number `param`, of `size` elements.
    pub fn push(&mut self, param: usize, size: usize) {
        self.slots.push(Slot { param, range: self.len..self.len + size });
        self.len += size;
    }

    /// The slot of the element at `position`.
    pub fn slot_at(&self, position: usize) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.range.contains(&position))
    }
}
