//! The parameters in units: buckets for every sizing that a step has asked for.

use std::sync::Arc;

use candelabrum_nn::{FlatGradients, Param};

use super::gradients::copy_values;
use crate::bucket::{self, BucketPlan, Sizing};
use crate::comm::{Buffer, Communicator, ElementType, Group};
use crate::strategy::Unit;
use crate::{Error, Result};

/// Names of parameters in a bucket's label; of a larger bucket the first and the number.
const NAMES: usize = 4;

/// The parameters, and their buckets for every sizing asked for so far.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) params: Arc<[Param]>,
    pub(super) layouts: Vec<Layout>,
}

/// The buckets of one sizing.
#[derive(Debug)]
pub(super) struct Layout {
    sizing: Sizing,
    pub(super) plans: Arc<[BucketPlan]>,
    /// The buckets' memory, away while it travels, and where gradients go in it.
    pub(super) gradients: FlatGradients<Buffer>,
    /// Steps taken with it.
    steps: u64,
    /// Whether its order is final.
    settled: bool,
    /// Whether another one has taken its place.
    replaced: bool,
}

impl Bound {
    /// The number of the layout of that size, made now if there is none yet.
    pub(super) fn layout(&mut self, sizing: Sizing, comm: &dyn Communicator) -> Result<usize> {
        let current = |layout: &Layout| layout.sizing == sizing && !layout.replaced;
        if let Some(index) = self.layouts.iter().position(current) {
            return Ok(index);
        }
        let order: Vec<usize> = (0..self.params.len()).rev().collect();
        // SINGA's units are what SINGA says they are.
        let settled = matches!(sizing, Sizing::Threshold(_));
        self.layouts.push(Layout::new(&self.params, sizing, &order, settled, comm)?);
        Ok(self.layouts.len() - 1)
    }

    /// Puts the parameters of a layout in the order in which their gradients really were complete:
    /// rank 0's order, once, after its first step (or second: the operations of a first step may
    /// have been made before anybody listened). Every rank calls it after every step.
    pub(super) fn settle(&mut self, index: usize, comm: &dyn Communicator) -> Result<()> {
        const TRIES: u64 = 2;
        let layout = &mut self.layouts[index];
        layout.steps += 1;
        if layout.settled {
            return Ok(());
        }
        let slots: Vec<usize> = layout.slots().collect();
        let mut message: Vec<i64> =
            layout.gradients.ready_order().iter().map(|&i| slots[i] as i64).collect();
        let complete = message.len() == slots.len();
        message.resize(slots.len(), 0);
        message.push(i64::from(complete));
        comm.broadcast(&mut message, 0)?;
        let complete = message.pop() == Some(1);
        layout.settled = complete || layout.steps >= TRIES;
        if !complete {
            return Ok(());
        }
        let order: Vec<usize> = message.into_iter().map(|param| param as usize).collect();
        let sizing = layout.sizing;
        if is_no_order(&order, self.params.len()) {
            let what = "rank 0's order of gradients is no order of the parameters".to_owned();
            return Err(Error::Protocol { what });
        }
        if bucket::plan(&sizes(&self.params), sizing, &order)[..] == layout.plans[..] {
            return Ok(());
        }
        // The old buckets' memory goes before the new ones' comes.
        layout.gradients = FlatGradients::default();
        layout.replaced = true;
        self.layouts.push(Layout::new(&self.params, sizing, &order, true, comm)?);
        Ok(())
    }
}

fn is_no_order(order: &[usize], len: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    !sorted.into_iter().eq(0..len)
}

fn sizes(params: &[Param]) -> Vec<usize> {
    params.iter().map(|param| param.var().elem_count()).collect()
}

impl Layout {
    /// The buckets of that size, filled with the parameters in `order`.
    fn new(
        params: &[Param],
        sizing: Sizing,
        order: &[usize],
        settled: bool,
        comm: &dyn Communicator,
    ) -> Result<Self> {
        let plans: Arc<[BucketPlan]> = bucket::plan(&sizes(params), sizing, order).into();
        let mut gradients = FlatGradients::default();
        for (number, plan) in plans.iter().enumerate() {
            let buffer = comm.alloc(ElementType::F32, plan.len)?;
            let buffer = buffer.labelled(label(number, plan, params));
            let places = plan.slots.iter().map(|slot| (&params[slot.param], slot.range.clone()));
            gradients.push(buffer, places)?;
        }
        Ok(Self { sizing, plans, gradients, steps: 0, settled, replaced: false })
    }

    /// Parameters by place, bucket by bucket.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        self.plans.iter().flat_map(|plan| plan.slots.iter().map(|slot| slot.param))
    }

    /// The numbers in a bucket.
    pub(super) fn values(&mut self, number: usize, rank: usize) -> Result<&mut [f32]> {
        let buffer = self.gradients.buffers_mut().get_mut(number).and_then(Option::as_mut);
        buffer.ok_or(Error::Stopped { rank })?.as_mut_slice()
    }

    /// Takes a bucket's memory away.
    pub(super) fn take(&mut self, number: usize, rank: usize) -> Result<Buffer> {
        let buffer = self.gradients.buffers_mut().get_mut(number).and_then(Option::take);
        buffer.ok_or(Error::Stopped { rank })
    }

    /// Brings it back.
    pub(super) fn put(&mut self, number: usize, buffer: Buffer) {
        if let Some(place) = self.gradients.buffers_mut().get_mut(number) {
            *place = Some(buffer);
        }
    }

    /// Copies the values of a bucket's parameters into it.
    pub(super) fn load(&mut self, number: usize, params: &[Param], rank: usize) -> Result<()> {
        let plans = Arc::clone(&self.plans);
        let values = self.values(number, rank)?;
        for slot in &plans[number].slots {
            copy_values(params[slot.param].tensor(), &mut values[slot.range.clone()])?;
        }
        Ok(())
    }

    /// Copies a bucket's values into its parameters.
    pub(super) fn store(&mut self, number: usize, params: &[Param], rank: usize) -> Result<()> {
        let plans = Arc::clone(&self.plans);
        let values = self.values(number, rank)?;
        for slot in &plans[number].slots {
            let new = &values[slot.range.clone()];
            params[slot.param].update_in_place(|values| values.copy_from_slice(new))?;
        }
        Ok(())
    }
}

/// What a bucket is called when ranks wait for it in vain.
fn label(number: usize, plan: &BucketPlan, params: &[Param]) -> String {
    let names: Vec<&str> =
        plan.slots.iter().take(NAMES).map(|slot| params[slot.param].name()).collect();
    let names = names.join(", ");
    match plan.slots.len().checked_sub(NAMES) {
        None | Some(0) => format!("bucket {number}: {names}"),
        Some(more) => format!("bucket {number}: {names} and {more} more"),
    }
}

/// What is the same for all units of a step.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) comm: Group,
    pub(super) params: Arc<[Param]>,
    pub(super) plans: Arc<[BucketPlan]>,
    pub(super) layout: usize,
    pub(super) step: u64,
    pub(super) spars: f32,
}

impl Facts {
    pub(super) fn rank(&self) -> usize {
        self.comm.rank()
    }

    pub(super) fn unit(&self, index: usize) -> Unit<'_> {
        let &Self { layout, step, spars, .. } = self;
        let (rank, world_size) = (self.comm.rank(), self.comm.world_size());
        let (plan, params, count) = (&self.plans[index], &self.params[..], self.plans.len());
        Unit { index, count, layout, step, spars, rank, world_size, plan, params }
    }

    /// The parameter that a position of a unit belongs to.
    pub(super) fn name_at(&self, index: usize, position: usize) -> String {
        self.unit(index).parameter_at(position).map_or("", Param::name).to_owned()
    }
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
