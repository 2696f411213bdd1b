//! One step of a strategy: gradients into buckets, the exchange, the check, the update.
//!
//! Nothing that is trained changes before every gradient is known to be finite, so a step that fails
//! leaves the model as it was; only an average of parameters comes after the update, and may fail.

use std::collections::VecDeque;

use candelabrum_nn::Param;
use candelabrum_optim::Optimizer;
use candle_core::Tensor;

use super::config::OnOverflow;
use super::figures::timed;
use super::units::{self, Bucket, Facts, Layout};
use super::{DistOptConfig, StepFigures, clip, gradients};
use crate::comm::{Buffer, Communicator, Pending, ReduceOp};
use crate::strategy::{Message, Strategy, Subject};
use crate::{Error, Result};

/// All that a step works with.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) facts: Facts<'a>,
    pub(super) config: &'a DistOptConfig,
    pub(super) layout: &'a mut Layout,
    /// Whether the buckets hold gradients that those of this step are added to.
    pub(super) pending: bool,
    pub(super) strategy: &'a mut dyn Strategy,
    pub(super) optimizer: &'a mut dyn Optimizer,
    pub(super) subject: Subject,
    /// Whether the ranks have gone separate ways and come together at this step.
    pub(super) rejoin: bool,
    /// What the user should hear of it.
    pub(super) notices: &'a mut Vec<String>,
    pub(super) figures: StepFigures,
}

/// A message under way.
struct Flight {
    unit: usize,
    in_place: bool,
    pending: Vec<Pending>,
}

impl Step<'_> {
    /// Takes the step; gives what it cost.
    pub(super) fn run(mut self, loss: &Tensor) -> Result<StepFigures> {
        let before = self.facts.comm.stats();
        let bad = self.backward(loss)?;
        match self.subject {
            Subject::Gradients => {
                if !self.strategy.shows_bad_numbers() {
                    self.vote(bad.as_deref())?;
                }
                self.exchange()?;
                if self.averages_are_finite(bad.as_deref())? {
                    // After backward, which still needs the parameters of the forward pass.
                    if self.rejoin {
                        average_replicas(self.facts.comm, self.facts.params, self.optimizer)?;
                    }
                    self.clip()?;
                    self.update()?;
                } else {
                    self.figures.skipped = 1;
                }
            }
            Subject::Parameters => {
                // The ranks' own gradients are never added: only a vote shows what is wrong.
                self.vote(bad.as_deref())?;
                self.clip()?;
                self.update()?;
                self.load_parameters()?;
                self.exchange()?;
                self.store_parameters()?;
            }
        }
        let traffic = self.facts.comm.stats() - before;
        Ok(StepFigures {
            steps: 1,
            bytes_sent: traffic.bytes_sent,
            bytes_received: traffic.bytes_received,
            communication: traffic.busy,
            exposed: traffic.exposed,
            ..self.figures
        })
    }

    /// The gradients into the buckets; what of them is not finite.
    fn backward(&mut self, loss: &Tensor) -> Result<Option<String>> {
        let Self { facts, config, layout, figures, pending, .. } = self;
        timed(&mut figures.backward, || {
            gradients::backward(loss, layout, facts.params, config.allow_unused, *pending)?;
            gradients::first_bad(facts.params, &layout.buckets, loss)
        })
    }

    /// Asks all ranks whether their gradients are finite, for strategies whose averages would not
    /// tell, or which remember what they saw.
    fn vote(&mut self, bad: Option<&str>) -> Result<()> {
        let rank = self.facts.comm.rank();
        let mut votes = [i32::from(bad.is_some())];
        self.facts.comm.all_reduce(&mut votes, ReduceOp::Max)?;
        match votes {
            [0] => Ok(()),
            _ => Err(self
                .who_is_not_finite(bad)?
                .unwrap_or(Error::NotFinite { what: "a gradient".to_owned(), rank })),
        }
    }

    /// Where the first number that is not finite comes from, if it comes from any rank's gradients.
    fn who_is_not_finite(&self, bad: Option<&str>) -> Result<Option<Error>> {
        let found = self.facts.comm.all_gather_text(bad.unwrap_or_default())?;
        let first = found.into_iter().enumerate().find(|(_, what)| !what.is_empty());
        Ok(first.map(|(rank, what)| Error::NotFinite { what, rank }))
    }

    /// Every unit's message, all under way at the same time; afterwards the buckets hold averages.
    fn exchange(&mut self) -> Result<()> {
        let rank = self.facts.comm.rank();
        let mut flying = VecDeque::new();
        for index in 0..self.layout.buckets.len() {
            let Bucket { plan, buffer } = &mut self.layout.buckets[index];
            let unit = self.facts.unit(index, plan);
            if self.subject == Subject::Parameters && !self.strategy.takes_part(&unit) {
                continue;
            }
            let values = buffer.as_mut().ok_or(Error::Stopped { rank })?.as_mut_slice()?;
            let strategy = &mut *self.strategy;
            let message = timed(&mut self.figures.compress, || {
                strategy.compensate(&unit, values);
                let message = strategy.compress(&unit, values)?;
                let in_place = matches!(message, Message::InPlace(_));
                strategy.update(&unit, (!in_place).then_some(&*values));
                Ok::<_, Error>(message)
            })?;
            flying.push_back(self.launch(index, message)?);
        }
        while let Some(Flight { unit: index, in_place, pending }) = flying.pop_front() {
            let received: Result<Vec<Buffer>> = pending.into_iter().map(Pending::wait).collect();
            let mut received = received?;
            let Bucket { plan, buffer } = &mut self.layout.buckets[index];
            if in_place {
                let result = received.pop().filter(|result| result.len() == plan.len);
                let what = || format!("{} made a unit shorter or longer", self.strategy.describe());
                *buffer = Some(result.ok_or_else(|| Error::Protocol { what: what() })?);
                continue;
            }
            let unit = self.facts.unit(index, plan);
            let values = buffer.as_mut().ok_or(Error::Stopped { rank })?.as_mut_slice()?;
            let strategy = &mut *self.strategy;
            let aggregate = || strategy.aggregate(&unit, received, values);
            if let Some(message) = timed(&mut self.figures.decompress, aggregate)? {
                flying.push_back(self.launch(index, message)?);
            }
        }
        Ok(())
    }

    fn launch(&mut self, unit: usize, message: Message) -> Result<Flight> {
        let comm = self.facts.comm;
        let stopped = Error::Stopped { rank: comm.rank() };
        let in_place = matches!(message, Message::InPlace(_));
        let parts = match message {
            Message::InPlace(op) => {
                vec![(op, self.layout.buckets[unit].buffer.take().ok_or(stopped)?)]
            }
            Message::Buffers(parts) => parts,
        };
        let start = |(op, buffer)| self.strategy.exchange(comm, op, buffer);
        Ok(Flight { unit, in_place, pending: parts.into_iter().map(start).collect() })
    }

    /// Whether the step can be taken; not where an overflow is to be skipped. Averages are the same
    /// on every rank, and so is the answer.
    fn averages_are_finite(&mut self, bad: Option<&str>) -> Result<bool> {
        let rank = self.facts.comm.rank();
        let mut overflowed = None;
        for (index, bucket) in self.layout.buckets.iter_mut().enumerate() {
            let values = bucket.values(rank)?;
            if timed(&mut self.figures.decompress, || gradients::all_finite(values)) {
                continue;
            }
            let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
            let unit = self.facts.unit(index, &bucket.plan);
            overflowed = Some(unit.parameter_at(at).map_or("", Param::name).to_owned());
            break;
        }
        let Some(name) = overflowed else { return Ok(true) };
        if let Some(error) = self.who_is_not_finite(bad)? {
            return Err(error);
        }
        let strategy = self.strategy.describe();
        if self.config.on_overflow == OnOverflow::Error {
            return Err(Error::Overflow { strategy, name });
        }
        self.notices.push(format!(
            "step {} was left out: the {strategy} average of `{name}` overflowed",
            self.facts.step
        ));
        Ok(false)
    }

    /// What the buckets hold, to the limits asked for.
    fn clip(&mut self) -> Result<()> {
        let Some(limit) = self.config.clip_gradients else { return Ok(()) };
        let Self { facts, layout, figures, .. } = self;
        timed(&mut figures.update, || clip::clip(limit, &mut layout.buckets, facts.comm.rank()))
    }

    /// Every parameter by what its bucket holds.
    fn update(&mut self) -> Result<()> {
        let rank = self.facts.comm.rank();
        let Self { facts, layout, optimizer, figures, .. } = self;
        timed(&mut figures.update, || {
            for bucket in layout.buckets.iter_mut() {
                let Bucket { plan, buffer } = bucket;
                let values = buffer.as_ref().ok_or(Error::Stopped { rank })?.as_slice::<f32>()?;
                for slot in &plan.slots {
                    let grad = &values[slot.range.clone()];
                    units::change(&facts.params[slot.param], |values| {
                        Ok(optimizer.update(slot.param, values, grad)?)
                    })?;
                }
            }
            optimizer.step();
            Ok(())
        })
    }

    /// The parameters of the units that take part, into their buckets.
    fn load_parameters(&mut self) -> Result<()> {
        let Self { facts, layout, strategy, figures, .. } = self;
        timed(&mut figures.compress, || {
            for (index, bucket) in layout.buckets.iter_mut().enumerate() {
                if strategy.takes_part(&facts.unit(index, &bucket.plan)) {
                    units::load(facts, bucket)?;
                }
            }
            Ok(())
        })
    }

    /// And back.
    fn store_parameters(&mut self) -> Result<()> {
        let Self { facts, layout, strategy, figures, .. } = self;
        timed(&mut figures.decompress, || {
            for (index, bucket) in layout.buckets.iter_mut().enumerate() {
                let unit = facts.unit(index, &bucket.plan);
                if !strategy.takes_part(&unit) {
                    continue;
                }
                let values = bucket.buffer.as_ref().map_or(Ok(&[] as &[f32]), Buffer::as_slice)?;
                if !gradients::all_finite(values) {
                    let at = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
                    let name = unit.parameter_at(at).map_or("", Param::name).to_owned();
                    return Err(Error::Diverged { name });
                }
                units::store(facts, bucket)?;
            }
            Ok(())
        })
    }
}

/// Averages all parameters, and all that the optimizer keeps, over all ranks.
pub(super) fn average_replicas(
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
