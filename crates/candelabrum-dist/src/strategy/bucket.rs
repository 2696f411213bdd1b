//! The description of a bucket that a strategy receives.

use std::fmt;
use std::ops::Range;

use candelabrum_memory::cuda::Gpu;
use candelabrum_nn::{BucketPlan, Param};

use crate::{Error, Result};

/// A bucket of one step: some parameters whose gradients (or values) are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// Its number. Buckets are sent in the order of their numbers, from 0.
    pub index: usize,
    /// The number of buckets.
    pub count: usize,
    /// The number of the layout, the division of the parameters into buckets, counted from 0.
    pub layout: usize,
    /// Earlier steps of this strategy, the same on every rank.
    pub step: u64,
    /// The step's `spars`.
    pub spars: f32,
    /// The rank of this process.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// How many ranks have gradients: the first ones. The others are servers.
    pub workers: usize,
    pub(crate) plan: &'a BucketPlan,
    pub(crate) params: &'a [Param],
}

impl<'a> Bucket<'a> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.plan.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its parameters, each with the range of its elements in the bucket.
    pub fn parameters(&self) -> impl Iterator<Item = (&'a Param, Range<usize>)> + use<'a> {
        let (plan, params) = (self.plan, self.params);
        plan.slots.iter().map(|slot| (&params[slot.param], slot.range.clone()))
    }

    /// The GPU of its parameters.
    ///
    /// # Errors
    /// Parameters on the CPU.
    pub fn gpu(&self) -> Result<Gpu> {
        let device = self.params.first().and_then(|param| Gpu::from_device(param.device()));
        let what = || format!("a kernel of a GPU for {self}, which is on the CPU");
        device.ok_or_else(|| Error::Unsupported { what: what() })
    }

    /// The parameter of the element at `position`.
    pub fn parameter_at(&self, position: usize) -> Option<&'a Param> {
        self.plan.slot_at(position).map(|slot| &self.params[slot.param])
    }
}

impl fmt::Display for Bucket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket {} of {} ({} elements)", self.index, self.count, self.len())
    }
}
