//! The exchange of a step: units leave in order, as soon as they are complete, and come back.
//!
//! While the backward pass goes on the reducer is its [`Observer`]: a unit whose gradients are
//! complete becomes a message at once, if every earlier one has left. All ranks send the same units
//! in the same order, whatever the order in which their gradients become complete (Li et al.,
//! "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020).

use std::collections::VecDeque;

use candelabrum_nn::Observer;

use super::StepFigures;
use super::figures::timed;
use super::gradients::all_finite;
use super::units::{Facts, Layout};
use crate::comm::{Buffer, Pending};
use crate::strategy::{Message, Strategy, Subject};
use crate::{Error, Result};

/// All that the exchange works with; owned, because a backward pass keeps it for a while.
#[derive(Debug)]
pub(super) struct Reducer {
    pub(super) facts: Facts,
    pub(super) subject: Subject,
    pub(super) strategy: Box<dyn Strategy>,
    pub(super) figures: StepFigures,
    /// Whether the loss is no number. It can have finite gradients, so these are made to show it; in
    /// the order in which they would leave otherwise, which is the other ranks' order.
    pub(super) poison: bool,
    /// The first parameter, in the model's order, whose gradient here is not finite.
    pub(super) bad: Option<usize>,
    /// Complete units whose turn has not come.
    complete: Vec<Option<Buffer>>,
    /// The unit whose turn it is.
    next: usize,
    /// In the order in which they left.
    flights: VecDeque<Flight>,
    /// What went wrong in the middle of a backward pass.
    error: Option<Error>,
}

/// A message under way.
#[derive(Debug)]
struct Flight {
    unit: usize,
    /// The unit's own numbers, where these are not what travels.
    values: Option<Buffer>,
    pending: Vec<Pending>,
}

impl Observer<Buffer> for Reducer {
    fn complete(&mut self, number: usize, buffer: &mut Option<Buffer>) -> candle_core::Result<()> {
        let Some(buffer) = buffer.take() else { return Ok(()) };
        let result = self.send(number, buffer);
        self.figures.early_units = self.figures.units;
        result.map_err(|error| {
            let message = error.to_string();
            self.error = Some(error);
            candle_core::Error::Msg(message)
        })
    }
}

impl Reducer {
    pub(super) fn new(facts: Facts, subject: Subject, strategy: Box<dyn Strategy>) -> Self {
        let complete = facts.plans.iter().map(|_| None).collect();
        let (figures, flights) = (StepFigures::default(), VecDeque::new());
        Self {
            facts,
            subject,
            strategy,
            figures,
            poison: false,
            bad: None,
            complete,
            next: 0,
            flights,
            error: None,
        }
    }

    /// The error of a unit that left in mid-backward, which candle knows only as a text.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Sends what the backward pass has left in the layout.
    pub(super) fn send_rest(&mut self, layout: &mut Layout) -> Result<()> {
        // What waited for a unit leaves with it, so `next` is always one that is still there.
        while self.next < self.facts.plans.len() {
            let number = self.next;
            let buffer = layout.take(number, self.facts.rank())?;
            self.send(number, buffer)?;
        }
        Ok(())
    }

    /// Takes a complete unit; it leaves when its turn comes.
    fn send(&mut self, number: usize, mut buffer: Buffer) -> Result<()> {
        if self.poison {
            buffer.as_mut_slice::<f32>()?.fill(f32::NAN);
        }
        self.look_at(number, buffer.as_slice()?);
        self.complete[number] = Some(buffer);
        self.send_those_whose_turn_it_is()
    }

    fn send_those_whose_turn_it_is(&mut self) -> Result<()> {
        while let Some(buffer) = self.complete.get_mut(self.next).and_then(Option::take) {
            self.next += 1;
            self.launch(self.next - 1, buffer)?;
        }
        Ok(())
    }

    /// Notes gradients that are not finite, in units that do not travel themselves.
    pub(super) fn look_at_all(&mut self, layout: &mut Layout) -> Result<()> {
        let rank = self.facts.rank();
        (0..self.facts.plans.len()).try_for_each(|number| {
            self.look_at(number, layout.values(number, rank)?);
            Ok(())
        })
    }

    fn look_at(&mut self, number: usize, values: &[f32]) {
        if all_finite(values) {
            return;
        }
        let slots = self.facts.plans[number].slots.iter();
        let bad = slots.filter(|slot| !all_finite(&values[slot.range.clone()]));
        self.bad = bad.map(|slot| slot.param).chain(self.bad).min();
    }

    /// Makes a unit's message and starts its collectives.
    pub(super) fn launch(&mut self, index: usize, mut buffer: Buffer) -> Result<()> {
        let Self { facts, subject, strategy, figures, bad, .. } = self;
        let unit = facts.unit(index);
        let values = buffer.as_mut_slice::<f32>()?;
        // A vote will tell the others; no strategy has to make sense of such numbers.
        if bad.is_some() && !strategy.shows_bad_numbers() && *subject == Subject::Gradients {
            values.fill(0.0);
        }
        let message = timed(&mut figures.compress, || {
            strategy.compensate(&unit, values);
            let message = strategy.compress(&unit, values)?;
            let in_place = matches!(message, Message::InPlace(_));
            strategy.update(&unit, (!in_place).then_some(&*values));
            Ok::<_, Error>(message)
        })?;
        self.figures.units += 1;
        self.start(index, buffer, message);
        Ok(())
    }

    fn start(&mut self, unit: usize, values: Buffer, message: Message) {
        let Self { facts, strategy, flights, .. } = self;
        let label = values.label().cloned();
        let mut start = |op, buffer: Buffer| {
            let buffer = match &label {
                Some(label) => buffer.labelled(label.clone()),
                None => buffer,
            };
            strategy.exchange(&*facts.comm, op, buffer)
        };
        let flight = match message {
            Message::InPlace(op) => Flight { unit, values: None, pending: vec![start(op, values)] },
            Message::Buffers(parts) => {
                let pending = parts.into_iter().map(|(op, buffer)| start(op, buffer)).collect();
                Flight { unit, values: Some(values), pending }
            }
        };
        flights.push_back(flight);
    }

    /// Whether the next unit to come back is here: waiting for it would cost no time.
    pub(super) fn has_arrived(&mut self) -> bool {
        let flight = self.flights.front_mut();
        flight.is_none_or(|flight| flight.pending.iter_mut().all(Pending::is_complete))
    }

    /// The next unit to come back, with the average in it; `None` when all have. Waits.
    pub(super) fn arrive(&mut self) -> Result<Option<(usize, Buffer)>> {
        while let Some(Flight { unit: index, values, pending }) = self.flights.pop_front() {
            let received: Result<Vec<Buffer>> = {
                let _span =
                    tracing::trace_span!(target: "candelabrum::step", "wait", bucket = index)
                        .entered();
                pending.into_iter().map(Pending::wait).collect()
            };
            let mut received = received?;
            let Some(mut values) = values else {
                let len = self.facts.plans[index].len;
                let result = received.pop().filter(|result| result.len() == len);
                let what = || format!("{} made a unit shorter or longer", self.strategy.describe());
                let result = result.ok_or_else(|| Error::Protocol { what: what() })?;
                return Ok(Some((index, result)));
            };
            let Self { facts, strategy, figures, .. } = self;
            let unit = facts.unit(index);
            let aggregate = || strategy.aggregate(&unit, received, values.as_mut_slice()?);
            match timed(&mut figures.decompress, aggregate)? {
                None => return Ok(Some((index, values))),
                Some(message) => self.start(index, values, message),
            }
        }
        Ok(None)
    }

    /// Brings home what is still away after an error, as far as it comes.
    pub(super) fn recall(&mut self, layout: &mut Layout) {
        for (number, buffer) in self.complete.iter_mut().enumerate() {
            if let Some(buffer) = buffer.take() {
                layout.put(number, buffer);
            }
        }
        while let Some(Flight { unit, values, pending }) = self.flights.pop_front() {
            let travelled = pending.into_iter().map(Pending::wait).last();
            if let Some(buffer) = values.or(travelled.and_then(Result::ok)) {
                layout.put(unit, buffer);
            }
        }
    }
}
