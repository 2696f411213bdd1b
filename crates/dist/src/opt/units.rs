//! The parameters in units: buckets for every sizing that a step has asked for.

use candelabrum_nn::{FlatGradients, Param};

use super::gradients;
use crate::bucket::{self, BucketPlan, Sizing};
use crate::comm::{Buffer, Communicator, ElementType};
use crate::strategy::Unit;
use crate::{Error, Result, World};

/// The parameters, and their buckets for every sizing asked for so far.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) params: Vec<Param>,
    pub(super) layouts: Vec<Layout>,
}

/// The buckets of one sizing.
#[derive(Debug)]
pub(super) struct Layout {
    sizing: Sizing,
    pub(super) buckets: Vec<Bucket>,
    /// Where gradients go in them.
    pub(super) gradients: FlatGradients<Buffer>,
}

impl Bound {
    /// The number of the layout of that size, made now if there is none yet.
    pub(super) fn layout(&mut self, sizing: Sizing, world: &World) -> Result<usize> {
        if let Some(index) = self.layouts.iter().position(|layout| layout.sizing == sizing) {
            return Ok(index);
        }
        let sizes: Vec<usize> = self.params.iter().map(|param| param.var().elem_count()).collect();
        let mut buckets = Vec::new();
        for plan in bucket::plan(&sizes, sizing) {
            let buffer = Some(world.comm().alloc(ElementType::F32, plan.len)?);
            buckets.push(Bucket { plan, buffer });
        }
        let gradients = gradients::places(&self.params, &buckets)?;
        self.layouts.push(Layout { sizing, buckets, gradients });
        Ok(self.layouts.len() - 1)
    }
}

/// A unit and the memory that it travels in.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) plan: BucketPlan,
    /// Away while its collective is under way, and for good after one that failed.
    pub(super) buffer: Option<Buffer>,
}

impl Bucket {
    /// Its numbers.
    pub(super) fn values(&mut self, rank: usize) -> Result<&mut [f32]> {
        self.buffer.as_mut().ok_or(Error::Stopped { rank })?.as_mut_slice()
    }
}

/// What is the same for all units of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) comm: &'a dyn Communicator,
    pub(super) params: &'a [Param],
    pub(super) layout: usize,
    pub(super) step: u64,
    pub(super) spars: f32,
    pub(super) count: usize,
}

impl<'a> Facts<'a> {
    pub(super) fn unit<'b>(&self, index: usize, plan: &'b BucketPlan) -> Unit<'b>
    where
        'a: 'b,
    {
        let &Self { comm, params, layout, step, spars, count } = self;
        let (rank, world_size) = (comm.rank(), comm.world_size());
        Unit { index, count, layout, step, spars, rank, world_size, plan, params }
    }
}

/// Copies the values of a bucket's parameters into it.
pub(super) fn load(facts: &Facts<'_>, bucket: &mut Bucket) -> Result<()> {
    let Bucket { plan, buffer } = bucket;
    let rank = facts.comm.rank();
    let values = buffer.as_mut().ok_or(Error::Stopped { rank })?.as_mut_slice()?;
    for slot in &plan.slots {
        let place = &mut values[slot.range.clone()];
        gradients::copy_values(facts.params[slot.param].tensor(), place)?;
    }
    Ok(())
}

/// Copies a bucket's values into its parameters.
pub(super) fn store(facts: &Facts<'_>, bucket: &mut Bucket) -> Result<()> {
    let Bucket { plan, buffer } = bucket;
    let rank = facts.comm.rank();
    let values = buffer.as_ref().ok_or(Error::Stopped { rank })?.as_slice::<f32>()?;
    for slot in &plan.slots {
        let new = &values[slot.range.clone()];
        facts.params[slot.param].update_in_place(|values| values.copy_from_slice(new))?;
    }
    Ok(())
}

/// Lets `change`, which may fail, rewrite a parameter's values where they are.
pub(super) fn change(
    param: &Param,
    mut change: impl FnMut(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let mut result = Ok(());
    param.update_in_place(|values| result = change(values))?;
    result
}
