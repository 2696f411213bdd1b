//! fp32: the plain all-reduce, whose mean every other strategy approximates.

use super::{Message, Strategy, Unit};
use crate::Result;
use crate::comm::{Collective, ReduceOp};

/// Sums in rank order, divides by the number of ranks.
#[derive(Debug)]
pub(super) struct Fp32;

impl Strategy for Fp32 {
    fn describe(&self) -> String {
        "fp32".to_owned()
    }

    fn shows_bad_numbers(&self) -> bool {
        true
    }

    fn compress(&mut self, _unit: &Unit<'_>, _values: &mut [f32]) -> Result<Message> {
        Ok(Message::InPlace(Collective::AllReduce(ReduceOp::Mean)))
    }
}
