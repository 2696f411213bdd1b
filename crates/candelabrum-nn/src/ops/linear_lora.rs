//! A fully connected layer with a low-rank adapter (Hu et al., arXiv:2106.09685), in one operation.
//!
//! ```text
//! forward    h = s x a^T          y = r + x w^T + bias + h b^T
//! backward   dh = s dy b          dx = dy w + dh a
//!            da = dh^T x          db = dy^T h
//! ```
//!
//! As operations of their own, the product with `b` would copy the result once more, and the gradient of `x` would be
//! added once more.

use candle_core::{Result, Tensor, bail};

use super::linear::{LinearOp, affine};
use super::linear_quantized::LinearQuantized;
use super::sizes::sizes;
use crate::QuantizedMatrix;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::column_sums::column_sums;
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, StridedMatrix, matmul};
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;

const NAME: &str = "linear_lora";

/// The weight below an adapter.
#[derive(Clone, Copy)]
pub(crate) enum BaseWeight<'a> {
    Dense(&'a Tensor),
    Quantized(&'a QuantizedMatrix),
}

/// `residual + xs weight^T + bias + scale (xs a^T) b^T`, on the CPU.
///
/// `xs` (.., in), `base` (out, in), `bias` (out), `a` (rank, in), `b` (out, rank), `residual` (.., out) -> (.., out).
pub(crate) fn linear_lora(
    xs: &Tensor,
    base: BaseWeight<'_>,
    bias: Option<&Tensor>,
    ([a, b], scale): ([&Tensor; 2], f64),
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let [rank, inputs] = sizes(NAME, "a", a.shape(), "(rank, in)")?;
    let (weight, quantized, outputs) = match base {
        BaseWeight::Dense(weight) => (Some(weight), None, weight.dim(0)?),
        BaseWeight::Quantized(matrix) => (None, Some(matrix.clone()), matrix.dims().0),
    };
    if b.dims() != [outputs, rank] || xs.dims().last() != Some(&inputs) {
        let (b, xs) = (b.shape(), xs.shape());
        bail!("{NAME}: input of shape {xs:?}, a of {:?} and b of {b:?}", a.shape());
    }
    let mut shape = xs.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    if let Some(residual) = residual.filter(|residual| residual.dims() != shape) {
        bail!("{NAME}: residual of shape {:?} for a result of {shape:?}", residual.shape());
    }
    // The gradient of each factor reads the others.
    let reads_xs = a.track_op() || weight.is_some_and(Tensor::track_op);
    let inputs_read = u32::from(reads_xs) | u32::from(xs.track_op()) << 1 | 0b11 << 3;
    let base = match (weight, quantized) {
        (Some(weight), _) => LoraBase::Dense(LinearOp::new(NAME, xs.dims(), weight, bias, None)?.0),
        (None, Some(matrix)) => LoraBase::Quantized(LinearQuantized::new(matrix)),
        (None, None) => bail!("{NAME}: no weight"),
    };
    let reads = BackwardReads { inputs: inputs_read, output: false };
    let op = LinearLora { base, inputs, outputs, rank, scale, reads };
    fused::run(op, shape, &[Some(xs), weight, bias, Some(a), Some(b), residual])
}

struct LinearLora {
    base: LoraBase,
    inputs: usize,
    outputs: usize,
    rank: usize,
    scale: f64,
    reads: BackwardReads,
}

enum LoraBase {
    Dense(LinearOp),
    Quantized(LinearQuantized),
}

impl LinearLora {
    fn rows(&self, len: usize) -> usize {
        len / self.outputs.max(1)
    }

    fn scale<T: Float>(&self, numbers: &mut [T]) {
        let scale = T::from_f64(self.scale);
        in_blocks(numbers, |_, numbers| numbers.iter_mut().for_each(|number| *number *= scale));
    }
}

impl FusedOp for LinearLora {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        self.reads
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, a, b, residual] = inputs else { unreachable!("six inputs") };
        let rows = self.rows(ys.len());
        match &self.base {
            LoraBase::Dense(linear) => {
                let right = linear.right_factor(weight, ys.len() / linear.outputs);
                linear.product_added((xs, &right), bias, residual, ys);
            }
            LoraBase::Quantized(linear) => {
                linear.product(xs, bias, ys)?;
                if !residual.is_empty() {
                    in_blocks(ys, |start, ys| add_assign(ys, &residual[start..][..ys.len()]));
                }
            }
        }
        let mut hs = Pooled::new(rows * self.rank);
        let xs = StridedMatrix::new(xs, rows, self.inputs);
        matmul(
            &mut hs,
            Destination::Overwrite,
            xs,
            StridedMatrix::new(a, self.rank, self.inputs).t(),
        );
        self.scale(&mut hs);
        let b = StridedMatrix::new(b, self.outputs, self.rank);
        matmul(ys, Destination::Add, StridedMatrix::new(&hs, rows, self.rank), b.t());
        Ok(hs)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, saved: hs, dys, mut grads, .. } = pass;
        let &[xs, weight, _, a, b, _] = inputs else { unreachable!("six inputs") };
        let rows = self.rows(dys.len());
        let dys = &*dys;
        let dz = StridedMatrix::new(dys, rows, self.outputs);
        let mut dhs = Pooled::new(rows * self.rank);
        matmul(
            &mut dhs,
            Destination::Overwrite,
            dz,
            StridedMatrix::new(b, self.outputs, self.rank),
        );
        self.scale(&mut dhs);
        let dh = StridedMatrix::new(&dhs, rows, self.rank);
        if let Some(dx) = grads.take(0) {
            match &self.base {
                LoraBase::Dense(linear) => linear.input_gradient(weight, dys, dx),
                LoraBase::Quantized(linear) => linear.input_gradient(dys, dx)?,
            }
            matmul(dx, Destination::Add, dh, StridedMatrix::new(a, self.rank, self.inputs));
        }
        if let (Some(dw), LoraBase::Dense(linear)) = (grads.take(1), &self.base) {
            linear.weight_gradient(xs, dys, dw, Destination::Overwrite);
        }
        if let Some(dbias) = grads.take(2) {
            column_sums(dys, dbias);
        }
        if let Some(da) = grads.take(3) {
            matmul(da, Destination::Overwrite, dh.t(), StridedMatrix::new(xs, rows, self.inputs));
        }
        if let Some(db) = grads.take(4) {
            matmul(db, Destination::Overwrite, dz.t(), StridedMatrix::new(hs, rows, self.rank));
        }
        if let Some(dr) = grads.take(5) {
            in_blocks(dr, |start, dr| dr.copy_from_slice(&dys[start..][..dr.len()]));
        }
        Ok(())
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        Some(5)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), weight, bias, Some(a), Some(b), residual] = inputs else {
            unreachable!("six inputs")
        };
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let xs = xs.reshape((rows, self.inputs))?;
        let ys = match (&self.base, weight) {
            (LoraBase::Quantized(linear), _) => {
                let weight = linear.weight().dequantize(xs.dtype(), xs.device())?;
                affine(&xs, &weight, bias.as_ref())?
            }
            (LoraBase::Dense(_), Some(weight)) => affine(&xs, weight, bias.as_ref())?,
            (LoraBase::Dense(_), None) => unreachable!("a dense weight"),
        };
        let hs = (xs.matmul(&a.t()?)? * self.scale)?;
        let ys = (ys + hs.matmul(&b.t()?)?)?;
        match residual {
            Some(residual) => residual.reshape((rows, self.outputs))? + ys,
            None => Ok(ys),
        }
    }
}
