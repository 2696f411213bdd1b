//! The exchange of a step. Units are sent in order, as soon as they are complete, and their
//! averages arrive in the same order.
//!
//! During the backward pass the dispatcher receives each bucket whose gradients are complete. It
//! sends the bucket at once if all units before it have been sent. All ranks send the same units in
//! the same order, whatever the order in which their gradients become complete (Li et al., "PyTorch
//! Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020).
//!
//! The last unit leaves only after the backward pass. So a rank whose pass fails always has a unit
//! left through which the other ranks learn of the failure.

use std::collections::VecDeque;

use candelabrum_memory::{FiniteCheck, Flat};

use super::StepFigures;
use super::context::StepContext;
use super::fault::Fault;
use super::figures::timed;
use super::layout::Layout;
use super::used::Way;
use crate::comm::{Payload, Pending};
use crate::strategy::{Message, Subject};
use crate::{Error, Result};

/// The state of the exchange.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub(super) context: StepContext,
    pub(super) subject: Subject,
    pub(super) way: Way,
    pub(super) figures: StepFigures,
    /// The reason why this rank's gradients must not be used.
    pub(super) fault: Option<Fault>,
    /// By unit: memory for numbers in the wire's type, while they are not being sent.
    pub(super) wire: Vec<Option<Flat>>,
    /// Complete buckets of units whose turn has not come yet.
    complete: Vec<Option<Flat>>,
    /// The next unit to send.
    next: usize,
    /// The messages under way, in the order in which they left.
    flights: VecDeque<Flight>,
}

/// A message under way.
#[derive(Debug)]
struct Flight {
    unit: usize,
    /// The unit's bucket, unless the bucket itself is the message.
    bucket: Option<Flat>,
    pending: Vec<Pending>,
}

impl Dispatcher {
    pub(super) fn new(
        context: StepContext,
        subject: Subject,
        way: Way,
        wire: Vec<Option<Flat>>,
    ) -> Self {
        let complete = context.plans.iter().map(|_| None).collect();
        let (figures, flights) = (StepFigures::default(), VecDeque::new());
        Self { context, subject, way, figures, fault: None, wire, complete, next: 0, flights }
    }

    /// Accepts the bucket of a unit that is complete before the backward pass has ended.
    pub(super) fn accept_early(&mut self, unit: usize, bucket: Flat) -> Result<()> {
        self.accept(unit, bucket)?;
        self.send_those_whose_turn_it_is(self.context.plans.len() - 1)?;
        self.figures.early_units = self.figures.units;
        Ok(())
    }

    /// Sends the units that have not left during the backward pass.
    pub(super) fn send_rest(&mut self, layout: &mut Layout) -> Result<()> {
        let count = self.context.plans.len();
        while self.next < count {
            if self.complete[self.next].is_none() {
                let rank = self.context.group.rank();
                let bucket = layout.gradients.take(self.next).ok_or(Error::Stopped { rank })?;
                self.accept(self.next, bucket)?;
            }
            self.send_those_whose_turn_it_is(count)?;
        }
        Ok(())
    }

    fn accept(&mut self, unit: usize, mut bucket: Flat) -> Result<()> {
        // Every unit must leave in its turn. Filled with NaN it shows the fault to the other ranks.
        if self.fault.as_ref().is_some_and(Fault::is_hidden) {
            bucket.span_mut()?.fill(f32::NAN)?;
        }
        self.look_at(unit, &bucket)?;
        self.complete[unit] = Some(bucket);
        Ok(())
    }

    /// Sends complete units before unit number `end`, up to the first one that is not complete.
    fn send_those_whose_turn_it_is(&mut self, end: usize) -> Result<()> {
        while self.next < end {
            let Some(bucket) = self.complete[self.next].take() else { break };
            self.next += 1;
            self.launch(self.next - 1, bucket)?;
        }
        Ok(())
    }

    /// Records gradients that are not finite, for units that are not sent themselves.
    pub(super) fn look_at_all(&mut self, layout: &mut Layout) -> Result<()> {
        for unit in 0..layout.units() {
            self.look_at(unit, layout.gradients.bucket(unit)?)?;
        }
        Ok(())
    }

    fn look_at(&mut self, unit: usize, bucket: &Flat) -> Result<()> {
        let mut check = FiniteCheck::default();
        check.look(unit, bucket.span()?)?;
        if !check.is_bad_so_far() {
            return Ok(());
        }
        for slot in &self.context.plans[unit].slots {
            let mut check = FiniteCheck::default();
            check.look(slot.param, bucket.range(slot.range.clone())?)?;
            match &mut self.fault {
                _ if !check.is_bad_so_far() => {}
                Some(Fault::Gradient(first)) => *first = slot.param.min(*first),
                Some(Fault::Loss | Fault::Failed(_)) => {}
                none => *none = Some(Fault::Gradient(slot.param)),
            }
        }
        Ok(())
    }

    /// Makes a unit's message and starts its collectives.
    pub(super) fn launch(&mut self, index: usize, mut bucket: Flat) -> Result<()> {
        let Self { context, subject, way, figures, fault, .. } = self;
        let unit = context.unit(index);
        let message = match way {
            Way::Wire(wire) if wire.is_in_place() => Message::InPlace(wire.op()),
            Way::Wire(wire) => {
                // A failed step may have lost this memory. It is then allocated again, on the heap.
                let memory = self.wire.get_mut(index).and_then(Option::take);
                let mut memory = memory.unwrap_or_else(|| Flat::zeros(wire.element, unit.len()));
                if fault.is_some() && !wire.shows_bad_numbers() {
                    bucket.span_mut()?.fill(0.0)?;
                }
                timed(&mut figures.compress, || {
                    wire.pack(bucket.span_mut()?, &mut memory, context.group.world_size())
                })?;
                Message::new(wire.op(), memory.into())
            }
            Way::Strategy(strategy) => {
                let mut strategy = strategy.lock();
                let values = bucket.as_mut_slice::<f32>()?;
                // The vote will report the fault. Zeros spare the strategy the bad numbers.
                let is_gradient = *subject == Subject::Gradients;
                if fault.is_some() && is_gradient && !strategy.shows_bad_numbers() {
                    values.fill(0.0);
                }
                timed(&mut figures.compress, || {
                    strategy.compensate(&unit, values);
                    let message = strategy.compress(&unit, values)?;
                    let in_place = matches!(message, Message::InPlace(_));
                    strategy.update(&unit, (!in_place).then_some(&*values));
                    Ok::<_, Error>(message)
                })?
            }
        };
        figures.units += 1;
        self.start(index, bucket, message);
        Ok(())
    }

    fn start(&mut self, unit: usize, bucket: Flat, message: Message) {
        let Self { context, way, flights, .. } = self;
        let way = &*way;
        let start = |op, payload: Payload| -> Pending {
            let payload = payload.labelled(context.labels[unit].clone()).of_step(context.step);
            match way {
                Way::Wire(_) => context.group.start(op, payload),
                Way::Strategy(strategy) => strategy.lock().exchange(&*context.group, op, payload),
            }
        };
        let flight = match message {
            Message::InPlace(op) => {
                Flight { unit, bucket: None, pending: vec![start(op, bucket.into())] }
            }
            Message::Payloads(parts) => {
                let pending = parts.into_iter().map(|(op, payload)| start(op, payload)).collect();
                Flight { unit, bucket: Some(bucket), pending }
            }
        };
        flights.push_back(flight);
    }

    /// Whether the next average has arrived, so that waiting for it costs no time.
    pub(super) fn has_arrived(&mut self) -> bool {
        let flight = self.flights.front_mut();
        flight.is_none_or(|flight| flight.pending.iter_mut().all(Pending::is_complete))
    }

    /// Waits for the next unit, whose bucket then contains the average. `None` if all have arrived.
    pub(super) fn arrive(&mut self) -> Result<Option<(usize, Flat)>> {
        while let Some(Flight { unit: index, bucket, pending }) = self.flights.pop_front() {
            let received: Result<Vec<Payload>> = {
                let _span =
                    tracing::trace_span!(target: "candelabrum::step", "wait", bucket = index)
                        .entered();
                pending.into_iter().map(Pending::wait).collect()
            };
            let mut received = received?;
            let Self { context, way, figures, .. } = self;
            let unit = context.unit(index);
            let Some(mut bucket) = bucket else {
                let result = received.pop().filter(|result| result.len() == unit.len());
                let what = || format!("{} made a unit shorter or longer", way.describe());
                let result = result.ok_or_else(|| Error::Protocol { what: what() })?;
                return Ok(Some((index, result.into_flat())));
            };
            let message = match way {
                Way::Wire(_) => {
                    for result in received {
                        let result = result.into_flat();
                        timed(&mut figures.decompress, || result.widen_into(bucket.span_mut()?))?;
                        self.wire[index] = Some(result);
                    }
                    None
                }
                Way::Strategy(strategy) => {
                    let aggregate =
                        || strategy.lock().aggregate(&unit, received, bucket.as_mut_slice()?);
                    timed(&mut figures.decompress, aggregate)?
                }
            };
            match message {
                None => return Ok(Some((index, bucket))),
                Some(message) => self.start(index, bucket, message),
            }
        }
        Ok(None)
    }

    /// After an error, returns the buckets under way to the layout, as far as they arrive.
    pub(super) fn recall(&mut self, layout: &mut Layout) {
        for (unit, bucket) in self.complete.iter_mut().enumerate() {
            if let Some(bucket) = bucket.take() {
                layout.gradients.put(unit, bucket);
            }
        }
        while let Some(Flight { unit, bucket, pending }) = self.flights.pop_front() {
            let travelled = pending.into_iter().map(Pending::wait).last();
            let travelled = travelled.and_then(Result::ok).map(Payload::into_flat);
            match (bucket, travelled) {
                (Some(bucket), travelled) => {
                    layout.gradients.put(unit, bucket);
                    if let (Way::Wire(_), Some(place)) = (&self.way, self.wire.get_mut(unit)) {
                        *place = travelled;
                    }
                }
                (None, Some(bucket)) => layout.gradients.put(unit, bucket),
                (None, None) => {}
            }
        }
    }
}
