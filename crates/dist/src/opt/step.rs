//! One step of a strategy: gradients into buckets, the exchange, the check, the update.
//!
//! Units leave while the backward pass goes on ([`Reducer`]). A step that fails leaves the model as
//! it was: parameters change when every average is known to be finite, or earlier, while the step
//! would stand still otherwise, in a way that can be undone ([`Journal`]). Only an average of
//! *parameters* comes after the update.

use std::collections::VecDeque;
use std::time::Instant;

use candelabrum_nn::Param;
use candelabrum_optim::{Optimizer, scale};
use candle_core::Tensor;

use super::config::OnOverflow;
use super::figures::timed;
use super::gradients::{self, Backward};
use super::journal::Journal;
use super::reducer::Reducer;
use super::units::{self, Layout};
use super::{DistOptConfig, StepFigures, clip};
use crate::comm::{Buffer, Collective, Communicator, Pending, ReduceOp};
use crate::strategy::Subject;
use crate::{Error, Result};

/// All that a step works with, but for the [`Reducer`].
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) config: &'a DistOptConfig,
    pub(super) layout: &'a mut Layout,
    pub(super) optimizer: &'a mut dyn Optimizer,
    pub(super) journal: &'a mut Journal,
    /// Whether the buckets hold gradients that those of this step are added to.
    pub(super) pending: bool,
    /// Whether the ranks have gone separate ways and come together at this step.
    pub(super) rejoin: bool,
    /// How many ranks have a batch.
    pub(super) active: usize,
    /// What the user should hear of it.
    pub(super) notices: &'a mut Vec<String>,
}

impl Step<'_> {
    /// Takes the step; gives what it cost, and the reducer back. A rank that has no batch left has
    /// no `loss`: its gradients are zero.
    pub(super) fn run(
        mut self,
        reducer: Reducer,
        loss: Option<&Tensor>,
    ) -> (Reducer, Result<StepFigures>) {
        let comm = reducer.facts.comm.clone();
        let before = comm.stats();
        let (mut reducer, result) = self.backward(reducer, loss);
        let result = result.and_then(|()| match reducer.subject {
            Subject::Gradients => self.average_and_update(&mut reducer, loss),
            Subject::Parameters => self.update_and_average(&mut reducer, loss),
        });
        if let Err(error) = result {
            reducer.recall(self.layout);
            return (reducer, Err(error));
        }
        let traffic = comm.stats() - before;
        let figures = StepFigures {
            steps: 1,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            communication: traffic.busy,
            exposed: traffic.exposed,
            ..reducer.figures
        };
        (reducer, Ok(figures))
    }

    /// The gradients into the buckets; units whose gradients are complete may leave meanwhile.
    fn backward(&mut self, mut reducer: Reducer, loss: Option<&Tensor>) -> (Reducer, Result<()>) {
        let _span = tracing::trace_span!(target: "candelabrum::step", "backward").entered();
        let rank = reducer.facts.rank();
        let Some(loss) = loss else {
            return (reducer, gradients::fill(self.layout, 0.0, rank));
        };
        let finite = match gradients::is_finite(loss) {
            Ok(finite) => finite,
            Err(error) => return (reducer, Err(error)),
        };
        reducer.poison = !finite;
        let params = std::sync::Arc::clone(&reducer.facts.params);
        let (allow_unused, pending) = (self.config.allow_unused, self.pending);
        let backward = Backward { params: &params, allow_unused, pending };
        let start = Instant::now();
        let (mut reducer, mut result) =
            if self.config.overlap && reducer.subject == Subject::Gradients {
                backward.run(loss, self.layout, reducer)
            } else {
                (reducer, backward.run(loss, self.layout, ()).1)
            };
        if result.is_ok() && !finite && reducer.subject == Subject::Parameters {
            result = gradients::fill(self.layout, f32::NAN, rank);
        }
        let messages = reducer.figures.compress;
        reducer.figures.backward += start.elapsed().saturating_sub(messages);
        if let Some(error) = reducer.take_error() {
            result = Err(error);
        }
        (reducer, result)
    }

    /// Averages the gradients, and updates if all averages are finite.
    fn average_and_update(&mut self, reducer: &mut Reducer, loss: Option<&Tensor>) -> Result<()> {
        reducer.send_rest(self.layout)?;
        let vote = (!reducer.strategy.shows_bad_numbers()).then(|| start_vote(reducer));
        self.journal.clear();
        let mut arrived = VecDeque::new();
        let outcome = self.collect(reducer, &mut arrived).and_then(|overflow| {
            if let Some(vote) = vote {
                check_vote(reducer, vote, loss)?;
            }
            overflow.map_or(Ok(true), |name| self.answer_overflow(reducer, name, loss))
        });
        if !matches!(outcome, Ok(true)) {
            self.journal.undo(&reducer.facts.params, self.optimizer)?;
        }
        if !outcome? {
            reducer.figures.skipped = 1;
            return Ok(());
        }
        let comm = reducer.facts.comm.clone();
        if self.rejoin {
            // After backward, which still needs the parameters of the forward pass.
            average_replicas(&*comm, &reducer.facts.params, self.optimizer)?;
        }
        self.clip(reducer)?;
        arrived.into_iter().try_for_each(|number| self.update(reducer, number))?;
        self.optimizer.step();
        Ok(())
    }

    /// Waits for every unit; `arrived` are those that have not been updated meanwhile. Gives the
    /// first parameter whose average is not finite.
    fn collect(
        &mut self,
        reducer: &mut Reducer,
        arrived: &mut VecDeque<usize>,
    ) -> Result<Option<String>> {
        let rank = reducer.facts.rank();
        let mut may_update = self.config.clip_gradients.is_none() && !self.rejoin;
        let mut overflow = None;
        loop {
            while may_update && !reducer.has_arrived() {
                let Some(number) = arrived.pop_front() else { break };
                may_update = self.note(reducer, number)?;
                if may_update {
                    reducer.figures.early_updates += 1;
                    self.update(reducer, number)?;
                } else {
                    arrived.push_front(number);
                }
            }
            let Some((number, buffer)) = reducer.arrive()? else { return Ok(overflow) };
            self.layout.put(number, buffer);
            let values = self.layout.values(number, rank)?;
            if self.active < reducer.facts.comm.world_size() {
                // The mean over all ranks, of which some had nothing to add.
                let ranks = reducer.facts.comm.world_size() as f64;
                scale(values, (ranks / self.active as f64) as f32);
            }
            if timed(&mut reducer.figures.decompress, || gradients::all_finite(values)) {
                arrived.push_back(number);
                continue;
            }
            may_update = false;
            let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
            overflow.get_or_insert_with(|| reducer.facts.name_at(number, at));
        }
    }

    /// Writes down what an update of a unit will change; false where that cannot be undone.
    fn note(&mut self, reducer: &mut Reducer, number: usize) -> Result<bool> {
        let params = &reducer.facts.params;
        timed(&mut reducer.figures.update, || {
            for slot in &self.layout.plans[number].slots {
                let param = &params[slot.param];
                if !self.journal.note(slot.param, param, self.optimizer)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// What follows where the average of `name` is not finite: an error that all ranks share, or
    /// false where the step is to be left out. Averages are the same on every rank, and so is this.
    fn answer_overflow(
        &mut self,
        reducer: &Reducer,
        name: String,
        loss: Option<&Tensor>,
    ) -> Result<bool> {
        if let Some(error) = who_is_not_finite(reducer, loss)? {
            return Err(error);
        }
        let strategy = reducer.strategy.describe();
        if self.config.on_overflow == OnOverflow::Error {
            return Err(Error::Overflow { strategy, name });
        }
        self.notices.push(format!(
            "step {} was left out: the {strategy} average of `{name}` overflowed",
            reducer.facts.step
        ));
        Ok(false)
    }

    /// Updates by this rank's own gradients, then averages the parameters of a part of the units. A
    /// rank without a batch adds the parameters that it has.
    fn update_and_average(&mut self, reducer: &mut Reducer, loss: Option<&Tensor>) -> Result<()> {
        let rank = reducer.facts.rank();
        let count = self.layout.plans.len();
        reducer.look_at_all(self.layout)?;
        let vote = start_vote(reducer);
        // The ranks' own gradients are never added: only the vote shows what is wrong.
        check_vote(reducer, vote, loss)?;
        if loss.is_some() {
            self.clip(reducer)?;
            (0..count).try_for_each(|number| self.update(reducer, number))?;
        }
        self.optimizer.step();
        let facts = reducer.facts.clone();
        for number in 0..count {
            if !reducer.strategy.takes_part(&facts.unit(number)) {
                continue;
            }
            let load = || self.layout.load(number, &facts.params, rank);
            timed(&mut reducer.figures.compress, load)?;
            let buffer = self.layout.take(number, rank)?;
            reducer.launch(number, buffer)?;
        }
        while let Some((number, buffer)) = reducer.arrive()? {
            self.layout.put(number, buffer);
            let values = self.layout.values(number, rank)?;
            if !gradients::all_finite(values) {
                let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
                return Err(Error::Diverged { name: facts.name_at(number, at) });
            }
            let store = || self.layout.store(number, &facts.params, rank);
            timed(&mut reducer.figures.decompress, store)?;
        }
        Ok(())
    }

    /// What the buckets hold, to the limits asked for.
    fn clip(&mut self, reducer: &mut Reducer) -> Result<()> {
        let Some(limit) = self.config.clip_gradients else { return Ok(()) };
        let rank = reducer.facts.rank();
        timed(&mut reducer.figures.update, || clip::clip(limit, self.layout, rank))
    }

    /// The parameters of a unit by what its bucket holds.
    fn update(&mut self, reducer: &mut Reducer, number: usize) -> Result<()> {
        let _span =
            tracing::trace_span!(target: "candelabrum::step", "update", bucket = number).entered();
        let rank = reducer.facts.rank();
        let Reducer { facts, figures, .. } = reducer;
        timed(&mut figures.update, || {
            let values = self.layout.values(number, rank)?;
            for slot in &facts.plans[number].slots {
                let grad = &values[slot.range.clone()];
                units::change(&facts.params[slot.param], |values| {
                    Ok(self.optimizer.update(slot.param, values, grad)?)
                })?;
            }
            Ok(())
        })
    }
}

/// Asks all ranks whether their gradients are finite, for strategies whose averages would not tell,
/// or which remember what they saw.
fn start_vote(reducer: &Reducer) -> Pending {
    let vote = Buffer::from_slice(&[i32::from(reducer.bad.is_some())]);
    let op = Collective::AllReduce(ReduceOp::Max);
    reducer.facts.comm.start(op, vote.labelled("the vote on finite gradients"))
}

fn check_vote(reducer: &Reducer, vote: Pending, loss: Option<&Tensor>) -> Result<()> {
    if vote.wait()?.as_slice::<i32>()? == [0] {
        return Ok(());
    }
    let rank = reducer.facts.rank();
    let unknown = Error::NotFinite { what: "a gradient".to_owned(), rank };
    Err(who_is_not_finite(reducer, loss)?.unwrap_or(unknown))
}

/// Where the first number that is not finite comes from, if it comes from any rank's gradients.
fn who_is_not_finite(reducer: &Reducer, loss: Option<&Tensor>) -> Result<Option<Error>> {
    let finite_loss = loss.map_or(Ok(true), gradients::is_finite)?;
    let own = match reducer.bad {
        None => String::new(),
        Some(_) if !finite_loss => "the loss".to_owned(),
        Some(param) => format!("the gradient of `{}`", reducer.facts.params[param].name()),
    };
    let found = reducer.facts.comm.all_gather_text(&own)?;
    let first = found.into_iter().enumerate().find(|(_, what)| !what.is_empty());
    Ok(first.map(|(rank, what)| Error::NotFinite { what, rank }))
}

/// Averages all parameters, and all that the optimizer keeps, over all ranks.
fn average_replicas(
    comm: &dyn Communicator,
    params: &[Param],
    optimizer: &mut dyn Optimizer,
) -> Result<()> {
    average_parameters(comm, params)?;
    optimizer.state_mut().into_iter().try_for_each(|state| comm.all_reduce(state, ReduceOp::Mean))
}

/// Averages all parameters over all ranks.
pub(super) fn average_parameters(comm: &dyn Communicator, params: &[Param]) -> Result<()> {
    let average = |values: &mut [f32]| comm.all_reduce(values, ReduceOp::Mean);
    params.iter().try_for_each(|param| units::change(param, average))
}
