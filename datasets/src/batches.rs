//! The batches of one epoch on one rank, and the position among all of them.
//!
//! The position is plain data: the epoch and the number of its steps that are done. The samples of a
//! step are a function of this position, so nothing else is needed to go on in the middle of an epoch.

use candle_core::{DType, Device};
use serde::{Deserialize, Serialize};

use crate::{
    batch::Batch,
    collate::Collated,
    error::{Error, Result},
    readers::Readers,
    sampler::EpochOrder,
};

/// A place between two steps of a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct LoaderPosition {
    /// The epoch, counted from 0.
    pub epoch: usize,
    /// The number of steps of this epoch that are done, which is the number of the next step. After
    /// the last step of an epoch it is the number of all its steps.
    pub step: usize,
}

/// The batches of one epoch on one rank: see [`Loader::epoch`](crate::Loader::epoch) and
/// [`ImageDataset::epoch_batches`](crate::ImageDataset::epoch_batches).
///
/// After an error there are no more batches. Dropping this iterator stops its threads and waits for
/// them.
pub struct Batches<B = Batch> {
    readers: Readers<B>,
    order: EpochOrder,
    position: LoaderPosition,
    device: Device,
    dtype: DType,
}

impl<B> std::fmt::Debug for Batches<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches")
            .field("position", &self.position)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl<B> Batches<B> {
    pub(crate) fn new(
        readers: Readers<B>,
        order: EpochOrder,
        position: LoaderPosition,
        device: Device,
        dtype: DType,
    ) -> Self {
        Self { readers, order, position, device, dtype }
    }

    /// The number of remaining steps.
    pub fn remaining(&self) -> usize {
        self.order.steps().saturating_sub(self.position.step)
    }

    /// The position after the batch that was given out last. A loader that
    /// [resumes](crate::Loader::resume) from it gives the batches that this iterator has not given.
    pub fn position(&self) -> LoaderPosition {
        self.position
    }

    /// Adds to an error of a reader which samples it was reading.
    fn located(&self, source: Error) -> Error {
        let LoaderPosition { epoch, step } = self.position;
        let samples = named(&self.order.batch(step));
        Error::Batch { epoch, step, samples, source: Box::new(source) }
    }
}

impl<B: Collated> Iterator for Batches<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let batch = match self.readers.next()? {
            Ok(batch) => batch.to(&self.device, self.dtype),
            Err(source) => Err(self.located(source)),
        };
        match &batch {
            Ok(_) => self.position.step += 1,
            Err(_) => self.readers.stop(),
        }
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.remaining())) // after an error there are fewer
    }
}

/// The numbers of samples as a text that is not too long for a message.
fn named(samples: &[u32]) -> String {
    const MOST: usize = 8;
    let numbers: Vec<String> = samples.iter().take(MOST).map(u32::to_string).collect();
    let more = samples.len().saturating_sub(MOST);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", numbers.join(", "))
}
