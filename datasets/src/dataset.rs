//! The trait of all data: samples that can be read by their numbers.
//!
//! Everything else follows from this. A sampler decides which numbers each rank gets at each step, a
//! loader reads them on its threads, and a part of a dataset is a dataset again. Data that are streamed
//! from large files are of this kind too: they know where each sample begins, and read nothing before
//! it is asked for.

use std::sync::Arc;

use crate::{collate::Collated, error::Result, pass::Pass};

/// Samples that can be read by their numbers.
///
/// A dataset is the same on every rank and never changes. It is shared by the threads of loaders.
pub trait Dataset: Send + Sync + 'static {
    /// What one step gets: one or several tensors.
    type Batch: Collated;

    /// The number of samples, below 2^32.
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads, decodes, augments and collates these samples, in this order, as tensors on the CPU.
    /// Called on a thread of a loader.
    ///
    /// Without samples it gives an empty batch. What it gives for a sample depends on the sample and
    /// the pass alone, so that the number of ranks and threads has no influence.
    ///
    /// # Errors
    /// A number that is not below [`len`](Self::len). Those of the data: they name the file or the
    /// sample.
    fn read(&self, samples: &[u32], pass: &Pass) -> Result<Self::Batch>;

    /// A text that is equal exactly if the data, and what is made of them, are: ranks compare it. For
    /// data in memory it contains a SHA-256 of them. For files it contains names, sizes, counts and a
    /// digest of a part of the contents.
    ///
    /// # Errors
    /// Files that cannot be read.
    fn fingerprint(&self) -> Result<String>;

    /// The numbers of samples in the pieces that the data are stored in, in order. The
    /// [`Shuffle`](crate::Shuffle) within a window takes these pieces in random order. One piece by
    /// default.
    fn shards(&self) -> Vec<usize> {
        vec![self.len()]
    }

    /// The number of ranks among which the samples have already been divided. 1 for a whole dataset.
    fn shared_by(&self) -> usize {
        1
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn read(&self, samples: &[u32], pass: &Pass) -> Result<Self::Batch> {
        (**self).read(samples, pass)
    }

    fn fingerprint(&self) -> Result<String> {
        (**self).fingerprint()
    }

    fn shards(&self) -> Vec<usize> {
        (**self).shards()
    }

    fn shared_by(&self) -> usize {
        (**self).shared_by()
    }
}
