//! Batches of images in memory: gathered, augmented and scaled on a reader's thread.
//!
//! [`ImageDataset`] is a [`Dataset`]. The methods here are a shorter way to its batches, with the
//! conversion among the options of the call instead of in the data.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::{
    augment::Augmentation,
    batch::Batch,
    batches::Batches,
    dataset::Dataset,
    error::{Error, Result},
    image_dataset::ImageDataset,
    loader::{Loader, LoaderOptions},
    pass::Pass,
    sampler::DistributedSampler,
    scaling::Scaling,
};

/// The options of batches of images, the same on every rank.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The conversion of bytes to floats. [`Scaling::Unit`], the default, is the conversion of the
    /// data itself ([`ImageDataset::scaled`]).
    pub scaling: Scaling,
    /// Random crops and flips. `None`, the default, is the augmentation of the data itself
    /// ([`ImageDataset::augmented`]). The random numbers of a sample depend only on the sampler's
    /// seed, the epoch and the sample.
    pub augment: Option<Augmentation>,
    /// The number of batches that a thread prepares in advance, 2 by default. With 0, each batch is
    /// prepared when it is requested.
    pub prefetch: usize,
    /// The device of the tensors.
    pub device: Device,
    /// The float type of the images, f32 by default.
    pub dtype: DType,
}

impl Default for BatchOptions {
    fn default() -> Self {
        let (device, dtype) = (Device::Cpu, DType::F32);
        Self { scaling: Scaling::Unit, augment: None, prefetch: 2, device, dtype }
    }
}

impl Dataset for ImageDataset {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, samples: &[u32], pass: &Pass) -> Result<Batch> {
        let [channels, height, width] = self.image_shape();
        let augment = self.augmentation().filter(|_| pass.training);
        let mut xs = Vec::with_capacity(samples.len() * self.image_bytes());
        let mut ys = Vec::with_capacity(samples.len());
        let mut augmented = vec![0; self.image_bytes()];
        for &sample in samples {
            let index = sample as usize;
            let (Some((image, label)), Some(row)) = (self.get(index), self.row(index)) else {
                return Err(Error::NoSuchSample { sample: index, len: self.len() });
            };
            let image = match augment {
                Some(augment) => {
                    let transform = augment.draw(pass.seed, pass.epoch, row as u64);
                    transform.apply(image, self.image_shape(), &mut augmented);
                    &augmented
                }
                None => image,
            };
            self.scaling().extend(&mut xs, image);
            ys.push(label);
        }
        let xs = Tensor::from_vec(xs, (ys.len(), channels, height, width), &Device::Cpu)?;
        let count = ys.len();
        Ok(Batch { xs, ys: Tensor::from_vec(ys, count, &Device::Cpu)? })
    }

    fn fingerprint(&self) -> Result<String> {
        let (scaling, augmentation) = (self.scaling(), self.augmentation());
        Ok(format!("{}, {scaling:?}, {augmentation:?}", self.sha256()))
    }

    fn shared_by(&self) -> usize {
        self.shared_by()
    }
}

impl ImageDataset {
    /// This rank's batches of one epoch, prepared in advance.
    ///
    /// Every rank gets [`sampler.steps()`](DistributedSampler::steps) batches.
    ///
    /// # Errors
    /// A sampler for another number of samples, a scaling for another number of channels, or a
    /// thread that cannot be started. If that thread panics or a device fails, there is an error in
    /// place of a batch, and nothing after it.
    pub fn epoch_batches(
        &self,
        sampler: &DistributedSampler,
        epoch: usize,
        options: &BatchOptions,
    ) -> Result<Batches> {
        self.epoch_batches_from(sampler, epoch, 0, options)
    }

    /// [`epoch_batches`](Self::epoch_batches) without the steps before `first_step`, to resume a
    /// run in the middle of an epoch.
    ///
    /// # Errors
    /// Those of [`epoch_batches`](Self::epoch_batches).
    pub fn epoch_batches_from(
        &self,
        sampler: &DistributedSampler,
        epoch: usize,
        first_step: usize,
        options: &BatchOptions,
    ) -> Result<Batches> {
        self.loader(sampler, options)?.epoch(epoch, first_step)
    }

    /// All samples once, in order, in batches on the CPU, without augmentation. The last batch may be
    /// smaller.
    ///
    /// # Errors
    /// A batch size of 0, an empty dataset, or a thread that cannot be started.
    pub fn batches(&self, batch_size: usize) -> Result<Batches> {
        let sampler = DistributedSampler::sequential(self.len(), batch_size)?;
        self.loader(&sampler, &BatchOptions::default())?.evaluation()
    }

    fn loader(
        &self,
        sampler: &DistributedSampler,
        options: &BatchOptions,
    ) -> Result<Loader<ImageDataset>> {
        let BatchOptions { scaling, augment, prefetch, device, dtype } = options.clone();
        let data = match scaling {
            Scaling::Unit => self.clone(),
            other => self.clone().scaled(other)?,
        };
        let data = match augment {
            None => data,
            Some(augment) => data.augmented(augment),
        };
        Loader::new(Arc::new(data), *sampler, LoaderOptions { prefetch, threads: 1, device, dtype })
    }
}
