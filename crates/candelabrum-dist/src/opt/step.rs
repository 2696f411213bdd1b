//! One step of a strategy: gradients into buckets, the exchange, the check, the update.
//!
//! Units leave during the backward pass ([`Dispatcher`]). A step that fails leaves the model
//! unchanged, so parameters change only when every average is known to be finite. While a step
//! would only wait, it may change them earlier, in a way that can be undone ([`Journal`]). An
//! average of *parameters* comes after the update.
//!
//! If a step fails for a reason that all ranks learn, all ranks leave it together
//! ([`StepEnd::Failed`]), and the next step works. After any other error the ranks no longer agree
//! on the next operation.

use std::collections::VecDeque;
use std::time::Instant;

use candelabrum_memory::FiniteCheck;
use candelabrum_nn::{Param, Slot};
use candelabrum_optim::{Optimizer, Update, clip};
use candle_core::Tensor;

use super::config::{DistOptConfig, OnOverflow};
use super::dispatcher::Dispatcher;
use super::fault::Fault;
use super::figures::{StepFigures, timed};
use super::journal::Journal;
use super::layout::Layout;
use super::loss_scale::LossScaler;
use super::recording::Recording;
use super::replicas::average_replicas;
use super::step_end::StepEnd;
use crate::comm::{Collective, Payload, Pending, ReduceOp};
use crate::strategy::Subject;
use crate::{Error, Result};

/// The data of a step, apart from the [`Dispatcher`].
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) config: &'a DistOptConfig,
    pub(super) layout: &'a mut Layout,
    pub(super) optimizer: &'a mut dyn Optimizer,
    pub(super) journal: &'a mut Journal,
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
    /// The notices for the user.
    pub(super) notices: &'a mut Vec<String>,
}

/// The batch of this rank, after the forward pass.
#[derive(Clone, Copy, Debug)]
pub(super) enum Batch<'a> {
    Loss(&'a Tensor),
    /// The replay computes the forward pass too.
    Recorded(&'a Recording),
}

impl Step<'_> {
    /// Takes the step. A rank that has no batch left passes no `batch`, and its gradients are zero.
    /// A rank with a `fault` has no gradients. The returned dispatcher contains the cost of the
    /// step.
    pub(super) fn run(
        mut self,
        dispatcher: Dispatcher,
        batch: Option<Batch<'_>>,
        fault: Option<Error>,
    ) -> (Dispatcher, Result<StepEnd>) {
        let group = dispatcher.context.group.clone();
        let before = group.stats();
        let (mut dispatcher, result) = self.backward(dispatcher, batch, fault);
        let result = result.and_then(|()| match dispatcher.subject {
            Subject::Gradients => self.average_and_update(&mut dispatcher),
            Subject::Parameters => self.update_and_average(&mut dispatcher, batch.is_some()),
        });
        let result = result.map(|end| {
            let (end, notice) = self.scaler.judge(end);
            self.notices.extend(notice);
            end
        });
        if !matches!(result, Ok(StepEnd::Taken)) {
            dispatcher.recall(self.layout);
        }
        let traffic = group.stats() - before;
        dispatcher.figures = StepFigures {
            steps: 1,
            skipped: u64::from(matches!(result, Ok(StepEnd::Skipped))),
            replayed: u64::from(matches!(batch, Some(Batch::Recorded(_)))),
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            communication: traffic.busy,
            exposed: traffic.exposed,
            ..dispatcher.figures
        };
        (dispatcher, result)
    }

    /// Computes the gradients into the buckets. Units whose gradients are complete may leave
    /// meanwhile. An error of this rank alone becomes the dispatcher's fault.
    fn backward(
        &mut self,
        mut dispatcher: Dispatcher,
        batch: Option<Batch<'_>>,
        fault: Option<Error>,
    ) -> (Dispatcher, Result<()>) {
        let _span = tracing::trace_span!(target: "candelabrum::step", "backward").entered();
        if let Some(error) = fault {
            dispatcher.fail(Fault::Failed(error));
            return (dispatcher, Ok(()));
        }
        let Some(batch) = batch else { return (dispatcher, self.layout.fill(0.0)) };
        let start = Instant::now();
        if let Err(error) = self.weigh_accumulated() {
            return (dispatcher, Err(error));
        }
        let (mut dispatcher, sent, result) = match batch {
            Batch::Loss(loss) => {
                let scaled = dispatcher.check_loss(loss);
                match scaled.and_then(|()| self.scaler.scaled(loss, self.share)) {
                    Ok(scaled) => self.differentiate(dispatcher, &scaled),
                    Err(error) => (dispatcher, Ok(()), Err(error)),
                }
            }
            Batch::Recorded(recording) => self.replay(dispatcher, recording),
        };
        if let Err(error) = result {
            dispatcher.fail(Fault::Failed(error));
        }
        let messages = dispatcher.figures.compress;
        dispatcher.figures.backward += start.elapsed().saturating_sub(messages);
        (dispatcher, sent)
    }

    /// Multiplies the accumulated gradients by what their weights are in the global batch.
    fn weigh_accumulated(&mut self) -> Result<()> {
        let factor = self.factor as f32;
        if self.pending && factor != 1.0 { self.layout.scale(factor) } else { Ok(()) }
    }

    /// Runs candle's backward pass, during which complete units leave. Returns the result of the
    /// exchange so far, and the result of the pass.
    fn differentiate(
        &mut self,
        dispatcher: Dispatcher,
        loss: &Tensor,
    ) -> (Dispatcher, Result<()>, Result<()>) {
        let allow_unused = self.config.allow_unused;
        if !self.pending {
            self.layout.gradients.clear();
        }
        let (dispatcher, sent, result) = if self.config.overlap
            && dispatcher.subject == Subject::Gradients
        {
            let state = (dispatcher, Ok(()));
            let accept = |(dispatcher, sent): &mut (Dispatcher, Result<()>), unit, bucket| {
                *sent = dispatcher.accept_early(unit, bucket);
                sent.clone()
            };
            let ((dispatcher, sent), result) = self.layout.observed_backward(loss, state, accept);
            (dispatcher, sent, result)
        } else {
            let result = self.layout.gradients.backward(loss).map_err(Error::from);
            (dispatcher, Ok(()), result)
        };
        let result = result.and_then(|()| {
            if self.lacks_weight && self.layout.gradients.met_varying_loss() {
                return Err(Error::UnknownWeight);
            }
            self.layout.complete(loss, allow_unused)
        });
        (dispatcher, sent, result)
    }

    /// Repeats a recorded pass, during which complete units leave. Returns as
    /// [`Self::differentiate`].
    fn replay(
        &mut self,
        mut dispatcher: Dispatcher,
        recording: &Recording,
    ) -> (Dispatcher, Result<()>, Result<()>) {
        if let Some(scale) = &recording.scale
            && let Err(error) = scale.write(self.scaler, self.share)
        {
            return (dispatcher, Ok(()), Err(error));
        }
        let gradients = &mut self.layout.gradients;
        gradients.set_pass_state(&recording.after);
        for (number, piece) in recording.pieces.iter().enumerate() {
            let launched = piece.graph.launch().map_err(Error::from);
            // The first piece computes the loss.
            let checked = launched.and_then(|()| match number {
                0 => dispatcher.check_loss(&recording.loss),
                _ => Ok(()),
            });
            if checked.is_err() {
                return (dispatcher, Ok(()), checked);
            }
            let leaves = piece.unit.filter(|_| dispatcher.subject == Subject::Gradients);
            if let Some((unit, bucket)) =
                leaves.and_then(|unit| Some((unit, gradients.take(unit)?)))
                && let Err(error) = dispatcher.accept_early(unit, bucket)
            {
                return (dispatcher, Err(error), Ok(()));
            }
        }
        (dispatcher, Ok(()), Ok(()))
    }

    /// Averages the gradients, and updates the parameters if all averages are finite.
    fn average_and_update(&mut self, dispatcher: &mut Dispatcher) -> Result<StepEnd> {
        dispatcher.send_rest(self.layout)?;
        let votes = !dispatcher.way.shows_bad_numbers();
        let vote = votes.then(|| start_vote(dispatcher)).transpose()?;
        self.journal.clear();
        let mut arrived = VecDeque::new();
        let outcome = self.collect(dispatcher, &mut arrived).and_then(|overflow| {
            if let Some(error) = vote.map_or(Ok(None), |vote| check_vote(dispatcher, vote))? {
                return Ok(Some(StepEnd::Failed(error)));
            }
            overflow.map_or(Ok(None), |name| self.answer_overflow(dispatcher, name).map(Some))
        });
        if !matches!(outcome, Ok(None)) {
            self.journal.undo(&dispatcher.context.params, self.optimizer)?;
        }
        if let Some(end) = outcome? {
            return Ok(end);
        }
        if self.rejoin {
            // After the backward pass, because it needs the parameters of the forward pass.
            let context = &dispatcher.context;
            average_replicas(&*context.group, &context.params, self.optimizer)?;
        }
        self.clip(dispatcher)?;
        arrived.into_iter().try_for_each(|unit| self.update(dispatcher, unit))?;
        self.optimizer.step();
        Ok(StepEnd::Taken)
    }

    /// Waits for every unit, and appends to `arrived` the units that have not been updated
    /// meanwhile. Returns the first parameter whose average is not finite.
    fn collect(
        &mut self,
        dispatcher: &mut Dispatcher,
        arrived: &mut VecDeque<usize>,
    ) -> Result<Option<String>> {
        let mut may_update = self.config.clip_gradients.is_none() && !self.rejoin;
        let mut check = FiniteCheck::default();
        loop {
            while may_update && dispatcher.is_underway() {
                let Some(unit) = arrived.pop_front() else { break };
                may_update = self.note(dispatcher, unit)?;
                if may_update {
                    dispatcher.figures.early_updates += 1;
                    self.update(dispatcher, unit)?;
                } else {
                    arrived.push_front(unit);
                }
            }
            let Some((unit, bucket)) = dispatcher.arrive()? else { break };
            timed(&mut dispatcher.figures.decompress, || check.look(unit, bucket.span()?))?;
            self.layout.gradients.put(unit, bucket);
            arrived.push_back(unit);
            may_update &= !check.is_bad_so_far();
        }
        let first = check.first()?;
        if let Some((_, bucket)) = self.layout.gradients.buckets().next() {
            dispatcher.check_stream(bucket)?;
        }
        Ok(first.map(|(unit, position)| dispatcher.context.name_at(unit, position)))
    }

    /// Writes the values that an update of a unit will change into the journal. Returns false if
    /// the update could not be undone.
    fn note(&mut self, dispatcher: &mut Dispatcher, unit: usize) -> Result<bool> {
        let context = &dispatcher.context;
        timed(&mut dispatcher.figures.update, || {
            for slot in &context.plans[unit].slots {
                let param = &context.params[slot.param];
                if !param.is_frozen() && !self.journal.note(slot.param, param, self.optimizer)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// The end of a step in which the average of `name` is not finite. Averages are the same on
    /// every rank, so this end is too.
    fn answer_overflow(&mut self, dispatcher: &mut Dispatcher, name: String) -> Result<StepEnd> {
        if let Some(error) = dispatcher.spread_fault()? {
            return Ok(StepEnd::Failed(error));
        }
        let context = &dispatcher.context;
        let strategy = dispatcher.way.describe();
        if self.config.on_overflow == OnOverflow::Error {
            return Ok(StepEnd::Failed(Error::Overflow { strategy, name }));
        }
        self.notices.push(format!(
            "step {} was left out: the {strategy} average of `{name}` overflowed",
            context.step
        ));
        Ok(StepEnd::Skipped)
    }

    /// Updates with this rank's own gradients, then averages the parameters of some of the units. A
    /// rank without a batch contributes its unchanged parameters.
    fn update_and_average(
        &mut self,
        dispatcher: &mut Dispatcher,
        has_batch: bool,
    ) -> Result<StepEnd> {
        let count = self.layout.units();
        // With a fault there are no gradients of this step, and the buckets contain those of an
        // earlier step.
        if let Some(inverse) = self.scaler.inverse() {
            self.layout.scale(inverse)?;
        }
        if dispatcher.fault()?.is_none() {
            dispatcher.look_at_all(self.layout)?;
        }
        let vote = start_vote(dispatcher)?;
        // The ranks' own gradients are never added, so only the vote shows a bad one.
        if let Some(error) = check_vote(dispatcher, vote)? {
            return Ok(StepEnd::Failed(error));
        }
        if has_batch {
            self.clip(dispatcher)?;
            (0..count).try_for_each(|unit| self.update(dispatcher, unit))?;
        }
        self.optimizer.step();
        for unit in 0..count {
            if !dispatcher.way.takes_part(&dispatcher.context.unit(unit)) {
                continue;
            }
            timed(&mut dispatcher.figures.compress, || self.layout.load(unit))?;
            let rank = dispatcher.context.group.rank();
            let bucket = self.layout.gradients.take(unit).ok_or(Error::Stopped { rank })?;
            dispatcher.launch(unit, bucket)?;
        }
        let mut check = FiniteCheck::default();
        while let Some((unit, bucket)) = dispatcher.arrive()? {
            check.look(unit, bucket.span()?)?;
            let first = check.first()?;
            dispatcher.check_stream(&bucket)?;
            self.layout.gradients.put(unit, bucket);
            if let Some((unit, position)) = first {
                let name = dispatcher.context.name_at(unit, position);
                return Ok(StepEnd::Failed(Error::Diverged { name }));
            }
            timed(&mut dispatcher.figures.decompress, || self.layout.store(unit))?;
        }
        Ok(StepEnd::Taken)
    }

    /// Clips the gradients in the buckets to the configured limit. The buckets contain the
    /// averages, whose bits are the same on every rank, so every rank computes the same norm
    /// without a message.
    fn clip(&mut self, dispatcher: &mut Dispatcher) -> Result<()> {
        let Some(limit) = self.config.clip_gradients else { return Ok(()) };
        let plans = &dispatcher.context.plans;
        timed(&mut dispatcher.figures.update, || {
            // Parameter by parameter, so that the norm does not depend on the ends of the buckets.
            let mut spans = Vec::new();
            for (unit, bucket) in self.layout.gradients.buckets() {
                let mut rest = bucket.span_mut()?;
                for slot in &plans[unit].slots {
                    let (values, tail) = rest.split_at(slot.range.len());
                    spans.push(values);
                    rest = tail;
                }
            }
            clip(limit, &mut spans)?;
            Ok(())
        })
    }

    /// Updates the parameters of a unit with the gradients in its bucket.
    fn update(&mut self, dispatcher: &mut Dispatcher, unit: usize) -> Result<()> {
        let _span =
            tracing::trace_span!(target: "candelabrum::step", "update", bucket = unit).entered();
        let context = &dispatcher.context;
        timed(&mut dispatcher.figures.update, || {
            let bucket = self.layout.gradients.bucket(unit)?;
            let is_trained = |slot: &&Slot| !context.params[slot.param].is_frozen();
            let slots = context.plans[unit].slots.iter().filter(is_trained);
            if bucket.is_on_device() {
                let params: Vec<&Param> =
                    slots.clone().map(|slot| &context.params[slot.param]).collect();
                if params.is_empty() {
                    return Ok(());
                }
                return Param::update_together(&params, |values| {
                    let updates = values.into_iter().zip(slots).map(|(value, slot)| {
                        let grad = bucket.range(slot.range.clone())?;
                        Ok(Update { index: slot.param, value, grad })
                    });
                    Ok(self.optimizer.update_all(updates.collect::<Result<_>>()?)?)
                })?;
            }
            for slot in slots {
                let gradient = bucket.range(slot.range.clone())?;
                context.params[slot.param].update_in_place(|values| {
                    self.optimizer.update(slot.param, values, gradient)
                })??;
            }
            Ok(())
        })
    }
}

/// Starts the vote of all ranks on whether their gradients can be used. It serves strategies whose
/// averages would not show a bad gradient, and strategies that remember gradients.
fn start_vote(dispatcher: &mut Dispatcher) -> Result<Pending> {
    let vote = Payload::from_slice(&[i32::from(dispatcher.fault()?.is_some())]);
    let vote = vote.labelled("the vote on finite gradients").of_step(dispatcher.context.step);
    Ok(dispatcher.context.group.start(Collective::AllReduce(ReduceOp::Max), vote))
}

/// The error that follows from the vote; `None` if all ranks' gradients can be used.
fn check_vote(dispatcher: &mut Dispatcher, vote: Pending) -> Result<Option<Error>> {
    if vote.wait()?.as_slice::<i32>()? == [0] {
        return Ok(None);
    }
    let what = || "a vote against the gradients that no rank explains".to_owned();
    let error = dispatcher.spread_fault()?;
    error.map(Some).ok_or_else(|| Error::Protocol { what: what() })
}
