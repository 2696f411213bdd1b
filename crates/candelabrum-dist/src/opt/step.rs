//! One step of a strategy: gradients into buckets, the exchange, the check, the update.
//!
//! Buckets leave during the backward pass ([`BucketExchange`]). A step that fails leaves the model
//! unchanged, so parameters change only when every average is known to be finite. While a step
//! would only wait, it may change them earlier, in a way that can be undone ([`UndoLog`]). An
//! average of *parameters* comes after the update.
//!
//! If a step fails for a reason that all ranks learn, all ranks leave it together
//! ([`StepEnd::Failed`]), and the next step works. After any other error the ranks no longer agree
//! on the next operation.

use std::collections::VecDeque;
use std::time::Instant;

use candelabrum_memory::{FiniteCheck, SpanMut};
use candelabrum_nn::{BucketSlot, DistOption, Observer, Param};
use candelabrum_optim::{Optimizer, Update, clip};
use candle_core::Tensor;

use super::averages::Averages;
use super::bucket_exchange::BucketExchange;
use super::bucket_sets::BucketSet;
use super::config::{DistOptConfig, OnOverflow};
use super::context::StepContext;
use super::figures::{StepFigures, timed};
use super::loss_scale::LossScaler;
use super::placement::{NewValues, UpdateServers};
use super::recording::PassRecording;
use super::replicas::{average_replicas, lose};
use super::step_end::StepEnd;
use super::step_failure::StepFailure;
use super::undo_log::UndoLog;
use crate::comm::CommStats;
use crate::strategy::Subject;
use crate::{Error, Result};

/// A step with all that it works on.
pub(super) struct Step<'a> {
    pub(super) exchange: BucketExchange,
    pub(super) config: &'a DistOptConfig,
    pub(super) layout: &'a mut BucketSet,
    pub(super) optimizer: &'a mut dyn Optimizer,
    /// Servers that make the updates instead.
    pub(super) servers: Option<&'a mut dyn UpdateServers>,
    /// By parameter: the way to the values that servers make.
    pub(super) new_values: Vec<(usize, NewValues)>,
    pub(super) undo_log: &'a mut UndoLog,
    /// The strategy.
    pub(super) option: DistOption,
    /// Whether the buckets contain accumulated gradients, to which this step adds its own.
    pub(super) pending: bool,
    /// Whether a strategy has let the ranks' models differ, and this step makes them equal again.
    pub(super) rejoin: bool,
    /// The factor of the accumulated gradients by their weights.
    pub(super) factor: f64,
    /// The share of this step's own loss.
    pub(super) share: f64,
    /// Whether the loss does not say that its weight varies, although the weight counts.
    pub(super) lacks_weight: bool,
    /// The factor of the loss.
    pub(super) scaler: &'a mut LossScaler,
    /// The notes for the user.
    pub(super) notes: &'a mut Vec<String>,
    /// If new values arrive after the step: the traffic until the first of them, and their bytes.
    pub(super) traffic: Option<CommStats>,
}

/// The batch of this rank, after the forward pass.
#[derive(Clone, Copy, Debug)]
pub(super) enum MicroBatch<'a> {
    Loss(&'a Tensor),
    /// The replay computes the forward pass too.
    Recorded(&'a PassRecording),
}

/// The reason why a backward pass ended early.
enum PassError {
    /// An error of this rank alone. The other ranks learn of it at the end of the exchange.
    Own(Error),
    /// The exchange has failed, so the ranks no longer agree on the next operation.
    Exchange(Error),
}

impl From<Error> for PassError {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl Step<'_> {
    /// Takes the step. A rank that has no batch left passes no `batch`, and its gradients are zero.
    /// A rank with a `failure` has no gradients. Afterwards the exchange contains the cost of the step.
    pub(super) fn run(
        &mut self,
        batch: Option<MicroBatch<'_>>,
        failure: Option<Error>,
    ) -> Result<StepEnd> {
        let before = self.traffic_so_far();
        let result = self.backward(batch, failure).and_then(|()| match self.exchange.subject {
            Subject::Gradients => self.average_and_update(),
            Subject::Parameters => self.update_and_average(batch.is_some()),
        });
        let result = result.map(|end| {
            let (end, note) = self.scaler.judge(end);
            self.notes.extend(note);
            end
        });
        if !matches!(result, Ok(StepEnd::Taken)) {
            self.exchange.recall(self.layout);
        }
        let after = self.traffic.unwrap_or_else(|| self.traffic_so_far());
        let traffic = after - before;
        self.exchange.figures = StepFigures {
            steps: 1,
            skipped: u64::from(matches!(result, Ok(StepEnd::Skipped))),
            replayed: u64::from(matches!(batch, Some(MicroBatch::Recorded(_)))),
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            communication: traffic.busy,
            exposed: traffic.exposed,
            ..self.exchange.figures
        };
        result
    }

    /// Computes the gradients into the buckets. Buckets whose gradients are complete may leave
    /// meanwhile. An error of this rank alone becomes the failure of the exchange.
    fn backward(&mut self, batch: Option<MicroBatch<'_>>, failure: Option<Error>) -> Result<()> {
        let _span = tracing::trace_span!(target: "candelabrum::step", "backward").entered();
        if let Some(error) = failure {
            self.exchange.fail(StepFailure::Failed(error));
            return Ok(());
        }
        // The sum of any number and -0 is that number, also where it is -0 itself.
        let Some(batch) = batch else { return self.layout.fill(-0.0) };
        let start = Instant::now();
        // Accumulated gradients count by their weights in the global batch.
        if self.pending && self.factor as f32 != 1.0 {
            self.layout.scale(self.factor as f32)?;
        }
        let passed = match batch {
            MicroBatch::Loss(loss) => self.differentiate(loss),
            MicroBatch::Recorded(recording) => self.replay(recording),
        };
        let messages = self.exchange.figures.compress;
        self.exchange.figures.backward += start.elapsed().saturating_sub(messages);
        match passed {
            Ok(()) => {}
            Err(PassError::Own(error)) => self.exchange.fail(StepFailure::Failed(error)),
            Err(PassError::Exchange(error)) => return Err(error),
        }
        Ok(())
    }

    /// Runs candle's backward pass, during which complete buckets leave.
    fn differentiate(&mut self, loss: &Tensor) -> std::result::Result<(), PassError> {
        self.exchange.check_loss(loss)?;
        let loss = &self.scaler.scaled(loss, self.share)?;
        let gradients = &mut self.layout.gradients;
        if !self.pending {
            gradients.clear();
        }
        let overlaps = self.config.overlap && self.exchange.subject == Subject::Gradients;
        let mut sent = Ok(());
        let mut accept = |index, bucket| {
            sent = self.exchange.accept_early(index, bucket);
            sent.clone().map_err(candle_core::Error::from)
        };
        let observer: Observer<'_> = &mut accept;
        let passed = gradients.observed_backward(loss, overlaps.then_some(observer));
        sent.map_err(PassError::Exchange)?;
        passed.map_err(Error::from)?;
        if self.lacks_weight && gradients.met_varying_loss() {
            return Err(Error::UnknownWeight.into());
        }
        Ok(self.layout.complete(loss, self.config.allow_unused)?)
    }

    /// Repeats a recorded pass, during which complete buckets leave.
    fn replay(&mut self, recording: &PassRecording) -> std::result::Result<(), PassError> {
        if let Some(scale) = &recording.scale {
            scale.write(self.scaler, self.share)?;
        }
        self.layout.gradients.set_pass_state(&recording.after);
        for (number, piece) in recording.pieces.iter().enumerate() {
            piece.graph.launch().map_err(Error::from)?;
            if number == 0 {
                // The first piece computes the loss.
                self.exchange.check_loss(&recording.loss)?;
            }
            if self.exchange.subject == Subject::Gradients
                && let Some(index) = piece.bucket
            {
                let bucket = self.layout.gradients.take(index).map_err(Error::from)?;
                self.exchange.accept_early(index, bucket).map_err(PassError::Exchange)?;
            }
        }
        Ok(())
    }

    /// Averages the gradients, and updates the parameters if all averages are finite.
    fn average_and_update(&mut self) -> Result<StepEnd> {
        self.exchange.send_rest(self.layout)?;
        let votes = !self.exchange.kind.shows_bad_numbers();
        let vote = votes.then(|| self.exchange.start_vote()).transpose()?;
        self.undo_log.clear();
        let mut arrived = VecDeque::new();
        let outcome = self.collect(&mut arrived).and_then(|overflow| {
            if let Some(error) = vote.map_or(Ok(None), |vote| self.exchange.check_vote(vote))? {
                return Ok(Some(StepEnd::Failed(error)));
            }
            overflow.map_or(Ok(None), |name| self.answer_overflow(name).map(Some))
        });
        if !matches!(outcome, Ok(None)) {
            self.undo_log.undo(&self.exchange.context.params, self.optimizer)?;
            if let (Ok(_), Some(values)) = (&outcome, &self.exchange.context.values) {
                // A rank that is in its next step already must not get what this one has just undone.
                values.advance()?;
            }
        }
        if let Some(end) = outcome? {
            return Ok(end);
        }
        if self.rejoin {
            // After the backward pass, because it needs the parameters of the forward pass.
            let context = &self.exchange.context;
            average_replicas(&*context.ranks.all, &context.params, self.optimizer)?;
        }
        self.clip()?;
        arrived.into_iter().try_for_each(|index| self.update(index))?;
        self.optimizer.step();
        if let Some(values) = &self.exchange.context.values {
            values.advance()?;
            // Also where this rank has no shard, and where no block has been computed since an access.
            self.exchange.context.params.iter().try_for_each(Param::release)?;
        }
        self.gather_updated()?;
        self.receive_new_values()?;
        Ok(StepEnd::Taken)
    }

    /// The traffic until now.
    fn traffic_so_far(&self) -> CommStats {
        let of_servers = self.servers.as_ref().map(|servers| servers.traffic());
        of_servers.unwrap_or_else(|| self.exchange.context.traffic())
    }

    /// Takes the values that servers have made: now, or when the next pass accesses the parameters.
    fn receive_new_values(&mut self) -> Result<()> {
        if let Some(servers) = self.servers.as_ref().filter(|_| !self.new_values.is_empty()) {
            self.traffic = Some(servers.traffic());
        }
        let params = &self.exchange.context.params;
        let is_late = self.can_arrive_late();
        let mut received = Ok(());
        for (number, values) in std::mem::take(&mut self.new_values) {
            let param = &params[number];
            if is_late {
                let (mut values, mut outcome) = (Some(values), Ok(()));
                param.expect(move |to| {
                    if let Some(values) = values.take() {
                        outcome = values(to);
                    }
                    Ok(outcome.clone()?)
                })?;
            } else if received.is_ok() {
                received = param.update_in_place(values)?;
            }
        }
        // Some parameters have new values, and others have not.
        received.inspect_err(|error| lose(params.iter(), error))
    }

    /// Waits for every bucket, and appends to `arrived` the buckets that have not been updated
    /// meanwhile. Returns the first parameter whose average is not finite.
    fn collect(&mut self, arrived: &mut VecDeque<usize>) -> Result<Option<String>> {
        let mut may_update = self.config.clip_gradients.is_none() && !self.rejoin;
        if let Some(own) = &mut self.exchange.own {
            arrived.extend(own.arrived.drain(..));
        }
        may_update &= !self.exchange.average_search.is_bad_so_far();
        loop {
            while may_update && self.exchange.is_underway() {
                let Some(index) = arrived.pop_front() else { break };
                may_update = self.note(index)?;
                if may_update {
                    self.exchange.figures.early_updates += 1;
                    self.update(index)?;
                } else {
                    arrived.push_front(index);
                }
            }
            let Some((index, bucket)) = self.exchange.arrive()? else { break };
            if let Some(bucket) = self.exchange.look_at_average(index, bucket)? {
                self.layout.gradients.put(index, bucket);
            }
            arrived.push_back(index);
            may_update &= !self.exchange.average_search.is_bad_so_far();
        }
        let first = self.exchange.average_search.first()?;
        let own = self.exchange.own.as_ref().and_then(|own| own.parts.first());
        let any = own.or_else(|| self.layout.gradients.any());
        if let Some(bucket) = any {
            self.exchange.check_stream(bucket)?;
        }
        let context = &self.exchange.context;
        let first = first.map(|(index, at)| (index, context.own_range(index).start + at));
        let first = if self.exchange.averages_are_shared_out() {
            self.exchange.first_of_all_ranks(first)?
        } else {
            first
        };
        Ok(first.map(|(index, position)| self.exchange.context.name_at(index, position)))
    }

    /// Writes the values that an update of a bucket will change into the undo log. Returns false if
    /// the update could not be undone.
    fn note(&mut self, index: usize) -> Result<bool> {
        let context = &self.exchange.context;
        timed(&mut self.exchange.figures.update, || {
            for slot in &context.plans[index].slots {
                let param = &context.params[slot.param];
                let is_updated = !param.is_frozen() && !context.owned(slot).is_empty();
                if is_updated && !self.undo_log.note(slot.param, param, self.optimizer)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// The end of a step in which the average of `name` is not finite. Averages are the same on
    /// every rank, so this end is too.
    fn answer_overflow(&mut self, name: String) -> Result<StepEnd> {
        if let Some(error) = self.exchange.share_failure()? {
            return Ok(StepEnd::Failed(error));
        }
        let context = &self.exchange.context;
        let strategy = self.exchange.kind.describe();
        if self.config.on_overflow == OnOverflow::Error {
            return Ok(StepEnd::Failed(Error::Overflow { strategy, name }));
        }
        self.notes.push(format!(
            "step {} was left out: the {strategy} average of `{name}` overflowed",
            context.step
        ));
        Ok(StepEnd::Skipped)
    }

    /// Updates with this rank's own gradients, then averages the parameters of some of the buckets. A
    /// rank without a batch contributes its unchanged parameters.
    fn update_and_average(&mut self, has_batch: bool) -> Result<StepEnd> {
        let count = self.layout.buckets();
        // With a failure there are no gradients of this step, and the buckets contain those of an
        // earlier step.
        if let Some(inverse) = self.scaler.inverse() {
            self.layout.scale(inverse)?;
        }
        if self.exchange.failure()?.is_none() {
            self.exchange.look_at_all(self.layout)?;
        }
        let vote = self.exchange.start_vote()?;
        // The ranks' own gradients are never added, so only the vote shows a bad one.
        if let Some(error) = self.exchange.check_vote(vote)? {
            return Ok(StepEnd::Failed(error));
        }
        if has_batch {
            self.clip()?;
            (0..count).try_for_each(|index| self.update(index))?;
        }
        self.optimizer.step();
        for index in 0..count {
            if !self.exchange.kind.takes_part(&self.exchange.context.bucket(index)) {
                continue;
            }
            timed(&mut self.exchange.figures.compress, || self.layout.load(index))?;
            let bucket = self.layout.gradients.take(index)?;
            self.exchange.launch(index, bucket)?;
        }
        let mut check = FiniteCheck::default();
        while let Some((index, bucket)) = self.exchange.arrive()? {
            check.look(index, bucket.span()?)?;
            let first = check.first()?;
            self.exchange.check_stream(&bucket)?;
            self.layout.gradients.put(index, bucket);
            if let Some((index, position)) = first {
                let name = self.exchange.context.name_at(index, position);
                return Ok(StepEnd::Failed(Error::Diverged { name }));
            }
            timed(&mut self.exchange.figures.decompress, || self.layout.store(index))?;
        }
        Ok(StepEnd::Taken)
    }

    /// Clips the gradients in the buckets to the configured limit. The buckets contain the
    /// averages, whose bits are the same on every rank, so every rank computes the same norm
    /// without a message.
    fn clip(&mut self) -> Result<()> {
        let Some(limit) = self.config.clip_gradients else { return Ok(()) };
        if self.exchange.averages_are_shared_out() {
            return self.clip_shard(limit);
        }
        let plans = &self.exchange.context.plans;
        timed(&mut self.exchange.figures.update, || {
            // Parameter by parameter in the order of their creation, so that the norm does not depend on the buckets.
            let mut spans: Vec<(usize, SpanMut<'_>)> = Vec::new();
            for (index, bucket) in self.layout.gradients.buckets() {
                let mut rest = bucket.span_mut()?;
                for slot in &plans[index].slots {
                    let (values, tail) = rest.split_at(slot.range.len());
                    spans.push((slot.param, values));
                    rest = tail;
                }
            }
            spans.sort_unstable_by_key(|(param, _)| *param);
            let mut spans: Vec<_> = spans.into_iter().map(|(_, values)| values).collect();
            clip(limit, &mut spans)?;
            Ok(())
        })
    }

    /// Updates the parameters of a bucket with the gradients in it, or this rank's shard of them.
    fn update(&mut self, index: usize) -> Result<()> {
        let _span =
            tracing::trace_span!(target: "candelabrum::step", "update", bucket = index).entered();
        let BucketExchange { context, own, figures, .. } = &mut self.exchange;
        let context = &*context;
        if let Some(servers) = &mut self.servers {
            let strategy = (self.option, context.spars);
            let bucket = self.layout.gradients.bucket(index)?;
            let on_host = bucket.is_on_device().then(|| bucket.to_host()).transpose()?;
            let bucket = on_host.as_ref().unwrap_or(bucket);
            for slot in &context.plans[index].slots {
                if context.params[slot.param].is_frozen() {
                    continue;
                }
                let gradient = &bucket.as_slice::<f32>()?[slot.range.clone()];
                self.new_values.push((slot.param, servers.push(slot.param, gradient, strategy)?));
            }
            return Ok(());
        }
        timed(&mut figures.update, || {
            let bucket = Averages::new(own.as_mut(), self.layout, context, index)?;
            let is_updated = |slot: &&BucketSlot| {
                !context.params[slot.param].is_frozen() && !context.owned(slot).is_empty()
            };
            let slots = context.plans[index].slots.iter().filter(is_updated);
            if bucket.is_on_device() {
                return update_on_device(context, &bucket, slots, self.optimizer);
            }
            for slot in slots {
                let gradient = bucket.range(context.place_of_owned(slot))?;
                let (param, number) = (&context.params[slot.param], slot.param);
                if let Some(values) = &context.values {
                    values.begin_change(number);
                }
                param.update_own_in_step(|values| {
                    let own = values.range(context.owned_of_kept(slot));
                    self.optimizer.update(number, own, gradient)
                })??;
            }
            Ok(())
        })
    }
}

/// Updates the parameters of these slots by as few launches as possible.
fn update_on_device<'a>(
    context: &StepContext,
    bucket: &Averages<'_>,
    slots: impl Iterator<Item = &'a BucketSlot>,
    optimizer: &mut dyn Optimizer,
) -> Result<()> {
    let (mut shared, whole): (Vec<_>, Vec<_>) =
        slots.partition(|slot| context.is_sharded(slot.param));
    let gradient = |slot: &BucketSlot| bucket.range(context.place_of_owned(slot));
    if !whole.is_empty() {
        let params: Vec<&Param> = whole.iter().map(|slot| &context.params[slot.param]).collect();
        Param::update_together(&params, |values| {
            let updates = values.into_iter().zip(&whole).map(|(value, slot)| {
                let value = value.range(context.owned(slot));
                Ok(Update { index: slot.param, value, grad: gradient(slot)? })
            });
            Ok::<_, Error>(optimizer.update_all(updates.collect::<Result<_>>()?)?)
        })??;
    }
    if let Some(values) = &context.values
        && !shared.is_empty()
    {
        shared.sort_unstable_by_key(|slot| slot.param);
        let numbers: Vec<usize> = shared.iter().map(|slot| slot.param).collect();
        values.with_shards(&numbers, |values| {
            let updates = values.into_iter().zip(&shared).map(|(value, slot)| {
                Ok(Update { index: slot.param, value, grad: gradient(slot)? })
            });
            Ok::<_, Error>(optimizer.update_all(updates.collect::<Result<_>>()?)?)
        })??;
        for number in numbers {
            context.params[number].note_update()?;
        }
    }
    Ok(())
}
