//! Batches as tensors, prepared in advance on a background thread.
//!
//! The thread gathers, augments and scales images on the CPU. The thread that requests a batch
//! makes the tensor itself: on CUDA a second host thread would mean a second stream, and a copy on
//! one stream is not ordered before a kernel on another.

use candle_core::{DType, Device, Tensor};

use crate::{
    augment::Augmentation,
    error::{Error, Result},
    image_dataset::ImageDataset,
    prefetch::Prefetch,
    sampler::{DistributedSampler, EpochOrder},
    scaling::Scaling,
};

/// The options of batches, the same on every rank.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The conversion of bytes to floats.
    pub scaling: Scaling,
    /// Random crops and flips. None by default. The random numbers of a sample depend only on the
    /// sampler's seed, the epoch and the sample.
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

/// The images and labels of one step on one rank.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Images, (B, C, H, W), in [`BatchOptions::dtype`].
    pub xs: Tensor,
    /// Labels, (B,), u32.
    pub ys: Tensor,
}

impl Batch {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.ys.elem_count()
    }

    /// Whether this rank has no samples in this step. This happens at the end of an evaluation with
    /// [`Remainder::Keep`](crate::Remainder::Keep). The tensors of an empty batch are on the CPU,
    /// whatever the device, so check this before you use them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The batches of one epoch on one rank: see [`ImageDataset::epoch_batches`].
///
/// Dropping this iterator stops the background thread.
pub struct Batches {
    prepared: Prefetch<Prepared>,
    remaining: usize,
    shape: [usize; 3],
    device: Device,
    dtype: DType,
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches")
            .field("remaining", &self.remaining)
            .field("image_shape", &self.shape)
            .finish_non_exhaustive()
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
    /// place of a batch.
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
        let counted = sampler.config().len;
        if counted != self.len() {
            return Err(Error::SamplerLength { sampler: counted, dataset: self.len() });
        }
        options.scaling.check(self.image_shape()[0])?;
        let preparation = Preparation {
            data: self.clone(),
            order: sampler.epoch(epoch),
            epoch: epoch as u64,
            augment: options.augment,
            scaling: options.scaling.clone(),
            seed: sampler.config().seed,
        };
        let steps = first_step.min(sampler.steps())..sampler.steps();
        Ok(Batches {
            remaining: steps.len(),
            shape: self.image_shape(),
            device: options.device.clone(),
            dtype: options.dtype,
            prepared: Prefetch::new(
                steps.map(move |step| preparation.step(step)),
                options.prefetch,
            )?,
        })
    }

    /// All samples once, in order, in batches on the CPU. The last batch may be smaller.
    ///
    /// # Errors
    /// A batch size of 0, an empty dataset, or a thread that cannot be started.
    pub fn batches(&self, batch_size: usize) -> Result<Batches> {
        let sampler = DistributedSampler::sequential(self.len(), batch_size)?;
        self.epoch_batches(&sampler, 0, &BatchOptions::default())
    }
}

impl Batches {
    /// The number of remaining steps.
    pub fn remaining(&self) -> usize {
        self.remaining
    }
}

impl Iterator for Batches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        let prepared = self.prepared.next()?;
        self.remaining = self.remaining.saturating_sub(1);
        Some(prepared.and_then(|prepared| {
            let Batch { xs, ys } = prepared.into_batch(self.shape, &self.device)?;
            Ok(Batch { xs: xs.to_dtype(self.dtype)?, ys })
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.remaining)) // if the thread panics, there are fewer
    }
}

/// The data and options of the background thread.
struct Preparation {
    data: ImageDataset,
    order: EpochOrder,
    epoch: u64,
    augment: Option<Augmentation>,
    scaling: Scaling,
    seed: u64,
}

impl Preparation {
    fn step(&self, step: usize) -> Prepared {
        let samples = self.order.batch(step);
        let bytes = self.data.image_bytes();
        let mut xs = Vec::with_capacity(samples.len() * bytes);
        let mut ys = Vec::with_capacity(samples.len());
        let mut augmented = vec![0; bytes];
        for &sample in &samples {
            // Sampler and data have the same length, so both values always exist.
            let sample = sample as usize;
            let (Some((image, label)), Some(row)) = (self.data.get(sample), self.data.row(sample))
            else {
                continue;
            };
            let image = match self.augment {
                Some(augment) => {
                    let transform = augment.draw(self.seed, self.epoch, row as u64);
                    transform.apply(image, self.data.image_shape(), &mut augmented);
                    &augmented
                }
                None => image,
            };
            self.scaling.extend(&mut xs, image);
            ys.push(label);
        }
        Prepared { xs, ys }
    }
}

/// A batch prepared by the background thread.
struct Prepared {
    xs: Vec<f32>,
    ys: Vec<u32>,
}

impl Prepared {
    fn into_batch(self, [channels, height, width]: [usize; 3], device: &Device) -> Result<Batch> {
        let count = self.ys.len();
        // CUDA cannot allocate 0 bytes.
        let device = if count == 0 { &Device::Cpu } else { device };
        let xs = Tensor::from_vec(self.xs, (count, channels, height, width), device)?;
        let ys = Tensor::from_vec(self.ys, count, device)?;
        Ok(Batch { xs, ys })
    }
}
