//! Inputs with their labels: the batch of most datasets.

use candle_core::{DType, Device, Tensor};

use crate::{collate::Collated, error::Result};

/// The inputs and labels of one step on one rank.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Inputs, (B, ..). Images are (B, C, H, W).
    pub xs: Tensor,
    /// Labels. Those of classes are (B,), u32.
    pub ys: Tensor,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        Collated::len(&self.ys)
    }

    /// Whether this rank has no samples in this step. This happens at the end of an evaluation with
    /// [`Remainder::Keep`](crate::Remainder::Keep). The tensors of an empty batch are on the CPU,
    /// whatever the device, so check this before you use them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Collated for Batch {
    fn len(&self) -> usize {
        self.len()
    }

    fn to(self, device: &Device, dtype: DType) -> Result<Self> {
        let (xs, ys) = (self.xs, self.ys).to(device, dtype)?;
        Ok(Self { xs, ys })
    }
}
