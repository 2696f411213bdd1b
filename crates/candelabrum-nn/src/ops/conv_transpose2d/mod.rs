//! 2-d transposed convolution with bias and activation (Dumoulin and Visin, 2016, arXiv:1603.07285, chapter 4).
//!
//! The forward pass is the gradient of a convolution by its images, and the backward pass is that convolution:
//!
//! ```text
//! forward    y  = act(b + conv_dx(w, x))      conv: (N, O, OH, OW) -> (N, C, H, W), with the same weight
//! backward   dz = dy act'(z)    db = sum(dz)    dx = conv(dz, w)    dw = conv_dw(dz, x)
//! ```
//!
//! So all products are those of [`conv2d`](super::conv2d()), by whichever algorithm suits the sizes.

mod gpu;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::activations;
use super::conv2d::{Conv2dConfig, Conv2dOp, Gradients, Images, add_channel_sums};
use super::sizes::sizes;
use super::unfold::fold;
use crate::activation::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::{activate, activation_backward_in_blocks, bias_activation};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "conv_transpose2d";

/// The options of a 2-d transposed convolution, each pair as (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvTranspose2dConfig {
    /// The step between the windows of two elements of the input.
    pub stride: (usize, usize),
    /// Rows and columns that are cut off at both sides of the result.
    pub padding: (usize, usize),
    /// Rows and columns added at one side of the result. Fewer than the stride: of the sizes that a
    /// convolution maps to the size of the input, they choose one.
    pub output_padding: (usize, usize),
    /// The step between two elements of a window.
    pub dilation: (usize, usize),
    /// The number of independent transposed convolutions into which the channels are split.
    pub groups: usize,
}

impl Default for ConvTranspose2dConfig {
    fn default() -> Self {
        Self {
            stride: (1, 1),
            padding: (0, 0),
            output_padding: (0, 0),
            dilation: (1, 1),
            groups: 1,
        }
    }
}

/// `act(transposed conv(xs, weight) + bias)`, PyTorch's `conv_transpose2d`.
///
/// # Shapes
///
/// `xs` (N, C, H, W), `weight` (C, O / groups, KH, KW), `bias` (O) -> (N, O, OH, OW) with
/// `OH = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1`.
///
/// # Errors
///
/// If the shapes, dtypes or the configuration do not fit together, or the dtype is no float.
///
/// # Cost
///
/// That of the convolution which maps the result to the input, and a copy of the input.
pub fn conv_transpose2d(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: ConvTranspose2dConfig,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let (op, shape) = ConvTranspose2dOp::new(xs.shape(), weight.shape(), config, activation)?;
    if let Some(bias) = bias.filter(|bias| bias.dims() != [op.outputs()]) {
        bail!("{NAME}: bias of shape {:?} for {} outputs", bias.shape(), op.outputs());
    }
    fused::run(op, shape, &[Some(xs), Some(weight), bias])
}

pub(super) struct ConvTranspose2dOp {
    /// The convolution whose images are the result, and whose result is the input.
    pub(super) conv: Conv2dOp,
    pub(super) activation: Option<Activation>,
}

impl ConvTranspose2dOp {
    /// The operation for an input and a weight of these shapes, and the shape of its result.
    fn new(
        xs: &Shape,
        weight: &Shape,
        config: ConvTranspose2dConfig,
        activation: Option<Activation>,
    ) -> Result<(Self, Shape)> {
        let [batch, channels, height, width] = sizes(NAME, "input", xs, "(N, C, H, W)")?;
        let [inputs, per_group, kernel_height, kernel_width] =
            sizes(NAME, "weight", weight, "(C, out / groups, KH, KW)")?;
        let ConvTranspose2dConfig { stride, padding, output_padding, dilation, groups } = config;
        if [stride.0, stride.1, dilation.0, dilation.1, groups].contains(&0) {
            bail!("{NAME}: stride, dilation and groups must be positive, got {config:?}");
        }
        if output_padding.0 >= stride.0 || output_padding.1 >= stride.1 {
            bail!("{NAME}: output_padding must be smaller than the stride, got {config:?}");
        }
        if inputs != channels || channels % groups != 0 {
            bail!(
                "{NAME}: weight of shape {weight:?} does not fit input of shape {xs:?} in {groups} group(s)"
            );
        }
        let sides = [
            TransposedSide {
                size: height,
                kernel: kernel_height,
                stride: stride.0,
                dilation: dilation.0,
            }
            .out(padding.0, output_padding.0),
            TransposedSide {
                size: width,
                kernel: kernel_width,
                stride: stride.1,
                dilation: dilation.1,
            }
            .out(padding.1, output_padding.1),
        ];
        let [Some(out_height), Some(out_width)] = sides else {
            bail!(
                "{NAME}: nothing is left of the result for input {xs:?}, weight {weight:?} and {config:?}"
            );
        };
        let shape = Shape::from((batch, per_group * groups, out_height, out_width));
        let config = Conv2dConfig { stride, padding, dilation, groups };
        let (conv, back) = Conv2dOp::new(&shape, weight, None, config, None)?;
        if back.dims() != xs.dims() {
            bail!(
                "{NAME}: input {xs:?} is not the convolution of a result {shape:?}, this is a bug"
            );
        }
        Ok((Self { conv, activation }, shape))
    }

    /// The number of channels of the result.
    fn outputs(&self) -> usize {
        self.conv.geometry.in_channels
    }

    /// The number of pixels of a channel of the result.
    pub(super) fn plane(&self) -> usize {
        self.conv.geometry.in_size.0 * self.conv.geometry.in_size.1
    }

    /// The activation, if its derivative is computed from its input.
    fn late(&self) -> Option<Activation> {
        self.activation.filter(|activation| activation.needs_input())
    }

    fn add_bias<T: Float>(&self, ys: &mut [T], bias: &[T], activation: Option<Activation>) {
        if bias.is_empty() {
            return in_blocks(ys, |_, ys| activate(ys, activation));
        }
        let threads = worth_threads(ys.len());
        for_each(threads, ys.par_chunks_mut(self.plane()).enumerate(), |(number, ys)| {
            bias_activation(ys, bias[number % bias.len()], activation);
        });
    }
}

/// A transposed convolution along its rows or along its columns.
struct TransposedSide {
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
}

impl TransposedSide {
    /// The size of the result. `None` if nothing is left of it, or the size is no number.
    fn out(&self, padding: usize, output_padding: usize) -> Option<usize> {
        let windows = self.size.checked_sub(1)?.checked_mul(self.stride)?;
        let window = self.kernel.checked_sub(1)?.checked_mul(self.dilation)?;
        let whole = windows.checked_add(window)?.checked_add(output_padding)?.checked_add(1)?;
        whole.checked_sub(padding.checked_mul(2)?).filter(|&size| size > 0)
    }
}

impl FusedOp for ConvTranspose2dOp {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        BackwardReads::inputs(&[0, 1]).and_output(self.activation.is_some_and(|a| !a.needs_input()))
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let gradients = Gradients { dxs: Some(&mut *ys), dw: None, db: None };
        let mut xs = Pooled::copy_of(xs); // The backward of a convolution may overwrite it.
        self.conv.differentiate(Images::none(), [weight, &[]], (&[], &mut xs), gradients);
        let Some(late) = self.late() else {
            self.add_bias(ys, bias, self.activation);
            return Ok(Pooled::none());
        };
        self.add_bias(ys, bias, None);
        let saved = Pooled::copy_of(ys);
        in_blocks(ys, |_, ys| activate(ys, Some(late)));
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let &[xs, weight, _] = inputs else { unreachable!("three inputs") };
        if let Some(activation) = self.activation {
            let reference = if self.late().is_some() { saved } else { ys };
            activation_backward_in_blocks(dys, reference, activation);
        }
        if let Some(db) = grads.take(2) {
            db.fill(T::zero());
            add_channel_sums(dys, self.plane(), db);
        }
        if let Some(dxs) = grads.take(0) {
            self.conv.convolve(Images::plain(dys), [weight, &[]], None, dxs);
        }
        if let Some(dw) = grads.take(1) {
            let gradients = Gradients { dxs: None, dw: Some(dw), db: None };
            let mut xs = Pooled::copy_of(xs);
            self.conv.differentiate(Images::plain(dys), [weight, &[]], (&[], &mut xs), gradients);
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        if self.conv.sizes().is_small_enough() { Some(self) } else { None }
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        let geometry = &self.conv.geometry;
        let (groups, batch, (height, width)) = (geometry.groups, geometry.batch, geometry.out_size);
        let (inputs, (kh, kw)) = (geometry.out_channels / groups, geometry.kernel);
        let outputs = geometry.in_channels / groups;
        let xs_by_pixel = xs
            .reshape((batch, groups, inputs, height * width))?
            .permute((1, 0, 3, 2))?
            .reshape((groups, batch * height * width, inputs))?;
        let weight = weight.reshape((groups, inputs, outputs * kh * kw))?;
        // The sum of several windows' elements is one for which 16 bits are too few.
        let windows = fused::widen(&xs_by_pixel.matmul(&weight)?)?
            .reshape(&[groups, batch, height, width, outputs, kh, kw][..])?
            .permute([1, 0, 4, 5, 2, 6, 3])? // (N, G, O/G, KH, H, KW, W)
            .reshape(&[batch, geometry.in_channels, kh, height, kw, width][..])?;
        let mut ys = fold(&windows, geometry.axes(), geometry.in_size)?;
        if let Some(bias) = bias {
            ys = ys.broadcast_add(&fused::widen(bias)?.reshape((geometry.in_channels, 1, 1))?)?;
        }
        activations::composite(&ys, self.activation)?.to_dtype(xs.dtype())
    }
}
