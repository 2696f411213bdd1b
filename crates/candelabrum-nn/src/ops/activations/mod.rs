//! Activations as separate operations, one pass over memory each.
//!
//! ```text
//! relu       max(x, 0)
//! relu6      min(max(x, 0), 6)
//! gelu       x Phi(x) = x / 2 (1 + erf(x / sqrt(2)))
//! gelu_tanh  x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
//! silu       x sigmoid(x)
//! sigmoid    1 / (1 + e^-x)
//! tanh       (e^x - e^-x) / (e^x + e^-x)
//! ```
//!
//! relu, relu6, sigmoid and tanh compute their derivative from the result, the other activations from the
//! input. At infinities and NaN all results are PyTorch's: `silu(-inf)`, for instance, is NaN.

pub(super) mod gpu;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

use candle_core::{Result, Tensor};

use crate::activation::Activation;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::elementwise::{activated, activation_gradient};
use crate::kernels::float::Float;
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;

/// `max(x, 0)`, element by element. NaN stays NaN. The gradient at exactly 0 is 0, as in PyTorch
/// (candle passes it).
///
/// # Errors
///
/// If `xs` has no float type.
pub fn relu(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Relu)
}

/// `min(max(x, 0), 6)`, element by element (Howard and others, 2017, arXiv:1704.04861). NaN stays NaN.
/// The gradient at exactly 0, at exactly 6 and at NaN is 0, as in PyTorch.
///
/// # Errors
///
/// If `xs` has no float type.
pub fn relu6(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Relu6)
}

/// `x Phi(x)` with the normal distribution's `Phi`, exact by the error function (Hendrycks and
/// Gimpel, 2016, arXiv:1606.08415).
///
/// # Errors
///
/// If `xs` has no float type.
pub fn gelu(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Gelu)
}

/// [`gelu`] approximated by tanh, as in section 2 of the same paper.
///
/// # Errors
///
/// If `xs` has no float type.
pub fn gelu_tanh(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::GeluTanh)
}

/// `x sigmoid(x)` (Elfwing, Uchibe and Doya, 2017, arXiv:1702.03118).
///
/// # Errors
///
/// If `xs` has no float type.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Silu)
}

/// `1 / (1 + e^-x)`.
///
/// # Errors
///
/// If `xs` has no float type.
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Sigmoid)
}

/// The hyperbolic tangent.
///
/// # Errors
///
/// If `xs` has no float type.
pub fn tanh(xs: &Tensor) -> Result<Tensor> {
    run(xs, Activation::Tanh)
}

/// Applies the activation, if there is one.
pub(super) fn apply(xs: Tensor, activation: Option<Activation>) -> Result<Tensor> {
    let Some(activation) = activation else { return Ok(xs) };
    run(&xs, activation)
}

/// Applies the activation, if there is one, by candle's own operations.
pub(super) fn composite(xs: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
    let Some(activation) = activation.filter(|_| xs.elem_count() > 0) else {
        return Ok(xs.clone()); // candle's comparisons on a GPU refuse to work on nothing.
    };
    let x = &fused::widen(xs)?;
    let ys = match activation {
        // The backward of candle's own relu passes the gradient at exactly 0.
        Activation::Relu => x.le(0.0)?.where_cond(&x.zeros_like()?, x),
        // The backward of candle's own clamp passes half of the gradient at exactly 0 and at exactly 6.
        Activation::Relu6 => {
            let (low, high) = (x.zeros_like()?, x.ones_like()?.affine(6.0, 0.0)?);
            let outside =
                x.le(0.0)?.where_cond(&low, &x.ge(6.0)?.where_cond(&high, &x.detach())?)?;
            (x.gt(0.0)? * x.lt(6.0)?)?.where_cond(x, &outside)
        }
        // The backward of candle's own gelu rounds its factors to six digits.
        Activation::Gelu => (x * 0.5)? * ((x * FRAC_1_SQRT_2)?.erf()? + 1.0)?,
        Activation::GeluTanh => {
            let inner = (x + (((x * 0.044_715)? * x)? * x)?)?;
            (x * 0.5)? * ((inner * (SQRT_2 * FRAC_2_SQRT_PI / 2.0))?.tanh()? + 1.0)?
        }
        Activation::Silu => x * candle_nn::ops::sigmoid(x)?,
        Activation::Sigmoid => candle_nn::ops::sigmoid(x),
        Activation::Tanh => x.tanh(),
    };
    ys?.to_dtype(xs.dtype())
}

fn run(xs: &Tensor, activation: Activation) -> Result<Tensor> {
    fused::run(activation, xs.shape(), &[Some(xs)])
}

impl FusedOp for Activation {
    const NAME: &'static str = "activation";

    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn reads(&self) -> BackwardReads {
        if self.needs_input() {
            BackwardReads::inputs(&[0])
        } else {
            BackwardReads::NOTHING.and_output(true)
        }
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        in_blocks(ys, |start, ys| activated(&inputs[0][start..], ys, *self));
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let reference = if self.needs_input() { pass.inputs[0] } else { pass.ys };
        let dys = &*pass.dys;
        in_blocks(dxs, |start, dxs| {
            let block = start..start + dxs.len();
            activation_gradient(dxs, &dys[block.clone()], &reference[block], *self);
        });
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        composite(xs, Some(*self))
    }
}
