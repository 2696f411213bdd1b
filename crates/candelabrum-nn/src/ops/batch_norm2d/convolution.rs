//! A batch normalisation and the convolution of its result, as one operation.
//!
//! ```text
//! forward    h = act(norm(x))     y = conv(h)
//! backward   h again              dh, dw = conv'(h, dy)      dx = norm'(x, dh)
//! ```
//!
//! Of the two inputs `x` and `h` that two operations keep for the backward pass, only `x` is kept. The backward
//! computes `h` again, as checkpoints of activations do (Chen et al., 2016, arXiv:1604.06174). Networks of
//! convolutions and normalisations spend most of their memory on these two. An algorithm that reads one channel
//! or one image at a time normalises it then, so that `h` never exists as a whole.

use candle_core::{Result, Tensor};

use super::BatchNorm2dOp;
use super::arguments::{BatchNorm, normalise};
use crate::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, InputGradients};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::ops::activations;
use crate::ops::conv2d::{Conv2dConfig, Conv2dOp, Gradients, Images, conv2d};
use crate::params::is_half;

/// [`conv2d`](crate::ops::conv2d()) of [`batch_norm2d`](crate::ops::batch_norm2d()). On a GPU, in f16 and bf16,
/// and for a normalisation by another activation than ReLU and ReLU6, these are two operations.
///
/// # Shapes
///
/// `xs` (N, C, H, W), `weight` (O, C / groups, KH, KW), `bias` (O) -> (N, O, OH, OW), see
/// [`conv2d`](crate::ops::conv2d()).
///
/// # Cost
///
/// The backward computes the normalised values again instead of keeping them.
///
/// # Errors
///
/// Those of the two operations.
pub fn batch_norm2d_conv2d(
    xs: &Tensor,
    norm: BatchNorm<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: Conv2dConfig,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let first = BatchNorm2dOp::new(xs.shape(), norm, false)?;
    let is_fused = norm.config.activation.is_none() || first.rectifier.is_some();
    if !is_fused || !xs.device().is_cpu() || is_half(xs.dtype()) {
        return conv2d(&normalise(xs, norm, None)?, weight, bias, config, activation);
    }
    let late = activation.filter(|activation| activation.needs_input());
    let activation = activation.filter(|activation| !activation.needs_input());
    let (second, shape) = Conv2dOp::new(xs.shape(), weight.shape(), bias, config, activation)?;
    let [mean, variance] = norm.statistics().map(|tensor| tensor.filter(|_| !norm.config.training));
    let inputs =
        [Some(xs), norm.weight, norm.bias, mean.as_ref(), variance.as_ref(), Some(weight), bias];
    let op = BatchNorm2dConv2d { norm: first, conv: second };
    activations::apply(fused::run(op, shape, &inputs)?, late)
}

struct BatchNorm2dConv2d {
    norm: BatchNorm2dOp,
    conv: Conv2dOp,
}

impl BatchNorm2dConv2d {
    /// The normalised images.
    fn images<'a, T: Float>(&self, xs: &'a [T], lines: &'a [T]) -> Images<'a, T> {
        Images::normalised(xs, self.norm.geometry.plane, lines, self.norm.rectifier)
    }
}

/// Among the inputs, those of the convolution follow those of the normalisation.
const WEIGHT: usize = 5;
const BIAS: usize = 6;

impl FusedOp for BatchNorm2dConv2d {
    const NAME: &'static str = "batch_norm2d_conv2d";

    fn reads(&self) -> BackwardReads {
        BackwardReads::inputs(&[0, WEIGHT as u32]).and_output(self.conv.reads().output)
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let lines = self.norm.lines_alone(&inputs[..WEIGHT])?;
        let images = self.images(inputs[0], &lines);
        let of_conv = [inputs[WEIGHT], inputs[BIAS]];
        let cropped = self.conv.convolve(images, of_conv, self.conv.activation, ys);
        if cropped.is_empty() {
            return Ok(lines);
        }
        let mut saved = Pooled::new(lines.len() + cropped.len());
        saved[..lines.len()].copy_from_slice(&lines);
        saved[lines.len()..].copy_from_slice(&cropped);
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let (lines, cropped) = saved.split_at(saved.len() - self.conv.cropped());
        let (xs, weight) = (inputs[0], inputs[WEIGHT]);
        let [dxs, dw, db] = [0, 1, 2].map(|number| grads.take(number));
        // The normalised values' gradient takes the place of the input's, if there is one.
        let needs_dxs = dxs.is_some();
        let is_last = !needs_dxs && dw.is_none() && db.is_none();
        let mut memory = Pooled::new(if needs_dxs || is_last { 0 } else { xs.len() });
        let dhs = dxs.unwrap_or(&mut memory);
        let gradients = Gradients {
            dxs: (!is_last).then_some(&mut *dhs),
            dw: grads.take(WEIGHT),
            db: grads.take(BIAS),
        };
        self.conv.differentiate(self.images(xs, lines), [weight, cropped], (ys, dys), gradients);
        if is_last {
            return Ok(());
        }
        self.norm.backward(Backward {
            inputs: &[xs],
            ys: &[],
            saved: lines,
            dys: dhs,
            is_passed: needs_dxs,
            grads: InputGradients::new([None, dw, db]),
        })
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let (of_norm, of_conv) = inputs.split_at(WEIGHT);
        let [Some(xs), ..] = of_norm else { unreachable!("seven inputs") };
        let hs = self.norm.by_candle(&[of_norm, &[None]].concat())?.reshape(xs.shape())?;
        if hs.elem_count() == 0 {
            return Ok(hs); // candle's kernels on a GPU refuse to work on nothing.
        }
        self.conv.composite(&[&[Some(hs)], of_conv].concat())
    }

    fn has_effects(&self) -> bool {
        self.norm.has_effects()
    }
}
