//! `candle_nn::group_norm` in one operation.

use candelabrum_nn::ops;
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

/// Brings each group of channels of each sample to mean 0 and variance 1, and scales each channel.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// The layer of a `weight` and a `bias`, each with a number per channel.
    ///
    /// # Errors
    /// Groups that do not divide the channels.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        // As candle's layer says it.
        candle_nn::GroupNorm::new(weight.clone(), bias.clone(), num_channels, num_groups, eps)?;
        Ok(Self { weight, bias, eps, num_channels, num_groups })
    }
}

impl Module for GroupNorm {
    /// (N, C, ..) -> (N, C, ..)
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let &[_, channels, _, ..] = xs.dims() else {
            bail!("input rank for GroupNorm should be at least 3, not {:?}", xs.shape())
        };
        if channels != self.num_channels {
            bail!("GroupNorm of {} channels on an input of {channels}", self.num_channels);
        }
        ops::group_norm(xs, self.num_groups, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// A layer with the parameters `weight` and `bias`.
///
/// # Errors
/// Those of the builder, and of [`GroupNorm::new`].
pub fn group_norm(
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    vb: VarBuilder<'_>,
) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", Init::Const(1.0))?;
    let bias = vb.get_with_hints(num_channels, "bias", Init::Const(0.0))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
