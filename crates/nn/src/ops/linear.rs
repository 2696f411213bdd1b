//! Fully connected layer with bias and activation in one pass.
//!
//! ```text
//! forward    y  = act(x w^T + b)
//! backward   dz = dy * act'(z)      dx = dz w      dw = dz^T x      db = column sums of dz
//! ```
//!
//! The backward takes `act'` from the saved result.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};

use super::elementwise::{activate, activation_backward, add_assign, bias_row_activation};
use super::float::{Float, cpu_slice, for_float, with_slices};
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
    let op = Linear { inputs, outputs, activation };
    let (xs, weight) = (xs.contiguous()?, weight.contiguous()?);
    match bias {
        None => xs.apply_op2(&weight, op),
        Some(bias) => {
            if bias.dims() != [outputs] {
                bail!("{NAME}: bias of shape {:?} for {outputs} outputs", bias.shape());
            }
            xs.apply_op3(&weight, &bias.contiguous()?, op)
        }
    }
}

struct Linear {
    inputs: usize,
    outputs: usize,
    activation: Option<Activation>,
}

/// The gradients of input, weight and bias.
type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl Linear {
    fn forward<T: Float>(
        &self,
        xs: &[T],
        xs_shape: &Shape,
        weight: &[T],
        bias: Option<&[T]>,
    ) -> (CpuStorage, Shape) {
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
        (T::to_cpu_storage_owned(ys), Shape::from(dims))
    }

    fn backward<T: Float>(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<Gradients> {
        let dys = dys.contiguous()?;
        let (dx, dw, db) =
            with_slices([xs, weight, ys, &dys], NAME, |[x, w, y, dy]: [&[T]; 4]| {
                let masked;
                let dz = match self.activation {
                    None => dy,
                    Some(activation) => {
                        masked = masked_gradient(dy, y, activation);
                        &masked
                    }
                };
                let rows = dz.len() / self.outputs.max(1);
                let dz_mat = Mat::new(dz, rows, self.outputs);
                let dx = xs.track_op().then(|| {
                    let mut dx = vec![T::zero(); x.len()];
                    let w = Mat::new(w, self.outputs, self.inputs);
                    matmul(&mut dx, Dst::Overwrite, dz_mat, w, all_threads());
                    dx
                });
                let dw = weight.track_op().then(|| {
                    let mut dw = vec![T::zero(); w.len()];
                    let x = Mat::new(x, rows, self.inputs);
                    matmul(&mut dw, Dst::Overwrite, dz_mat.t(), x, all_threads());
                    dw
                });
                let db = bias.is_some_and(Tensor::track_op).then(|| {
                    let mut db = vec![T::zero(); self.outputs];
                    for row in dz.chunks_exact(self.outputs.max(1)) {
                        add_assign(&mut db, row);
                    }
                    db
                });
                Ok((dx, dw, db))
            })?;
        let tensor = |data: Option<Vec<T>>, shape: &Shape| {
            data.map(|data| Tensor::from_vec(data, shape, xs.device())).transpose()
        };
        Ok((
            tensor(dx, xs.shape())?,
            tensor(dw, weight.shape())?,
            tensor(db, &Shape::from(self.outputs))?,
        ))
    }
}

fn masked_gradient<T: Float>(dys: &[T], ys: &[T], activation: Activation) -> Vec<T> {
    let mut dzs = vec![T::zero(); ys.len()];
    activation_backward(&mut dzs, dys, ys, activation);
    dzs
}

/// Without bias.
impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_float!(xs.dtype(), NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, NAME)?;
            Ok(self.forward(xs, xs_layout.shape(), weight, None))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, _) = for_float!(xs.dtype(), NAME, T => {
            self.backward::<T>(xs, weight, None, ys, dys)
        })?;
        Ok((dx, dw))
    }
}

/// With bias.
impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_float!(xs.dtype(), NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, NAME)?;
            let bias = cpu_slice::<T>(bias, bias_layout, NAME)?;
            Ok(self.forward(xs, xs_layout.shape(), weight, Some(bias)))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<Gradients> {
        for_float!(xs.dtype(), NAME, T => {
            self.backward::<T>(xs, weight, Some(bias), ys, dys)
        })
    }
}
