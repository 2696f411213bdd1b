//! 1-d convolution with bias and a fused activation.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{LayerWeights, check_features, check_groups, described, sizes};
use crate::ops::{self, Conv1dConfig};
use crate::{Activation, Init, Scope};

/// `(N, C, L) -> (N, out_channels, L')`: [`Conv2d`](super::Conv2d) for sequences, text or sound.
///
/// The first input determines the number of input channels. The weight `(out, C / groups, K)` starts
/// Glorot-normal over `C / groups · K` inputs and `out` outputs, as that of `Conv2d`, the bias at zero.
#[derive(Debug)]
pub struct Conv1d {
    scope: Scope,
    out_channels: usize,
    kernel: usize,
    config: Conv1dConfig,
    bias: bool,
    init: Option<Init>,
    activation: Option<Activation>,
    weights: OnceCell<LayerWeights>,
}

impl Conv1d {
    /// `out_channels` kernels of `kernel` positions, with stride 1, no padding, and a bias.
    pub fn new(scope: &Scope, out_channels: usize, kernel: usize) -> Self {
        Self {
            scope: scope.clone(),
            out_channels,
            kernel,
            config: Conv1dConfig::default(),
            bias: true,
            init: None,
            activation: None,
            weights: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Step of the kernel, in positions.
        stride(stride: usize) => layer.config.stride = stride;
        /// Zeros added at each end, in positions.
        padding(padding: usize) => layer.config.padding = padding;
        /// Distance between the kernel's elements, in positions.
        dilation(dilation: usize) => layer.config.dilation = dilation;
        /// Splits input and output channels into `groups`. Each group of outputs uses one group of
        /// inputs.
        groups(groups: usize) => layer.config.groups = groups;
        /// Makes a layer without bias.
        no_bias() => layer.bias = false;
        /// The distribution of the weight's initial values.
        init(init: Init) => layer.init = Some(init);
        /// Applies `activation` to the output, fused into the convolution.
        activation(activation: Activation) => layer.activation = Some(activation);
    }

    weights! {}

    fn create(&self, channels: usize) -> Result<LayerWeights> {
        let groups = check_groups(&self.scope, channels, self.config.groups)?;
        let fan_in = channels / groups * self.kernel;
        let shape = [self.out_channels, channels / groups, self.kernel];
        let init = self.init.unwrap_or_else(|| Init::glorot_normal(fan_in, self.out_channels));
        LayerWeights::new(&self.scope, (&shape, self.out_channels), init, self.bias)
    }
}

impl Module for Conv1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [_, channels, _] = sizes(&self.scope, xs, "(N, C, L)")?;
        let weights = self.weights.get_or_try_init(|| self.create(channels))?;
        let expected = weights.weight.variable().dim(1)? * self.config.groups;
        check_features(&self.scope, "channels", expected, channels)?;
        let (weight, bias) = weights.pair();
        let ys = ops::conv1d(xs, weight, bias, self.config, self.activation)?;
        self.scope.trace(&described(format!("Conv1d {}", self.kernel), self.activation), &ys);
        Ok(ys)
    }
}
