//! 2-d transposed convolution with bias and a fused activation.

use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use super::{LayerWeights, check_features, described, sizes};
use crate::ops::{self, ConvTranspose2dConfig};
use crate::{Activation, Init, Scope};

/// `(N, C, H, W) -> (N, out_channels, H', W')`: enlarges images, as decoders and generators do
/// ([`ops::conv_transpose2d`]).
///
/// The first input determines the number of input channels. The weight `(C, out / groups, KH, KW)`, PyTorch's
/// shape, starts Glorot-normal over `C / groups · KH · KW` inputs and `out` outputs, the bias at zero.
#[derive(Debug)]
pub struct ConvTranspose2d {
    scope: Scope,
    out_channels: usize,
    kernel: usize,
    config: ConvTranspose2dConfig,
    bias: bool,
    init: Option<Init>,
    activation: Option<Activation>,
    weights: OnceCell<LayerWeights>,
}

impl ConvTranspose2d {
    /// `out_channels` kernels of `kernel` × `kernel`, with stride 1, nothing cut off, and a bias.
    pub fn new(scope: &Scope, out_channels: usize, kernel: usize) -> Self {
        Self {
            scope: scope.clone(),
            out_channels,
            kernel,
            config: ConvTranspose2dConfig::default(),
            bias: true,
            init: None,
            activation: None,
            weights: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Step from one element's window to the next, in pixels of the result.
        stride(stride: usize) => layer.config.stride = (stride, stride);
        /// Pixels cut off on each side of the result.
        padding(padding: usize) => layer.config.padding = (padding, padding);
        /// Pixels added at the lower and the right side of the result, fewer than the stride.
        output_padding(pixels: usize) => layer.config.output_padding = (pixels, pixels);
        /// Distance between the kernel's elements, in pixels.
        dilation(dilation: usize) => layer.config.dilation = (dilation, dilation);
        /// Splits input and output channels into `groups`. Each group of outputs uses one group of
        /// inputs.
        groups(groups: usize) => layer.config.groups = groups;
        /// Makes a layer without bias.
        no_bias() => layer.bias = false;
        /// The distribution of the weight's initial values.
        init(init: Init) => layer.init = Some(init);
        /// Applies `activation` to the output, fused into the operation.
        activation(activation: Activation) => layer.activation = Some(activation);
    }

    weights! {}

    fn create(&self, channels: usize) -> Result<LayerWeights> {
        let (groups, outputs, path) = (self.config.groups, self.out_channels, self.scope.path());
        let divides = |channels: usize| groups > 0 && channels.is_multiple_of(groups);
        if !divides(channels) || !divides(outputs) || outputs == 0 {
            bail!(
                "layer `{path}`: {channels} input channels and {outputs} outputs do not divide into {groups} groups"
            )
        }
        let fan_in = channels / groups * self.kernel * self.kernel;
        let init = self.init.unwrap_or_else(|| Init::glorot_normal(fan_in, outputs));
        let shape = [channels, outputs / groups, self.kernel, self.kernel];
        LayerWeights::new(&self.scope, (&shape, outputs), init, self.bias)
    }
}

impl Module for ConvTranspose2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [_, channels, _, _] = sizes(&self.scope, xs, "(N, C, H, W)")?;
        let weights = self.weights.get_or_try_init(|| self.create(channels))?;
        check_features(&self.scope, "channels", weights.weight.variable().dim(0)?, channels)?;
        let (weight, bias) = weights.pair();
        let ys = ops::conv_transpose2d(xs, weight, bias, self.config, self.activation)?;
        let kind = format!("ConvTranspose2d {0}×{0}", self.kernel);
        self.scope.trace(&described(kind, self.activation), &ys);
        Ok(ys)
    }
}
