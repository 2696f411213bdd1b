//! A dense value, or one server's part of it.

use candelabrum_memory::Flat;
use candelabrum_optim::Optimizer;

use super::means::Means;
use super::settings::Init;
use crate::codec;
use crate::wire::{Header, Memory, Message};
use crate::{Error, Result};

pub(super) struct Dense {
    pub(super) values: Flat,
    /// Made at the first update after the optimizer was set.
    pub(super) optimizer: Option<Box<dyn Optimizer>>,
}

impl Dense {
    pub(super) fn new(of: &Init) -> Result<Self> {
        Ok(Self { values: of.zeros()?, optimizer: None })
    }

    /// Sets the values to those of a message.
    pub(super) fn assign(&mut self, message: &Message) -> std::result::Result<(), String> {
        let values = self.values.as_mut_slice::<f32>().map_err(|error| error.to_string())?;
        codec::decode(message, values, true)
    }

    /// Refuses a push that cannot be decoded.
    pub(super) fn check(&self, message: &Message) -> std::result::Result<(), String> {
        codec::check(message, self.values.len())
    }

    /// Adds the pushes in their order and updates the values by the sum.
    pub(super) fn update(
        &mut self,
        pushes: &[(usize, Message)],
        means: Means<'_>,
        sum: &mut Vec<f32>,
    ) -> Result<()> {
        let len = self.values.len();
        // All keys share its memory. It never shrinks, so that it is not filled anew at every update.
        if sum.len() < len {
            sum.resize(len, 0.0);
        }
        for (number, (worker, message)) in pushes.iter().enumerate() {
            let added = codec::decode(message, &mut sum[..len], number == 0);
            added.map_err(|what| Error::Message { from: *worker, what })?;
        }
        let sum = &mut sum[..len];
        if self.optimizer.is_none() {
            self.optimizer = means.optimizer(len)?;
        }
        let values = self.values.as_mut_slice::<f32>()?;
        match (&mut self.optimizer, means.updater) {
            (Some(optimizer), _) => {
                divide(sum, means.settings.map_or(1.0, |settings| settings.divide_by));
                optimizer.update(0, values.into(), (&*sum).into())?;
                optimizer.step();
            }
            (None, Some(updater)) => updater(means.key, sum, values),
            (None, None) => values.copy_from_slice(sum),
        }
        Ok(())
    }

    pub(super) fn forget_optimizer(&mut self) {
        self.optimizer = None;
    }

    /// The answer to a pull.
    pub(super) fn answer(&self, memory: &Memory, header: Header) -> Message {
        let header = Header { elements: self.values.len() as u64, ..header };
        let mut message = memory.message(header, self.values.byte_len());
        message.data_mut().copy_from_slice(self.values.bytes());
        message
    }
}

/// Divides as a mean over ranks does, so that the bits are the same.
pub(super) fn divide(sum: &mut [f32], by: f32) {
    if by != 1.0 {
        sum.iter_mut().for_each(|x| *x /= by);
    }
}
