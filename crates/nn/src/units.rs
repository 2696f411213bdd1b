//! Units: parameters whose gradients lie one after the other in one bucket and travel together.

use std::ops::Range;

/// The parameters of a unit, and where the numbers of each lie in the unit's bucket.
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
    /// Adds parameter number `param`, of `size` elements, behind the others.
    pub fn push(&mut self, param: usize, size: usize) {
        self.slots.push(Slot { param, range: self.len..self.len + size });
        self.len += size;
    }
}
