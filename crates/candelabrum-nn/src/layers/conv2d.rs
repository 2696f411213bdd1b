//! 2-D convolution with bias and a fused activation.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{LayerWeights, check_features, check_groups, described, sizes};
use crate::ops::{self, Conv2dConfig};
use crate::{Activation, Init, Scope};

/// `(N, C, H, W) -> (N, out_channels, H', W')`, SINGA's `Conv2d`.
///
/// The first input determines the number of input channels. The weight `(out, C / groups, KH, KW)`
/// starts Glorot-normal, the bias at zero. As in SINGA, the kernel's area counts in the fan-in
/// (`C / groups · KH · KW`) and not in the fan-out (`out`). [`init`](Self::init) chooses another
/// distribution.
#[derive(Debug)]
pub struct Conv2d {
    scope: Scope,
    out_channels: usize,
    kernel: (usize, usize),
    config: Conv2dConfig,
    bias: bool,
    init: Option<Init>,
    activation: Option<Activation>,
    weights: OnceCell<LayerWeights>,
}

impl Conv2d {
    /// `out_channels` kernels of `kernel` × `kernel`, with stride 1, no padding, and a bias.
    pub fn new(scope: &Scope, out_channels: usize, kernel: usize) -> Self {
        Self {
            scope: scope.clone(),
            out_channels,
            kernel: (kernel, kernel),
            config: Conv2dConfig::default(),
            bias: true,
            init: None,
            activation: None,
            weights: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Step of the kernel, in pixels.
        stride(stride: usize) => layer.config.stride = (stride, stride);
        /// Zeros added on each side, in pixels.
        padding(padding: usize) => layer.config.padding = (padding, padding);
        /// Distance between the kernel's elements, in pixels.
        dilation(dilation: usize) => layer.config.dilation = (dilation, dilation);
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
        let (height, width) = self.kernel;
        let fan_in = channels / groups * height * width;
        let shape = [self.out_channels, channels / groups, height, width];
        let init = self.init.unwrap_or_else(|| Init::glorot_normal(fan_in, self.out_channels));
        LayerWeights::new(&self.scope, (&shape, self.out_channels), init, self.bias)
    }
}

impl Conv2d {
    /// Undoes [`Self::no_bias`].
    pub(super) fn with_bias(self) -> Self {
        Self { bias: true, ..self }
    }
}

/// What the operation of a layer needs beside its input.
#[derive(Clone, Copy)]
pub(super) struct ConvCall<'a> {
    pub(super) weight: &'a Tensor,
    pub(super) bias: Option<&'a Tensor>,
    pub(super) config: Conv2dConfig,
    pub(super) activation: Option<Activation>,
}

impl Conv2d {
    /// Calls `f`, which computes the result of an input with the shape of `xs`.
    pub(super) fn with(
        &self,
        xs: &Tensor,
        f: impl FnOnce(ConvCall<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let [_, channels, _, _] = sizes(&self.scope, xs, "(N, C, H, W)")?;
        let weights = self.weights.get_or_try_init(|| self.create(channels))?;
        let expected = weights.weight.variable().dim(1)? * self.config.groups;
        check_features(&self.scope, "channels", expected, channels)?;
        let &Self { config, activation, .. } = self;
        let weight = weights.weight.tensor();
        let ys = f(ConvCall { weight, bias: weights.bias(), config, activation })?;
        let (height, width) = self.kernel;
        self.scope.trace(&described(format!("Conv2d {height}×{width}"), self.activation), &ys);
        Ok(ys)
    }
}

impl Module for Conv2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.with(xs, |ConvCall { weight, bias, config, activation }| {
            ops::conv2d(xs, weight, bias, config, activation)
        })
    }
}
