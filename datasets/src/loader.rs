//! Reads a dataset's batches on threads, epoch by epoch.
//!
//! A loader puts three things together: the data, the sampler that decides which samples this rank
//! gets at each step, and threads that read whole batches in advance. The training thread only moves
//! finished batches to the device.

use std::sync::Arc;

use candle_core::{DType, Device};

use crate::{
    batches::{Batches, LoaderPosition},
    dataset::Dataset,
    error::{Error, Result},
    pass::Pass,
    readers::Readers,
    sampler::DistributedSampler,
};

/// The options of a [`Loader`], on one rank. They have no influence on the samples.
#[derive(Debug, Clone)]
pub struct LoaderOptions {
    /// The number of batches for each thread that are ready or being read before they are requested,
    /// 2 by default, as PyTorch's `prefetch_factor`. So `threads * prefetch` batches may be in memory
    /// besides the one that is in use. With 0, the requesting thread reads each batch.
    pub prefetch: usize,
    /// The number of threads, each of which reads whole batches, 1 by default, as PyTorch's
    /// `num_workers`. With 0, the requesting thread reads each batch.
    pub threads: usize,
    /// The device of the tensors, the CPU by default.
    pub device: Device,
    /// The type of tensors of floating-point numbers, f32 by default. Tensors of integers keep theirs.
    pub dtype: DType,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self { prefetch: 2, threads: 1, device: Device::Cpu, dtype: DType::F32 }
    }
}

/// Reads this rank's batches of a dataset.
///
/// ```
/// use std::sync::Arc;
/// use candelabrum_datasets::{DistributedSampler, Loader, LoaderOptions, TensorDataset};
/// use candle_core::{Device, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let xs = Tensor::arange(0f32, 10.0, &Device::Cpu)?;
/// let data = Arc::new(TensorDataset::single(xs)?);
/// let sampler = DistributedSampler::sequential(10, 4)?;
/// let loader = Loader::new(data, sampler, LoaderOptions { threads: 2, ..Default::default() })?;
/// let batches: Vec<_> = loader.epoch(0, 0)?.collect::<Result<_, _>>()?;
/// assert_eq!(batches[2].to_vec1::<f32>()?, [8.0, 9.0]);
/// # Ok(())
/// # }
/// ```
pub struct Loader<D: Dataset + ?Sized> {
    data: Arc<D>,
    sampler: DistributedSampler,
    shards: Vec<usize>,
    options: LoaderOptions,
}

impl<D: Dataset + ?Sized> std::fmt::Debug for Loader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("sampler", &self.sampler)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<D: Dataset + ?Sized> Clone for Loader<D> {
    fn clone(&self) -> Self {
        let Self { data, sampler, shards, options } = self;
        let (data, shards, options) = (Arc::clone(data), shards.clone(), options.clone());
        Self { data, sampler: *sampler, shards, options }
    }
}

impl<D: Dataset + ?Sized> Loader<D> {
    /// A loader of this rank's batches.
    ///
    /// # Errors
    /// A sampler for another number of samples, or a dataset whose shards have another number of
    /// samples than the dataset.
    pub fn new(data: Arc<D>, sampler: DistributedSampler, options: LoaderOptions) -> Result<Self> {
        let (counted, len) = (sampler.config().len, data.len());
        if counted != len {
            return Err(Error::argument(format!(
                "the sampler counts {counted} samples, the dataset has {len}: make one for the other"
            )));
        }
        let shards = data.shards();
        let in_shards = shards.iter().fold(0_usize, |sum, &len| sum.saturating_add(len));
        if in_shards != len {
            return Err(Error::shard_lengths(in_shards, len));
        }
        Ok(Self { data, sampler, shards, options })
    }

    /// The data.
    pub fn data(&self) -> &Arc<D> {
        &self.data
    }

    /// The sampler.
    pub fn sampler(&self) -> &DistributedSampler {
        &self.sampler
    }

    /// The options.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// This rank's batches of one epoch for training, without the steps before `first_step`.
    ///
    /// Every rank gets [`sampler.steps()`](DistributedSampler::steps) batches less `first_step`.
    ///
    /// # Errors
    /// A thread that cannot be started. If a thread panics or cannot read a sample, or a device fails,
    /// there is an error in place of a batch, and nothing after it.
    pub fn epoch(&self, epoch: usize, first_step: usize) -> Result<Batches<D::Batch>> {
        let pass = Pass::training(self.sampler.config().seed, epoch as u64);
        self.pass(pass, LoaderPosition { epoch, step: first_step })
    }

    /// The rest of an epoch for training: see [`Batches::position`].
    ///
    /// # Errors
    /// Those of [`epoch`](Self::epoch).
    pub fn resume(&self, position: LoaderPosition) -> Result<Batches<D::Batch>> {
        self.epoch(position.epoch, position.step)
    }

    /// This rank's batches for an evaluation: those of epoch 0, without augmentation.
    ///
    /// # Errors
    /// Those of [`epoch`](Self::epoch).
    pub fn evaluation(&self) -> Result<Batches<D::Batch>> {
        self.pass(Pass::evaluation(), LoaderPosition::default())
    }

    fn pass(&self, pass: Pass, position: LoaderPosition) -> Result<Batches<D::Batch>> {
        let order = self.sampler.epoch_of_shards(position.epoch, &self.shards)?;
        let LoaderOptions { prefetch, threads, device, dtype } = self.options.clone();
        let steps = position.step.min(order.steps())..order.steps();
        let position = LoaderPosition { step: steps.start, ..position };
        let (data, samples) = (Arc::clone(&self.data), order.clone());
        let read = move |step| data.read(&samples.batch(step), &pass);
        let readers = Readers::new(steps, read, threads, threads.saturating_mul(prefetch))?;
        Ok(Batches::new(readers, order, position, device, dtype))
    }
}
