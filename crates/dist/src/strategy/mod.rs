//! Strategies: what ranks send each other in a step, and what they make of it.
//!
//! A [`Strategy`] is split as in GRACE (Xu et al., "GRACE: A Compressed Communication Framework for
//! Distributed Machine Learning", ICDCS 2021): memory, compression, exchange, aggregation. The
//! distributed optimizer calls the parts for each *unit*, a bucket of gradients (or of parameters,
//! [`Subject`]):
//!
//! ```text
//! u = g + r                    compensate: what was kept back is added
//! message, rest = C(u)         compress: what is sent, and what is left
//! r = rest                     update: the memory for the next step
//! exchange                     the message's collectives, all units' at the same time
//! G = mean over ranks          aggregate: the same bits on every rank
//! ```
//!
//! The strategies that are an all-reduce of gradients in some element type (fp32, fp16, bf16) need none
//! of these parts: the type says it all (`wire.rs`). Each other strategy has a file of its own.
//! [`register`] adds one of the user's, which `--dist-option` then knows by name;
//! `examples/custom_strategy.rs` is one.

mod config;
mod memory;
mod message;
mod partial_update;
mod registry;
mod sparse_exchange;
mod sparse_threshold;
mod sparse_top_k;
mod unit;
mod wire;

pub mod select;

pub use config::{StrategyConfig, StrategyOptions};
pub use memory::Memory;
pub use message::Message;
pub use registry::{check, register};
pub use unit::Unit;

pub(crate) use registry::{Method, make};
pub(crate) use wire::Wire;

use std::fmt;

use crate::comm::{Collective, Communicator, Payload, Pending};
use crate::{Error, Result};

/// What a strategy exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Gradients, before the update: replicas stay equal.
    Gradients,
    /// Parameters, after every rank has updated them by its own gradients: replicas differ until
    /// [`crate::DistOpt::average_parameters`].
    Parameters,
}

/// One way in which ranks agree on an update.
///
/// Every method is called on all ranks for the same units in the same order. What it does must
/// depend on nothing that ranks do not share, but for the numbers in the unit.
///
/// A strategy need only say what it is ([`describe`](Self::describe)), what it sends
/// ([`compress`](Self::compress)) and, where that is not the unit itself, what comes of it
/// ([`aggregate`](Self::aggregate)).
pub trait Strategy: fmt::Debug + Send {
    /// Its name and every setting: equal lines mean equal exchanges, and ranks compare theirs.
    fn describe(&self) -> String;

    /// What it exchanges at this step, counted from 0.
    fn subject(&self, step: u64) -> Subject {
        let _ = step;
        Subject::Gradients
    }

    /// Refuses a `spars` that makes no sense.
    ///
    /// # Errors
    /// [`Error::Setting`].
    fn check_spars(&self, spars: f32) -> Result<()> {
        let _ = spars;
        Ok(())
    }

    /// Whether a NaN or infinity in one rank's gradient is sure to leave no finite average on any
    /// rank: then it need not be asked for before the exchange.
    fn shows_bad_numbers(&self) -> bool {
        false
    }

    /// Makes room for the units of a layout, before the first step with them.
    ///
    /// # Errors
    /// Those of [`Communicator::alloc`].
    fn prepare(&mut self, units: &[Unit<'_>], comm: &dyn Communicator) -> Result<()> {
        let _ = (units, comm);
        Ok(())
    }

    /// Gives back what [`prepare`](Self::prepare) made for a layout that no step will use again.
    fn forget(&mut self, layout: usize) {
        let _ = layout;
    }

    /// Whether this unit of parameters is exchanged at this step. Gradients always are.
    fn takes_part(&self, unit: &Unit<'_>) -> bool {
        let _ = unit;
        true
    }

    /// What it keeps between steps by parameter name, if it keeps anything.
    fn memory(&mut self) -> Option<&mut Memory> {
        None
    }

    /// Memory, first half: adds what was kept back to `values`.
    fn compensate(&mut self, unit: &Unit<'_>, values: &mut [f32]) {
        if let Some(memory) = self.memory() {
            memory.add_residual(unit, values);
        }
    }

    /// Compression: makes the message of `values`, and leaves in them what the message lacks.
    ///
    /// # Errors
    /// Whatever keeps the message from being made.
    fn compress(&mut self, unit: &Unit<'_>, values: &mut [f32]) -> Result<Message>;

    /// Memory, second half: stages `rest`, which [`compress`](Self::compress) left in the values;
    /// `None` where the values themselves travel and nothing is left. A strategy that knows only
    /// after the exchange what was lost may stage that in [`aggregate`](Self::aggregate) instead.
    fn update(&mut self, unit: &Unit<'_>, rest: Option<&[f32]>) {
        if let Some(memory) = self.memory() {
            memory.set_residual(unit, rest);
        }
    }

    /// Exchange: starts one collective of a message. The optimizer waits for it.
    fn exchange(&mut self, comm: &dyn Communicator, op: Collective, buffer: Payload) -> Pending {
        comm.start(op, buffer)
    }

    /// Decompression and aggregation: writes the mean over all ranks into `values`, of `received`,
    /// the results of the message's collectives; or gives the message of another round. Where the
    /// values themselves travelled they are the result, and this is not called.
    ///
    /// # Errors
    /// A message that makes no sense.
    fn aggregate(
        &mut self,
        unit: &Unit<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        let _ = (received, values);
        Err(Error::Protocol { what: format!("{} got a message for {unit}", self.describe()) })
    }

    /// Ends a step, which was taken or (after an error or an overflow) was not: then nothing of it
    /// may be remembered.
    fn end_step(&mut self, taken: bool) {
        if let Some(memory) = self.memory() {
            memory.end_step(taken);
        }
    }

    /// Something that the user should hear, once.
    fn notice(&mut self) -> Option<String> {
        None
    }
}
