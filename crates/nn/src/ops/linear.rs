//! Fully connected layer with bias and activation in one pass.
//!
//! ```text
//! forward    y  = act(x w^T + b)
//! backward   dz = dy * act'(z)      dx = dz w      dw = dz^T x      db = column sums of dz
//! ```
//!
//! The backward takes `act'` from the saved result.

use candle_core::{Result, Shape, Tensor, bail};

use super::affine::{self, Affine, Gradients, Wanted};
use super::elementwise::{activate, activation_backward, add_assign, bias_row_activation};
use super::float::Float;
use super::matmul::{Dst, Mat, all_threads, matmul};
use crate::activation::Activation;

const NAME: &str = "linear";

/// `act(xs weight^T + bias)`.
///
/// # Shapes
///
/// `xs` (.., in), `weight` (out, in), `bias` (out) -> (.., out).
///
/// # Errors
///
/// If shapes or dtypes do not fit together, or the dtype is neither f32 nor f64.
pub fn linear(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    if xs.dims().last() != Some(&inputs) {
        bail!("{NAME}: input of shape {:?} for a weight of {:?}", xs.shape(), weight.shape());
    }
    affine::apply(Linear { inputs, outputs, activation }, xs, weight, bias)
}

struct Linear {
    inputs: usize,
    outputs: usize,
    activation: Option<Activation>,
}

impl Affine for Linear {
    const NAME: &'static str = NAME;

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn forward<T: Float>(
        &self,
        xs: &[T],
        xs_shape: &Shape,
        weight: &[T],
        bias: Option<&[T]>,
    ) -> (Vec<T>, Shape) {
        let mut dims = xs_shape.dims().to_vec();
        dims.pop();
        let rows = dims.iter().product();
        dims.push(self.outputs);
        let mut ys = vec![T::zero(); rows * self.outputs];
        let xs = Mat::new(xs, rows, self.inputs);
        let weight = Mat::new(weight, self.outputs, self.inputs);
        matmul(&mut ys, Dst::Overwrite, xs, weight.t(), all_threads());
        match bias {
            None => activate(&mut ys, self.activation),
            Some(bias) => {
                for row in ys.chunks_exact_mut(self.outputs.max(1)) {
                    bias_row_activation(row, bias, self.activation);
                }
            }
        }
        (ys, Shape::from(dims))
    }

    fn backward<T: Float>(
        &self,
        wanted: Wanted,
        xs: &[T],
        weight: &[T],
        ys: &[T],
        dys: &[T],
    ) -> Gradients<Vec<T>> {
        let masked;
        let dz = match self.activation {
            None => dys,
            Some(activation) => {
                masked = masked_gradient(dys, ys, activation);
                &masked
            }
        };
        let rows = dz.len() / self.outputs.max(1);
        let dz_mat = Mat::new(dz, rows, self.outputs);
        let input = wanted.input.then(|| {
            let mut dx = vec![T::zero(); xs.len()];
            let weight = Mat::new(weight, self.outputs, self.inputs);
            matmul(&mut dx, Dst::Overwrite, dz_mat, weight, all_threads());
            dx
        });
        let weight = wanted.weight.then(|| {
            let mut dw = vec![T::zero(); weight.len()];
            let xs = Mat::new(xs, rows, self.inputs);
            matmul(&mut dw, Dst::Overwrite, dz_mat.t(), xs, all_threads());
            dw
        });
        let bias = wanted.bias.then(|| {
            let mut db = vec![T::zero(); self.outputs];
            for row in dz.chunks_exact(self.outputs.max(1)) {
                add_assign(&mut db, row);
            }
            db
        });
        Gradients { input, weight, bias }
    }
}

fn masked_gradient<T: Float>(dys: &[T], ys: &[T], activation: Activation) -> Vec<T> {
    let mut dzs = vec![T::zero(); ys.len()];
    activation_backward(&mut dzs, dys, ys, activation);
    dzs
}
