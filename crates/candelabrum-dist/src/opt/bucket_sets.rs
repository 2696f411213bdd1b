//! The parameters in buckets. There is one set of buckets for each size of buckets
//! that recent steps have used.

use std::ops::Range;
use std::sync::Arc;

use candelabrum_memory::{ElementType, FlatTensor, Location};
use candelabrum_nn::{BucketPlan, BucketPool, FlatGradients, MissingGradients, Param, Params};
use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::arriving::InFlightValues;
use super::config::Shard;
use super::memory::OptimizerMemory;
use super::own_averages::{ON_THEIR_WAY, OwnAverages};
use super::param_shards::{OpenValues, ParamShards};
use super::shard::ShardRanges;
use crate::bucketing::{self, BucketSizing};
use crate::comm::{Communicator, Group, Label};
use crate::consistency::check_consistency;
use crate::{Error, Result, TrainableParams};

/// Names of parameters in a bucket's label and in errors.
const NAMES: usize = 4;

/// The number of layouts that are kept. A program that alternates between more sizes allocates
/// buckets at every change.
const KEPT: usize = 2;

/// Buckets that have memory at the same time, where they are lent: one is filled, [`ON_THEIR_WAY`] have left, and the
/// next one may have its first gradient before the one before it is complete.
const LENT: usize = ON_THEIR_WAY + 2;

/// Places of gradients on a GPU begin at multiples of so many numbers, which are 16 bytes, where the sizes permit
/// it. Its libraries load and store 16 bytes at a time.
const GPU_STEP: usize = 4;

/// The parameters, and the layouts in the order of their last use.
#[derive(Debug)]
pub(super) struct BucketSets {
    trained: TrainableParams,
    /// If ranks keep shards of the optimizer's state: which ones. All layouts then have the same buckets.
    shards: Option<Arc<ShardRanges>>,
    /// By parameter: whether its values are with their ranks, and fetched when a block needs them.
    away: Vec<bool>,
    /// Parameters that are not trained, whose values are with their ranks, too.
    frozen: Vec<Param>,
    /// The values of parameters of which each rank keeps its shard alone.
    values: Option<OpenValues>,
    /// If buckets have memory only while they are on their way: the elements that each of them has room for.
    lent: Option<usize>,
    kept: Vec<BucketSet>,
    /// Buckets that belong to this rank alone, for gradients before the first step.
    early: Option<BucketSet>,
    /// The number of layouts made so far.
    made: usize,
    /// Whether the user knows that lending saves nothing.
    told: bool,
}

/// Where accumulated gradients are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GradientLocation {
    /// In [`BucketSets::early`].
    Early,
    /// In the buckets of this size.
    Shared(BucketSizing),
}

/// The buckets of one size.
#[derive(Debug)]
pub(super) struct BucketSet {
    /// The number of this layout, counted in the order of their creation.
    pub(super) id: usize,
    pub(super) sizing: BucketSizing,
    /// The numbers of the parameters, in the order in which the buckets were filled.
    order: Vec<usize>,
    /// The buckets, and the place of each gradient in them.
    pub(super) gradients: FlatGradients,
    /// By bucket: its content, for messages.
    pub(super) labels: Arc<[Label]>,
    pub(super) shards: Option<Arc<ShardRanges>>,
    /// By bucket, if the buckets are lent: memory for the averages of this rank's shard. A step takes it and returns
    /// it.
    pub(super) own: Vec<FlatTensor>,
    /// By element type and bucket: memory for the numbers of a bucket in that type. A step takes this
    /// memory and returns it.
    wire: Vec<(ElementType, Vec<Option<FlatTensor>>)>,
    /// The buckets with new values that are still on their way.
    pub(super) arriving: Vec<(usize, Arc<InFlightValues>)>,
    /// Steps taken with this layout.
    steps: u64,
    /// Whether the order of the buckets is final.
    settled: bool,
}

/// A layout in a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BucketSetState {
    sizing: BucketSizing,
    /// The numbers of the parameters, in the order in which the buckets were filled.
    order: Vec<usize>,
    settled: bool,
    steps: u64,
}

impl BucketSets {
    /// No layouts yet.
    pub(super) fn new(trained: TrainableParams) -> Self {
        Self {
            trained,
            shards: None,
            away: Vec::new(),
            frozen: Vec::new(),
            values: None,
            lent: None,
            kept: Vec::new(),
            early: None,
            made: 0,
            told: false,
        }
    }

    /// Divides the state of the optimizer among the ranks of `replica`, by buckets of this size. `owners` are the first
    /// of them that owns a shard and the number of all. `whole`: parameters are not cut.
    ///
    /// # Errors
    /// Parameters to be shared in a model that has no blocks for it.
    pub(super) fn shard(
        &mut self,
        store: &Params,
        shard: Shard,
        sizing: BucketSizing,
        (replica, owners): (&dyn Communicator, (usize, usize)),
        whole: bool,
    ) -> Result<()> {
        let lends = shard.lends();
        if shard == Shard::Parameters {
            self.away = self.params().iter().map(|param| param.block().is_some()).collect();
            // The host's memory answers other ranks, and would need a copy of what is on a GPU.
            let of_block = |param: &&Param| param.block().is_some() && param.device().is_cpu();
            self.frozen = self.trained.left_out().iter().filter(of_block).cloned().collect();
            let has_none = !self.away.contains(&true) && self.frozen.is_empty();
            if store.has_blocks() && has_none {
                let names = names(self.params().iter());
                let what = format!(
                    "shard parameters for a model without blocks that have parameters of their own ({names} are used by several blocks, or by none)"
                );
                return Err(Error::Unsupported { what });
            }
            if has_none {
                let (setting, value) = ("shard", shard.to_string());
                let range = "none, optimizer or gradients for a model without blocks (`candelabrum::nn::layers::Blocks`)";
                return Err(Error::Setting { setting, value, range });
            }
        }
        let sizes = self.params().iter().map(|param| param.element_count()).collect::<Vec<_>>();
        self.lent = if lends { lent_room(&sizes, sizing) } else { None };
        let plans = self.plan(sizing, &self.order());
        let shards = ShardRanges::new(&plans, replica.rank(), owners, whole);
        self.shards = Some(Arc::new(shards));
        Ok(())
    }

    /// Whether a block fetches the values of this parameter.
    fn is_away(&self, param: usize) -> bool {
        self.away.get(param).copied().unwrap_or_default()
    }

    /// Leaves to each rank its shard of the values: of those that blocks fetch, and of the masters of parameters in 16
    /// bits. The ranks of `replica` have all of them together. All ranks of `group` call it together.
    pub(super) fn shard_values(
        &mut self,
        group: &Group,
        replica: &Group,
        store: &Params,
    ) -> Result<()> {
        let Some(shards) = self.shards.clone() else { return Ok(()) };
        let trained = self.params().len();
        let params = [&self.params()[..], &self.frozen].concat();
        let is_rounded = |param: &Param| matches!(param.dtype(), DType::F16 | DType::BF16);
        let is_away = |number: usize| number >= trained || self.is_away(number);
        let is_sharded = |number: usize| is_away(number) || is_rounded(&params[number]);
        if self.values.is_some() || !(0..params.len()).any(is_sharded) {
            return Ok(());
        }
        let away = (0..params.len()).filter(|&number| is_away(number));
        let away: Vec<Param> = away.map(|number| params[number].clone()).collect();
        let names = away.iter().map(Param::name).collect::<Vec<_>>().join(", ");
        check_consistency(&**group, &[("the parameters that blocks fetch".to_owned(), names)])?;
        let owners = |number: usize| match is_sharded(number) {
            false => Vec::new(),
            true if number < trained => shards.owners(number).to_vec(),
            true => even_parts(params[number].element_count(), replica.world_size()),
        };
        let values = Arc::new(ParamShards::new(replica, &params, trained, owners)?);
        for (number, param) in params.iter().enumerate().filter(|(number, _)| is_sharded(*number)) {
            param.shard(values.clone(), number, !is_away(number));
        }
        store.note_sharded(&away)?;
        self.values = Some(OpenValues(values));
        Ok(())
    }

    pub(super) fn values(&self) -> Option<&Arc<ParamShards>> {
        self.values.as_ref().map(|values| &values.0)
    }

    /// Frees the memory of frozen parameters after a step, as an update does of the others.
    pub(super) fn release_frozen(&self) -> Result<()> {
        Ok(self.frozen.iter().try_for_each(Param::release)?)
    }

    /// Gives all ranks all values. The next [`Self::shard_values`] divides them again.
    pub(super) fn gather_values(&mut self) -> Result<()> {
        // What is not divided may be on its way.
        self.params().iter().chain(&self.frozen).try_for_each(|param| {
            match param.is_sharded() {
                true => param.unshard(),
                false => param.gather(),
            }
        })?;
        self.values = None;
        Ok(())
    }

    /// Counts the memory of all layouts.
    pub(super) fn add_memory(&self, memory: &mut OptimizerMemory) {
        for layout in self.kept.iter().chain(&self.early) {
            layout.gradients.each_bucket(&mut |bucket| memory.add_gradients([bucket]));
            memory.add_gradients(&layout.own);
            memory.add_exchange(layout.wire.iter().flat_map(|(_, flats)| flats).flatten());
        }
        memory.parameters += self.values().map_or(0, |values| values.bytes());
    }

    /// Whether buckets have memory only while they are on their way.
    pub(super) fn are_lent(&self) -> bool {
        self.lent.is_some()
    }

    pub(super) fn shards(&self) -> Option<&Arc<ShardRanges>> {
        self.shards.as_ref()
    }

    /// The order of parameters before a step has shown the order of gradients.
    fn order(&self) -> Vec<usize> {
        (0..self.params().len()).rev().collect()
    }

    pub(super) fn trained(&self) -> &TrainableParams {
        &self.trained
    }

    pub(super) fn params(&self) -> &Arc<[Param]> {
        self.trained.params()
    }

    /// The layout for `sizing`, created now if it is not kept. All ranks call it together. `forget`
    /// is called with the number of a layout that is dropped to make room.
    pub(super) fn of(
        &mut self,
        sizing: BucketSizing,
        comm: &dyn Communicator,
        forget: &mut dyn FnMut(usize),
    ) -> Result<&mut BucketSet> {
        match self.kept.iter().position(|layout| layout.sizing == sizing) {
            // It moves to the end, the place of the layout that was used last.
            Some(index) => self.kept[index..].rotate_left(1),
            None => {
                if self.kept.len() == KEPT {
                    forget(self.kept.remove(0).id);
                }
                // The order of SINGA's buckets is fixed by SINGA, and that of shared buckets by the shards.
                let settled = matches!(sizing, BucketSizing::Threshold(_)) || self.shards.is_some();
                self.make(sizing, &self.order(), settled, comm)?;
            }
        }
        self.kept.last_mut().ok_or(Error::NoParameters)
    }

    /// The buckets of this rank alone. Before the ranks have agreed on buckets, a rank that accumulates gradients
    /// cannot allocate buckets for all of them: the other ranks may have only one micro-batch.
    pub(super) fn early(&mut self, sizing: BucketSizing) -> Result<&mut BucketSet> {
        if self.early.is_none() {
            let order = self.order();
            let (plans, location) = (self.plan(sizing, &order), location(self.params()));
            let bucket =
                |plan: &BucketPlan| FlatTensor::zeros_on(&location, ElementType::F32, plan.len);
            let buckets = plans.iter().map(bucket).collect::<candelabrum_memory::Result<_>>()?;
            let gradients = FlatGradients::new(Arc::clone(self.params()), plans, buckets)?;
            self.early = Some(BucketSet {
                id: usize::MAX,
                sizing,
                order,
                gradients,
                labels: Arc::from([]),
                shards: None,
                own: Vec::new(),
                wire: Vec::new(),
                arriving: Vec::new(),
                steps: 0,
                settled: true,
            });
        }
        self.early.as_mut().ok_or(Error::NoParameters)
    }

    /// Copies accumulated gradients to the buckets of the layout that was used last, if they are elsewhere.
    pub(super) fn gather(&mut self, place: GradientLocation) -> Result<()> {
        let mut early = self.early.take();
        let Some((to, others)) = self.kept.split_last_mut() else { return Ok(()) };
        if let (Some(_), Some(early)) = (self.lent, &mut early) {
            return Ok(to.gradients.take_buckets(&mut early.gradients)?);
        }
        let from = match place {
            GradientLocation::Shared(sizing) if sizing == to.sizing => return Ok(()),
            GradientLocation::Shared(sizing) => {
                others.iter().find(|layout| layout.sizing == sizing)
            }
            GradientLocation::Early => early.as_ref(),
        };
        let what = || "buckets with accumulated gradients are not there".to_owned();
        let from = from.ok_or_else(|| Error::State { what: what() })?;
        Ok(to.gradients.take_over(&from.gradients)?)
    }

    /// Waits for new values that are still on their way.
    pub(super) fn finish_arrivals(&mut self) -> Result<()> {
        self.kept.iter_mut().try_for_each(BucketSet::finish_arrivals)
    }

    pub(super) fn last_used(&mut self) -> Option<&mut BucketSet> {
        self.kept.last_mut()
    }

    /// A note for the user, once, if lending buckets has saved nothing in a step. In its first steps a layout does not yet
    /// know which gradients come early.
    pub(super) fn note(&mut self) -> Option<String> {
        let layout = self.kept.last_mut()?;
        let all_at_once = layout.lends_all_at_once() && layout.steps > 1;
        if !all_at_once || std::mem::replace(&mut self.told, true) {
            return None;
        }
        let note = "all buckets of gradients had memory at the same time, so sharing the gradients saves no memory: the model does not use its layers in the order of their creation, or buckets wait for the end of the backward pass (no overlap)";
        Some(note.to_owned())
    }

    /// Reorders the parameters of the layout that was used last by the order in which rank 0's
    /// gradients became complete. This happens once, after the first step with the layout, or after
    /// the second one if the operations of the first step were made before their parameters were
    /// watched. Every rank calls it after every step. Returns the number of the layout that a new
    /// one has replaced.
    pub(super) fn settle(&mut self, comm: &dyn Communicator) -> Result<Option<usize>> {
        const TRIES: u64 = 2;
        let count = self.params().len();
        let Some(layout) = self.kept.last_mut() else { return Ok(None) };
        layout.steps += 1;
        if layout.settled {
            return Ok(None);
        }
        let mut message: Vec<i64> =
            layout.gradients.ready_order().iter().map(|&param| param as i64).collect();
        let complete = message.len() == count;
        message.resize(count, 0);
        message.push(i64::from(complete));
        comm.broadcast(&mut message, 0)?;
        let complete = message.pop() == Some(1);
        layout.settled = complete || layout.steps >= TRIES;
        if !complete {
            return Ok(None);
        }
        let order: Vec<usize> = message.into_iter().map(|param| param as usize).collect();
        if is_no_order(&order, count) {
            let what = "rank 0's order of gradients is no order of the parameters".to_owned();
            return Err(Error::Protocol { what });
        }
        let (id, sizing, plans) = (layout.id, layout.sizing, layout.gradients.plans().clone());
        if self.plan(sizing, &order)[..] == plans[..] {
            return Ok(None);
        }
        // The memory of the old buckets is freed before the new buckets are allocated.
        drop((plans, self.kept.pop()));
        self.make(sizing, &order, true, comm)?;
        Ok(Some(id))
    }

    /// The layouts that are kept, in the order of their last use.
    pub(super) fn state(&self) -> Vec<BucketSetState> {
        let state = |layout: &BucketSet| {
            let &BucketSet { sizing, settled, steps, .. } = layout;
            BucketSetState { sizing, order: layout.order.clone(), settled, steps }
        };
        self.kept.iter().map(state).collect()
    }

    /// Replaces the layouts by those of a checkpoint. All ranks call it together. `forget` is called with the
    /// number of each layout that is dropped.
    pub(super) fn load_state(
        &mut self,
        states: &[BucketSetState],
        comm: &dyn Communicator,
        forget: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let count = self.params().len();
        if let Some(state) = states.iter().find(|state| is_no_order(&state.order, count)) {
            let what = format!(
                "it has buckets of {} parameters, this model has {count} that are trained",
                state.order.len()
            );
            return Err(Error::State { what });
        }
        self.kept.drain(..).for_each(|layout| forget(layout.id));
        // The buckets of shards are those of this run.
        let states = if self.shards.is_some() { &[] } else { states };
        for state in states.iter().rev().take(KEPT).rev() {
            self.make(state.sizing, &state.order, state.settled, comm)?;
            if let Some(layout) = self.kept.last_mut() {
                layout.steps = state.steps;
            }
        }
        Ok(())
    }

    fn plan(&self, sizing: BucketSizing, order: &[usize]) -> Vec<BucketPlan> {
        let sizes: Vec<usize> = self.params().iter().map(|param| param.element_count()).collect();
        let sizing = self.lent.map_or(sizing, |room| sizing.at_most(room));
        // A bucket whose values nobody gathers after an update has no others.
        let runs = order.chunk_by(|&a, &b| self.is_away(a) == self.is_away(b));
        let mut plans: Vec<BucketPlan> =
            runs.flat_map(|run| bucketing::plan(&sizes, sizing, run)).collect();
        if !location(self.params()).is_host() {
            plans.iter_mut().for_each(|plan| plan.align(GPU_STEP));
        }
        plans
    }

    fn make(
        &mut self,
        sizing: BucketSizing,
        order: &[usize],
        settled: bool,
        comm: &dyn Communicator,
    ) -> Result<()> {
        let id = self.made;
        let (location, plans) = (location(self.params()), self.plan(sizing, order));
        let (mut labels, mut own) = (Vec::new(), Vec::new());
        for (index, plan) in plans.iter().enumerate() {
            labels.push(Label::of_series(label(index, plan, self.params()), id as u64));
        }
        let memory = |len: usize| bucket_memory(&location, ElementType::F32, len, comm);
        let params = Arc::clone(self.params());
        let gradients = match (&self.shards, self.lent) {
            (Some(shards), Some(room)) => {
                for index in 0..plans.len() {
                    let len = shards.range(index).len();
                    own.push(FlatTensor::zeros_on(&location, ElementType::F32, len)?);
                }
                // A bucket that is filled until it has enough may have more.
                let small = plans.iter().filter(|plan| plan.slots.len() > 1).map(|plan| plan.len);
                let room = small.max().unwrap_or(0).max(room);
                let buffers = (0..LENT).map(|_| memory(room)).collect::<Result<_>>()?;
                let pool = BucketPool::new(buffers, location.clone(), room);
                FlatGradients::lent(params, plans, pool)?
            }
            _ => {
                let buckets = plans.iter().map(|plan| memory(plan.len)).collect::<Result<_>>()?;
                FlatGradients::new(params, plans, buckets)?
            }
        };
        let (labels, wire, order) = (labels.into(), Vec::new(), order.to_vec());
        let shards = self.shards.clone();
        self.kept.push(BucketSet {
            id,
            sizing,
            order,
            gradients,
            labels,
            shards,
            own,
            wire,
            arriving: Vec::new(),
            steps: 0,
            settled,
        });
        self.made += 1;
        Ok(())
    }
}

/// The elements of each rank, of a parameter that has no bucket.
fn even_parts(elements: usize, ranks: usize) -> Vec<Range<usize>> {
    let end = |rank: usize| elements * rank / ranks;
    (0..ranks).map(|rank| end(rank)..end(rank + 1)).collect()
}

/// The room of lent buckets for parameters of `sizes` elements: so much that at most a third of all elements are in
/// larger parameters, each of which needs memory of its own in every step. `None` if the lent buckets would have more than
/// half of the memory of all.
fn lent_room(sizes: &[usize], sizing: BucketSizing) -> Option<usize> {
    let total = sizes.iter().sum::<usize>();
    let least = sizing.at_most(total / (4 * LENT)).most();
    let mut rooms: Vec<usize> = sizes.iter().copied().filter(|&size| size > least).collect();
    rooms.push(least);
    rooms.sort_unstable();
    let larger = |room: usize| sizes.iter().filter(|&&size| size > room).sum::<usize>();
    let room = rooms.into_iter().find(|&room| 3 * larger(room) <= total)?;
    (2 * LENT * room <= total).then_some(room)
}

/// The memory of the parameters, which are all on one device.
pub(super) fn location(params: &[Param]) -> Location {
    params.first().map_or(Location::HOST, |param| Location::from_device(param.device()))
}

/// Memory for the numbers of a bucket: on the parameters' GPU, or on the host at the place where the
/// backend reduces fastest.
fn bucket_memory(
    location: &Location,
    element: ElementType,
    len: usize,
    comm: &dyn Communicator,
) -> Result<FlatTensor> {
    if location.is_host() {
        return Ok(comm.alloc(element, len)?.into_flat());
    }
    Ok(FlatTensor::zeros_on(location, element, len)?)
}

fn is_no_order(order: &[usize], len: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    !sorted.into_iter().eq(0..len)
}

impl BucketSet {
    pub(super) fn buckets(&self) -> usize {
        self.gradients.plans().len()
    }

    /// The place for the averages of this rank's shard in a step, if buckets are lent. [`Self::put_own`] takes it back.
    pub(super) fn take_own(&mut self) -> Option<OwnAverages> {
        let pool = self.gradients.pool()?.clone();
        Some(OwnAverages::new(std::mem::take(&mut self.own), pool))
    }

    pub(super) fn put_own(&mut self, own: OwnAverages) {
        self.own = own.parts;
    }

    /// Waits for the new values that are still on their way, and takes their buckets back.
    fn finish_arrivals(&mut self) -> Result<()> {
        for (index, arriving) in std::mem::take(&mut self.arriving) {
            for slot in &self.gradients.plans()[index].slots {
                self.gradients.params()[slot.param].gather()?;
            }
            self.gradients.put(index, arriving.take()?);
        }
        Ok(())
    }

    /// Takes back a bucket that has not become averages.
    pub(super) fn put_back(&mut self, index: usize, bucket: FlatTensor) {
        match self.gradients.pool() {
            Some(pool) => pool.give_back(bucket),
            None => self.gradients.put(index, bucket),
        }
    }

    /// Whether all lent buckets had memory at the same time in this step, so that lending has saved nothing.
    fn lends_all_at_once(&self) -> bool {
        let Some(pool) = self.gradients.pool() else { return false };
        let (room, added) = (pool.room(), pool.take_added());
        let lent = self.gradients.plans().iter().filter(|plan| plan.len <= room).count();
        lent > LENT && added + LENT >= lent
    }

    /// Sets every gradient to `value`.
    pub(super) fn fill(&mut self, value: f32) -> Result<()> {
        for (_, bucket) in self.gradients.buckets() {
            bucket.span_mut()?.fill(value)?;
        }
        Ok(())
    }

    /// Multiplies every gradient by `factor`.
    pub(super) fn scale(&mut self, factor: f32) -> Result<()> {
        for (_, bucket) in self.gradients.buckets() {
            bucket.span_mut()?.scale(factor)?;
        }
        Ok(())
    }

    /// Copies the values of a bucket's parameters into the bucket.
    pub(super) fn load(&mut self, index: usize) -> Result<()> {
        let (params, plans) =
            (Arc::clone(self.gradients.params()), Arc::clone(self.gradients.plans()));
        let bucket = self.gradients.bucket(index)?;
        for slot in &plans[index].slots {
            let mut place = bucket.range_mut(slot.range.clone())?;
            params[slot.param].with_values(|values| place.copy_from(values))?;
        }
        Ok(())
    }

    /// Copies the values in a bucket into its parameters.
    pub(super) fn store(&mut self, index: usize) -> Result<()> {
        let (params, plans) =
            (Arc::clone(self.gradients.params()), Arc::clone(self.gradients.plans()));
        let bucket = self.gradients.bucket(index)?;
        for slot in &plans[index].slots {
            let values = bucket.range(slot.range.clone())?;
            params[slot.param].update_in_place(|mut place| place.copy_from(values))??;
        }
        Ok(())
    }

    /// Checks that every parameter has a gradient of `loss`. With `allow_unused`, missing gradients become
    /// zeros.
    pub(super) fn complete(&mut self, loss: &Tensor, allow_unused: bool) -> Result<()> {
        if allow_unused {
            return Ok(self.gradients.zero_rest()?);
        }
        match self.gradients.missing(loss) {
            Some(MissingGradients { names, why }) => Err(Error::NoGradient { names, why }),
            None => Ok(()),
        }
    }

    /// Memory for each bucket's numbers in the type `element`, at the place where the backend reduces
    /// fastest. All ranks call it together. [`Self::put_wire`] returns the memory.
    pub(super) fn take_wire(
        &mut self,
        element: ElementType,
        comm: &dyn Communicator,
    ) -> Result<Vec<Option<FlatTensor>>> {
        if let Some((_, wire)) = self.wire.iter_mut().find(|(kept, _)| *kept == element) {
            return Ok(std::mem::take(wire));
        }
        let location = location(self.gradients.params());
        let plans = self.gradients.plans().iter();
        let wire = plans.map(|plan| bucket_memory(&location, element, plan.len, comm).map(Some));
        let wire = wire.collect::<Result<_>>()?;
        self.wire.push((element, Vec::new()));
        Ok(wire)
    }

    pub(super) fn put_wire(&mut self, element: ElementType, wire: Vec<Option<FlatTensor>>) {
        if let Some((_, place)) = self.wire.iter_mut().find(|(kept, _)| *kept == element) {
            *place = wire;
        }
    }
}

/// The content of a bucket, for messages.
fn label(index: usize, plan: &BucketPlan, params: &[Param]) -> String {
    format!("bucket {index}: {}", names(plan.slots.iter().map(|slot| &params[slot.param])))
}

/// The first names, and the number of the others.
fn names<'p>(params: impl ExactSizeIterator<Item = &'p Param>) -> String {
    let more = params.len().saturating_sub(NAMES);
    let names = params.take(NAMES).map(Param::name).collect::<Vec<_>>().join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_lent_where_that_saves_memory() {
        let room = |sizes: &[usize]| lent_room(sizes, BucketSizing::Caps { first: 10, cap: 1000 });
        // A sixteenth of the model.
        assert_eq!(room(&[10; 1600]), Some(1000));
        assert_eq!(room(&[10; 320]), Some(200));
        // One large embedding has memory of its own, several large parameters have not.
        assert_eq!(room(&[vec![5; 1000], vec![2000]].concat()), Some(437));
        assert_eq!(room(&[vec![5; 500], vec![900; 10]].concat()), Some(900));
        assert_eq!(room(&[vec![5; 100], vec![900; 3]].concat()), None);
        // A small model has the buckets that it has otherwise.
        assert_eq!(room(&[10; 5]), None);
    }
}
