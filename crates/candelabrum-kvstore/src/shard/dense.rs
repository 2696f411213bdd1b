//! A dense value, or one server's part of it.

use candelabrum_memory::FlatTensor;
use candelabrum_optim::Optimizer;

use super::means::UpdateInputs;
use super::settings::KeyInit;
use crate::codec;
use crate::wire::{MessageHeader, MessageMemory, WireMessage};
use crate::{Error, Result};

/// Elements that are added up and updated at once: 32 KiB.
const BLOCK: usize = 8 << 10;

pub(super) struct DenseValue {
    pub(super) values: FlatTensor,
    /// Made at the first update after the optimizer was set.
    pub(super) optimizer: Option<Box<dyn Optimizer>>,
}

impl DenseValue {
    pub(super) fn new(of: &KeyInit) -> Result<Self> {
        Ok(Self { values: of.zeros()?, optimizer: None })
    }

    /// Sets the values to those of a message.
    pub(super) fn assign(&mut self, message: &WireMessage) -> std::result::Result<(), String> {
        self.check(message)?;
        let values = self.values.as_mut_slice::<f32>().map_err(|error| error.to_string())?;
        codec::decode(message, 0, values, true);
        Ok(())
    }

    /// Refuses a push that cannot be decoded.
    pub(super) fn check(&self, message: &WireMessage) -> std::result::Result<(), String> {
        codec::check(message, self.values.len())
    }

    /// Adds the pushes in their order and updates the values by the sum. It goes block by block where the
    /// update treats each element alone, so that a sum stays in the cache.
    pub(super) fn update(
        &mut self,
        pushes: &[(usize, WireMessage)],
        means: UpdateInputs<'_>,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        let len = self.values.len();
        for (worker, message) in pushes {
            let checked = self.check(message);
            checked.map_err(|what| Error::Message { from: *worker, what })?;
        }
        if self.optimizer.is_none() {
            self.optimizer = means.optimizer(len)?;
        }
        let UpdateInputs { key, settings, mut updater, .. } = means;
        let divide_by = settings.map_or(1.0, |settings| settings.divide_by);
        let is_elementwise = match (&self.optimizer, &updater) {
            (Some(optimizer), _) => optimizer.is_elementwise(),
            (None, updater) => updater.is_none(),
        };
        let in_blocks = is_elementwise && pushes.iter().all(|(_, push)| codec::has_parts(push));
        let block = if in_blocks { BLOCK.min(len) } else { len };
        // All keys share its memory. It never shrinks, so that it is not filled anew at every update.
        if scratch.len() < block {
            scratch.resize(block, 0.0);
        }
        let values = self.values.as_mut_slice::<f32>()?;
        for (number, values) in values.chunks_mut(block.max(1)).enumerate() {
            let start = number * block;
            let sum = &mut scratch[..values.len()];
            for (number, (_, push)) in pushes.iter().enumerate() {
                codec::decode(push, start, sum, number == 0);
            }
            match (&mut self.optimizer, &mut updater) {
                (Some(optimizer), _) => {
                    divide(sum, divide_by);
                    if in_blocks {
                        optimizer.update_range(0, start..start + sum.len(), values, sum)?;
                    } else {
                        optimizer.update(0, values.into(), (&*sum).into())?;
                    }
                }
                (None, Some(updater)) => updater(key, sum, values),
                (None, None) => values.copy_from_slice(sum),
            }
        }
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.step();
        }
        Ok(())
    }

    pub(super) fn forget_optimizer(&mut self) {
        self.optimizer = None;
    }

    /// The answer to a pull.
    pub(super) fn answer(&self, memory: &MessageMemory, header: MessageHeader) -> WireMessage {
        let header = MessageHeader { elements: self.values.len() as u64, ..header };
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
