//! What a strategy is told about the numbers before it.

use std::fmt;
use std::ops::Range;

use candelabrum_nn::{Param, UnitPlan};

/// A unit of one step: some parameters whose gradients (or values) lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// Its number, from 0 for the unit of the last parameters.
    pub index: usize,
    /// How many units there are.
    pub count: usize,
    /// Which division of the parameters into units this is, from 0 for the first one used.
    pub layout: usize,
    /// Steps of this strategy before this one, the same on every rank.
    pub step: u64,
    /// The step's `spars`.
    pub spars: f32,
    /// This process.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    pub(crate) plan: &'a UnitPlan,
    pub(crate) params: &'a [Param],
}

impl<'a> Unit<'a> {
    /// Elements in it.
    pub fn len(&self) -> usize {
        self.plan.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its parameters, each with the place of its elements.
    pub fn parameters(&self) -> impl Iterator<Item = (&'a Param, Range<usize>)> + use<'a> {
        let (plan, params) = (self.plan, self.params);
        plan.slots.iter().map(|slot| (&params[slot.param], slot.range.clone()))
    }

    /// The parameter of the element at `position`.
    pub fn parameter_at(&self, position: usize) -> Option<&'a Param> {
        self.parameters().find(|(_, range)| range.contains(&position)).map(|(param, _)| param)
    }
}

impl fmt::Display for Unit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit {} of {} ({} elements)", self.index, self.count, self.len())
    }
}
