//! 2-d convolution with bias and activation in one pass.
//!
//! `y[n, o] = act(b[o] + sum over c, ky, kx of w[o, c, ky, kx] * x[n, c, ..])`, the
//! cross-correlation that every framework calls convolution.
//!
//! `algorithm.rs` chooses among five algorithms: Winograd for 3 × 3 weights, depthwise (one channel after the
//! other), direct (products that read the image itself), interleaved (products that read several small images
//! side by side), and im2col (products that read a matrix of patches). The backward computes the activation's
//! mask from the saved result, so the sum before the activation is never stored.

mod algorithm;
mod composite;
mod config;
mod conv;
mod depthwise;
mod direct;
mod geometry;
mod gpu;
mod im2col;
mod images;
mod interleaved;
mod phases;
mod tiles;
mod weight;
mod winograd;

pub use self::config::Conv2dConfig;

use candle_core::{Result, Shape, Tensor, bail};

use self::config::NAME;
use self::conv::Conv;
pub(super) use self::conv::{Gradients, add_channel_sums};
use self::geometry::Geometry;
pub(super) use self::images::Images;
use self::weight::{crop, uncrop};
use super::activations;
use crate::activation::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::activate;
use crate::kernels::float::Float;
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;

/// `act(conv(xs, weight) + bias)`.
///
/// # Shapes
///
/// `xs` (N, C, H, W), `weight` (O, C / groups, KH, KW), `bias` (O) -> (N, O, OH, OW) with
/// `OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1`.
///
/// # Errors
///
/// If the shapes, dtypes or the configuration do not fit together, or the dtype is no float.
///
/// # Cost
///
/// Per thread, scratch memory: for 3 × 3 kernels with stride 1 and 16 channels or more, 16 numbers for
/// each 3 × 3 elements of the weight; for other large images a copy of one image; for small images and
/// stride 1, copies of 16 images and of their results; where none of these applies, the patches of one
/// image, `C KH KW OH OW` elements, or of as many small images as have about 256 output pixels together. The gradient of `xs` is computed only if a variable lies below `xs`.
///
/// # Precision
///
/// 3 × 3 kernels with stride 1 and 16 channels or more are computed by Winograd's algorithm. In f32 its
/// rounding error differs from that of the plain sums: with numbers between -1 and 1, the root mean square
/// error of the result and of the gradient of `xs` was 0.6 times as large, that of the gradient of `weight`
/// 1.3 to 2 times. An infinite input gives NaN there, where the plain sums would be infinite.
///
/// With [products in bf16](crate::ops::set_product_precision) the root mean square error is 0.4% of the
/// values by Winograd's algorithm, whose transforms stay f32, and 0.2% by the others. Depthwise convolutions
/// stay f32.
pub fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: Conv2dConfig,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let (op, shape) = Conv2dOp::new(xs.shape(), weight.shape(), bias, config, activation)?;
    fused::run(op, shape, &[Some(xs), Some(weight), bias])
}

pub(super) struct Conv2dOp {
    pub(super) geometry: Geometry,
    pub(super) activation: Option<Activation>,
}

impl FusedOp for Conv2dOp {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        BackwardReads::inputs(&[0, 1]).and_output(self.activation.is_some_and(|a| !a.needs_input()))
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let late = self.activation.filter(|activation| activation.needs_input());
        let activation = if late.is_some() { None } else { self.activation };
        let cropped = self.convolve(Images::plain(xs), [weight, bias], activation, ys);
        if late.is_none() {
            return Ok(cropped);
        }
        let saved = Pooled::copy_of(ys);
        in_blocks(ys, |_, ys| activate(ys, late));
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let &[xs, weight, _] = inputs else { unreachable!("three inputs") };
        let late = self.activation.is_some_and(Activation::needs_input);
        let (reference, cropped) = if late { (saved, &[][..]) } else { (ys, saved) };
        let gradients = Gradients { dxs: grads.take(0), dw: grads.take(1), db: grads.take(2) };
        self.differentiate(Images::plain(xs), [weight, cropped], (reference, dys), gradients);
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        if self.sizes().is_small_enough() { Some(self) } else { None }
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        let ys = composite::convolution(&self.geometry, xs, weight)?;
        let Some(bias) = bias else { return activations::composite(&ys, self.activation) };
        // The gradient of the bias is a sum over all pixels, which 16 bits are too few for.
        let bias = fused::widen(bias)?.reshape((self.geometry.out_channels, 1, 1))?;
        let ys = fused::widen(&ys)?.broadcast_add(&bias)?;
        activations::composite(&ys, self.activation)?.to_dtype(xs.dtype())
    }
}

impl Conv2dOp {
    /// The operation for inputs and a weight of these shapes, and the shape of its result.
    pub(super) fn new(
        xs: &Shape,
        weight: &Shape,
        bias: Option<&Tensor>,
        config: Conv2dConfig,
        activation: Option<Activation>,
    ) -> Result<(Self, Shape)> {
        let geometry = Geometry::new(xs, weight, config)?;
        if let Some(bias) = bias.filter(|bias| bias.dims() != [geometry.out_channels]) {
            bail!("{NAME}: bias of shape {:?} for {} outputs", bias.shape(), geometry.out_channels);
        }
        let shape = geometry.output_shape();
        Ok((Self { geometry, activation }, shape))
    }

    /// Writes `activation(conv(xs, weight) + bias)`. The bias may be empty. Returns the weight without what
    /// meets only padding, if there is any such part.
    pub(super) fn convolve<T: Float>(
        &self,
        xs: Images<'_, T>,
        [weight, bias]: [&[T]; 2],
        activation: Option<Activation>,
        ys: &mut [T],
    ) -> Pooled<T> {
        let geometry = &self.geometry;
        let bias = (!bias.is_empty()).then_some(bias);
        let cropped = self.crop(weight);
        let weight = if geometry.is_cropped() { &*cropped } else { weight };
        Conv { geometry, weight, activation }.forward(xs, bias, ys);
        cropped
    }

    /// Writes the gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`. `cropped` is what [`Self::convolve`] returned, or empty.
    pub(super) fn differentiate<T: Float>(
        &self,
        xs: Images<'_, T>,
        [weight, cropped]: [&[T]; 2],
        (reference, dys): (&[T], &mut [T]),
        gradients: Gradients<'_, T>,
    ) {
        let Self { geometry, activation } = self;
        let again;
        let weight = match (geometry.is_cropped(), cropped.is_empty()) {
            (false, _) => weight,
            (true, false) => cropped,
            (true, true) => {
                again = self.crop(weight);
                &*again
            }
        };
        let conv = Conv { geometry, weight, activation: *activation };
        match gradients {
            Gradients { dxs, dw: Some(dw), db } if geometry.is_cropped() => {
                let mut cropped = Pooled::new(geometry.weight());
                let gradients = Gradients { dxs, dw: Some(&mut cropped), db };
                conv.backward(xs, reference, dys, gradients);
                uncrop(geometry, &cropped, dw);
            }
            gradients => conv.backward(xs, reference, dys, gradients),
        }
    }

    /// The number of elements that [`Self::convolve`] returns.
    pub(super) fn cropped(&self) -> usize {
        if self.geometry.is_cropped() { self.geometry.weight() } else { 0 }
    }

    /// The weight without the elements that meet only padding, if there are any.
    fn crop<T: Float>(&self, weight: &[T]) -> Pooled<T> {
        if !self.geometry.is_cropped() {
            return Pooled::none();
        }
        let mut cropped = Pooled::new(self.geometry.weight());
        crop(&self.geometry, weight, &mut cropped);
        cropped
    }
}
