//! The parts of a step in which each rank has a shard of the averages and of the optimizer's state.

use std::collections::VecDeque;
use std::sync::Arc;

use candelabrum_memory::chunks::CHUNK;
use candelabrum_memory::{FlatTensor, Norm, Span, square_sums};
use candelabrum_nn::Param;
use candelabrum_optim::{Clip, clip};

use super::arriving::{InFlightValues, copy_others};
use super::averages::Averages;
use super::bucket_exchange::BucketExchange;
use super::figures::timed;
use super::own_averages::ON_THEIR_WAY;
use super::replicas::lose;
use super::shard::ShardRanges;
use super::step::Step;
use crate::comm::{Collective, Payload, Pending, ReduceOp};
use crate::{Error, Result};

impl BucketExchange {
    /// The first of the places that the ranks have found, bucket and position: each rank sees only its own shard.
    pub(super) fn first_of_all_ranks(
        &self,
        own: Option<(usize, usize)>,
    ) -> Result<Option<(usize, usize)>> {
        // The lowest bucket counts first, so it is the higher half of the number.
        const HALF: u32 = 40;
        let code = own.map_or(i64::MAX, |(index, at)| (index as i64) << HALF | at as i64);
        let found = Payload::from_slice(&[code]);
        let found = found.labelled("the vote on finite averages").of_step(self.context.step);
        let first = self.context.ranks.all.run(Collective::AllReduce(ReduceOp::Min), found)?;
        let first = first.as_slice::<i64>()?.first().copied().filter(|&code| code != i64::MAX);
        Ok(first.map(|code| ((code >> HALF) as usize, (code & ((1 << HALF) - 1)) as usize)))
    }
}

impl Step<'_> {
    /// Clips this rank's shard of the averages. The norm is that of the whole gradient, with the bits that a rank with
    /// all averages would compute: the ranks exchange the sums of the chunks of which that rank would make it. Where
    /// hosts have copies, the ranks of a host have all chunks, each once.
    pub(super) fn clip_shard(&mut self, limit: Clip) -> Result<()> {
        let factor = match limit {
            Clip::Norm(_) => limit.factor(self.shared_norm()?),
            _ => None,
        };
        let BucketExchange { context, own, figures, .. } = &mut self.exchange;
        timed(&mut figures.update, || {
            for index in 0..self.layout.buckets() {
                let mut averages = Averages::new(own.as_mut(), self.layout, context, index)?;
                let mut own = averages.range_mut(context.own_range(index))?;
                match (limit, factor) {
                    (Clip::Norm(_), None) => {}
                    (Clip::Norm(_), Some(factor)) => own.scale(factor)?,
                    (limit, _) => drop(clip(limit, &mut [own])?),
                }
            }
            Ok(())
        })
    }

    fn shared_norm(&mut self) -> Result<f64> {
        let BucketExchange { context, own: averages, .. } = &mut self.exchange;
        // By parameter, in the order in which a rank with all averages adds.
        let lens = context.params.iter().map(|param| param.element_count().div_ceil(CHUNK));
        let lens: Vec<usize> = lens.collect();
        let starts: Vec<usize> = prefix_sums(&lens);
        let mut sums = vec![0.0; lens.iter().sum()];
        let mut on_device = Norm::default();
        for index in 0..self.layout.buckets() {
            let averages = Averages::new(averages.as_mut(), self.layout, context, index)?;
            for slot in &context.plans[index].slots {
                let own = context.owned(slot);
                let first = starts[slot.param] + own.start / CHUNK;
                if own.is_empty() {
                    continue;
                }
                match averages.range(context.place_of_owned(slot))? {
                    Span::Host(values) => {
                        let own = square_sums(values);
                        sums[first..first + own.len()].copy_from_slice(&own);
                    }
                    values => on_device.add(values)?,
                }
            }
        }
        // A GPU adds in an order of its own.
        sums.push(on_device.sum_of_squares()?);
        context.ranks.replica.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mut norm = Norm::default();
        for (start, len) in starts.into_iter().zip(lens) {
            norm.add_square_sums(&sums[start..start + len]);
        }
        norm.add_square_sums(&sums[sums.len() - 1..]);
        Ok(norm.get()?)
    }

    /// Sends the new values of this rank's shard to the ranks that have the others, and takes theirs. The buckets carry them, whose
    /// gradients are not needed any more.
    pub(super) fn gather_updated(&mut self) -> Result<()> {
        let Some(shards) = self.exchange.context.shards.clone() else { return Ok(()) };
        let _span = tracing::trace_span!(target: "candelabrum::step", "gather").entered();
        let gathered = match self.exchange.own {
            None => self.gather_all(&shards),
            Some(_) => self.gather_in_turn(&shards),
        };
        gathered.inspect_err(|error| self.lose_others(error))
    }

    /// Lets accesses to the parameters fail of which other ranks have updated parts, or whose new values are not rounded.
    fn lose_others(&self, error: &Error) {
        let context = &self.exchange.context;
        let slots = context.plans.iter().flat_map(|plan| &plan.slots);
        let others = slots.filter(|slot| {
            context.owned(slot).len() < slot.range.len() || context.is_sharded(slot.param)
        });
        let others = others.map(|slot| &context.params[slot.param]);
        lose(others.filter(|param| !param.is_frozen() && !param.is_released()), error);
    }

    /// Gathers lent buckets, of which few have memory at a time.
    fn gather_in_turn(&mut self, shards: &ShardRanges) -> Result<()> {
        let mut under_way = VecDeque::new();
        for index in 0..self.layout.buckets() {
            if self.exchange.context.is_away(index) {
                continue;
            }
            under_way.push_back((index, self.start_gather(index, shards)?));
            if under_way.len() > ON_THEIR_WAY
                && let Some((index, pending)) = under_way.pop_front()
            {
                self.end_gather(index, pending)?;
            }
        }
        under_way.into_iter().try_for_each(|(index, pending)| self.end_gather(index, pending))
    }

    /// Starts the gatherings of buckets that have memory all the time, in the order in which a forward pass needs them.
    /// They end now, or when the next pass accesses the parameters.
    fn gather_all(&mut self, shards: &ShardRanges) -> Result<()> {
        let (mut under_way, mut traffic) = (Vec::new(), self.exchange.context.traffic());
        for index in (0..self.layout.buckets()).rev() {
            let context = &self.exchange.context;
            if context.is_away(index) {
                continue;
            }
            let (all, own) = (context.plans[index].len, context.own_range(index).len());
            traffic.bytes_sent += (own * size_of::<f32>()) as u64;
            traffic.bytes_received += ((all - own) * size_of::<f32>()) as u64;
            under_way.push((index, self.start_gather(index, shards)?));
        }
        // One that its waiting thread carries out only delays the pass.
        let comes = |(_, pending): &(usize, Pending)| !pending.needs_a_wait();
        if self.can_arrive_late() && under_way.iter().all(comes) {
            self.traffic = Some(traffic);
            let mut under_way = under_way.into_iter();
            return under_way.try_for_each(|(index, pending)| self.leave_to_access(index, pending));
        }
        under_way.into_iter().try_for_each(|(index, pending)| self.end_gather(index, pending))
    }

    fn start_gather(&mut self, index: usize, shards: &ShardRanges) -> Result<Pending> {
        let mut bucket = match &self.exchange.own {
            Some(own) => own.pool.lend(self.exchange.context.plans[index].len)?,
            None => self.layout.gradients.take(index)?,
        };
        self.load_shard(index, &mut bucket)?;
        let context = &self.exchange.context;
        let payload = Payload::from(bucket).with_parts(&**shards.parts(index))?;
        let payload = payload.labelled(context.labels[index].clone()).of_step(context.step);
        Ok(context.ranks.replica.start(Collective::AllGatherInPlace, payload))
    }

    /// Whether new values may arrive after the step: on the host, for a model of which the user says that it keeps no
    /// tensors.
    pub(super) fn can_arrive_late(&self) -> bool {
        let context = &self.exchange.context;
        self.config.overlap_forward
            && context.values.is_none()
            && context.location().is_host()
            && !context.params.iter().any(Param::is_given)
    }

    /// Lets the first access to each parameter of a bucket wait for its new values.
    fn leave_to_access(&mut self, index: usize, pending: Pending) -> Result<()> {
        let (context, arriving) = (&self.exchange.context, Arc::new(InFlightValues::new(pending)));
        for slot in &context.plans[index].slots {
            let (param, own, place) =
                (&context.params[slot.param], context.owned(slot), slot.range.clone());
            // A rank that owns all of it waits for nothing.
            if !param.is_frozen() && own.len() < place.len() {
                let arriving = Arc::clone(&arriving);
                param.expect(move |values| {
                    Ok(arriving.copy_others(values, place.clone(), own.clone())?)
                })?;
            }
        }
        self.layout.arriving.push((index, arriving));
        Ok(())
    }

    fn end_gather(&mut self, index: usize, pending: Pending) -> Result<()> {
        let bucket = pending.wait_on_stream()?.into_flat();
        self.exchange.check_stream(&bucket)?;
        self.store_others(index, &bucket)?;
        self.layout.put_back(index, bucket);
        Ok(())
    }

    /// Copies the values that this rank has updated into a bucket.
    fn load_shard(&mut self, index: usize, bucket: &mut FlatTensor) -> Result<()> {
        let context = &self.exchange.context;
        timed(&mut self.exchange.figures.update, || {
            for slot in &context.plans[index].slots {
                let own = context.owned(slot);
                if own.is_empty() {
                    continue;
                }
                let mut place = bucket.range_mut(context.place_of_owned(slot))?;
                let param = &context.params[slot.param];
                param.with_own_values(|start, values| {
                    place.copy_from(values.range(own.start - start..own.end - start))
                })?;
            }
            Ok(())
        })
    }

    /// Copies the values that other ranks have updated out of a bucket.
    fn store_others(&mut self, index: usize, bucket: &FlatTensor) -> Result<()> {
        let context = &self.exchange.context;
        if context.ranks.is_server() {
            // It needs its own values alone.
            return Ok(());
        }
        timed(&mut self.exchange.figures.update, || {
            for slot in &context.plans[index].slots {
                let (param, own) = (&context.params[slot.param], context.owned(slot));
                let place = slot.range.clone();
                if param.is_frozen() {
                    continue;
                }
                if context.is_sharded(slot.param) {
                    param.put(bucket.range(place)?)?;
                } else if own.len() < place.len() {
                    param.update_in_place(|values| copy_others(values, bucket, place, own))??;
                }
            }
            Ok(())
        })
    }
}

/// The sum of all numbers before each one.
fn prefix_sums(lens: &[usize]) -> Vec<usize> {
    let mut sum = 0;
    let before = |len: &usize| {
        sum += len;
        sum - len
    };
    lens.iter().map(before).collect()
}
