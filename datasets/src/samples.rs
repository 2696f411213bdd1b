//! Data that a function makes, sample by sample.
//!
//! This is the shortest way to data of one's own: a function from the number of a sample to the sample,
//! called on the threads of a loader.

use std::fmt;

use crate::{
    dataset::Dataset,
    error::{Error, Result},
    pass::Pass,
    stack::Stack,
};

/// Samples that a function makes of their numbers.
///
/// ```
/// use candelabrum_datasets::{Dataset, FnDataset, Pass};
/// use candle_core::{Device, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Noisy points of a parabola. The noise is another one in each epoch.
/// let data = FnDataset::new("parabola", 1000, |sample, pass| {
///     let x = sample as f32 / 1000.0;
///     let noise = if pass.training { pass.rng(sample).uniform(-0.1, 0.1) } else { 0.0 };
///     Ok((Tensor::new(&[x], &Device::Cpu)?, x * x + noise))
/// });
/// let (xs, ys) = data.read(&[500, 0], &Pass::evaluation())?;
/// assert_eq!(xs.to_vec2::<f32>()?, [[0.5], [0.0]]);
/// assert_eq!(ys.to_vec1::<f32>()?, [0.25, 0.0]);
/// # Ok(())
/// # }
/// ```
pub struct FnDataset<F> {
    name: String,
    len: usize,
    sample: F,
}

impl<F> FnDataset<F> {
    /// `len` samples, each of which `sample` makes of its number and the pass. The name stands for the
    /// data where ranks compare them ([`Dataset::fingerprint`]): different data need different names.
    ///
    /// An error of a library becomes one of this crate's by [`Error::custom`].
    pub fn new<S: Stack>(name: impl Into<String>, len: usize, sample: F) -> Self
    where
        F: Fn(usize, &Pass) -> Result<S> + Send + Sync + 'static,
    {
        Self { name: name.into(), len, sample }
    }
}

impl<F> fmt::Debug for FnDataset<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnDataset")
            .field("name", &self.name)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<F, S> Dataset for FnDataset<F>
where
    F: Fn(usize, &Pass) -> Result<S> + Send + Sync + 'static,
    S: Stack,
{
    type Batch = S::Batch;

    fn len(&self) -> usize {
        self.len
    }

    /// An empty batch has the shape of sample 0, which is made for this.
    fn read(&self, samples: &[u32], pass: &Pass) -> Result<S::Batch> {
        let make = |sample: usize| {
            if sample >= self.len {
                return Err(Error::NoSuchSample { sample, len: self.len });
            }
            let located = |source| {
                let sample = format!("sample {sample}");
                Error::Sample { sample, source: Box::new(source) }
            };
            (self.sample)(sample, pass).map_err(located)
        };
        if samples.is_empty() {
            return S::stack_none(make(0)?);
        }
        let samples = samples.iter().map(|&sample| make(sample as usize));
        S::stack(samples.collect::<Result<_>>()?)
    }

    fn fingerprint(&self) -> Result<String> {
        Ok(format!("{} samples of {}", self.len, self.name))
    }
}
