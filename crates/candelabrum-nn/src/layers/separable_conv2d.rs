//! Depthwise separable convolution (Chollet, *Xception*, 2017, arXiv:1610.02357).

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{BatchNorm2d, Conv2d, check_features, sizes};
use crate::{Activation, Init, Scope};

/// `(N, C, H, W) -> (N, out_channels, H', W')`: a convolution of each channel alone, and then a 1×1 convolution
/// over the channels. SINGA's `SeparableConv2d`: no activation between the two, and no biases.
///
/// The parameters are `conv1.weight` `(C, 1, K, K)` and `pointwise.weight` `(out, C, 1, 1)`, the names of Xception
/// in PyTorch, and with biases `conv1.bias` and `pointwise.bias`. The first input determines the number of input
/// channels. Both weights start as those of [`Conv2d`].
#[derive(Debug)]
pub struct SeparableConv2d {
    scope: Scope,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    bias: bool,
    /// The distributions of the depthwise and of the pointwise weight.
    inits: Option<[Init; 2]>,
    pointwise: Conv2d,
    depthwise: OnceCell<(usize, Conv2d)>,
}

impl SeparableConv2d {
    /// A depthwise convolution by kernels of `kernel` × `kernel` with stride 1 and no padding, and `out_channels`
    /// pointwise kernels.
    pub fn new(scope: &Scope, out_channels: usize, kernel: usize) -> Self {
        Self {
            scope: scope.clone(),
            kernel,
            stride: 1,
            padding: 0,
            dilation: 1,
            bias: false,
            inits: None,
            pointwise: Conv2d::new(&scope.pp("pointwise"), out_channels, 1).no_bias(),
            depthwise: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Step of the depthwise kernel, in pixels.
        stride(stride: usize) => layer.stride = stride;
        /// Zeros added on each side before the depthwise convolution, in pixels.
        padding(padding: usize) => layer.padding = padding;
        /// Distance between the depthwise kernel's elements, in pixels.
        dilation(dilation: usize) => layer.dilation = dilation;
        /// Gives both convolutions a bias.
        bias() => {
            layer.bias = true;
            layer.pointwise = layer.pointwise.with_bias();
        };
        /// The distributions of the initial values of the depthwise and of the pointwise weight.
        init(depthwise: Init, pointwise: Init) => {
            layer.inits = Some([depthwise, pointwise]);
            layer.pointwise = layer.pointwise.init(pointwise);
        };
        /// Applies `activation` to the output, fused into the pointwise convolution.
        activation(activation: Activation) => layer.pointwise = layer.pointwise.activation(activation);
    }

    /// `self(norm(xs))`, with the normalisation and the depthwise convolution in one operation, which keeps less
    /// memory for the backward pass: [`BatchNorm2d::forward_conv`].
    ///
    /// # Errors
    /// Those of both layers.
    pub fn forward_normalised(&self, xs: &Tensor, norm: &BatchNorm2d) -> Result<Tensor> {
        self.pointwise.forward(&norm.forward_conv(xs, self.depthwise(xs)?)?)
    }

    /// The depthwise convolution. The first call makes it for the channels of `xs`.
    fn depthwise(&self, xs: &Tensor) -> Result<&Conv2d> {
        let [_, channels, _, _] = sizes(&self.scope, xs, "(N, C, H, W)")?;
        let (expected, depthwise) = self.depthwise.get_or_init(|| {
            let mut conv = Conv2d::new(&self.scope.pp("conv1"), channels, self.kernel)
                .stride(self.stride)
                .padding(self.padding)
                .dilation(self.dilation)
                .groups(channels);
            if !self.bias {
                conv = conv.no_bias();
            }
            if let Some([init, _]) = self.inits {
                conv = conv.init(init);
            }
            (channels, conv)
        });
        check_features(&self.scope, "channels", *expected, channels)?;
        Ok(depthwise)
    }
}

impl Module for SeparableConv2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.pointwise.forward(&self.depthwise(xs)?.forward(xs)?)
    }
}
