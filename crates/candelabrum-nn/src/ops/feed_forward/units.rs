//! What a feed-forward branch computes of its hidden layer.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use crate::activation::Activation;
use crate::kernels::elementwise::{activated, activated_again};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::ops::activations;
use crate::ops::swiglu::{self, gate, gate_backward, swiglu};

/// What a feed-forward branch computes of the results `z` of its first layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenUnits {
    /// The activation of each element.
    Activation(Activation),
    /// [`swiglu`](super::super::swiglu()): the first half of each row gates the second one.
    SwiGlu,
}

impl HiddenUnits {
    /// The number of results of the first layer for so many hidden units.
    pub fn inputs(self, hidden: usize) -> usize {
        match self {
            Self::Activation(_) => hidden,
            Self::SwiGlu => 2 * hidden,
        }
    }

    /// As an operation of its own.
    pub(crate) fn apply(self, zs: Tensor) -> Result<Tensor> {
        match self {
            Self::Activation(activation) => activations::apply(zs, Some(activation)),
            Self::SwiGlu => swiglu(&zs),
        }
    }

    /// In candle's operations.
    pub(super) fn composite(self, zs: &Tensor, hidden: usize) -> Result<Tensor> {
        match self {
            Self::Activation(activation) => activations::composite(zs, Some(activation)),
            Self::SwiGlu => swiglu::composite(zs, hidden),
        }
    }

    /// Writes rows of `hidden` units.
    pub(super) fn forward<T: Float>(self, zs: &[T], hidden: usize, hs: &mut [T]) {
        let threads = worth_threads(hs.len());
        let rows = hs.par_chunks_mut(hidden).zip(zs.par_chunks(self.inputs(hidden)));
        for_each(threads, rows, |(h, z)| match self {
            Self::Activation(activation) => activated(z, h, activation),
            Self::SwiGlu => gate(z, h),
        });
    }

    /// Writes rows of `hidden` units again, and their gradients `dhs` become those of `zs`, which need more
    /// place for SwiGLU: `dzs`. Returns the gradients.
    pub(super) fn backward<'a, T: Float>(
        self,
        zs: &[T],
        hidden: usize,
        hs: &mut [T],
        (dhs, dzs): (&'a mut [T], &'a mut [T]),
    ) -> &'a [T] {
        let threads = worth_threads(hs.len());
        let rows = hs.par_chunks_mut(hidden).zip(zs.par_chunks(self.inputs(hidden)));
        match self {
            Self::Activation(activation) => {
                let rows = rows.zip(dhs.par_chunks_mut(hidden));
                for_each(threads, rows, |((h, z), dh)| activated_again(z, h, dh, activation));
                dhs
            }
            Self::SwiGlu => {
                let gradients = dhs.par_chunks(hidden).zip(dzs.par_chunks_mut(2 * hidden));
                for_each(threads, rows.zip(gradients), |((h, z), (dh, dz))| {
                    gate(z, h);
                    gate_backward(z, dh, dz);
                });
                dzs
            }
        }
    }
}
