//! The last linear layer of a language model and its cross entropy in one operation. The logits, which
//! would be the largest tensor of the step, exist for some rows at a time.
//!
//! ```text
//! z = x w^T + b                             some rows at a time
//! loss = mean of softmax_cross_entropy      dz = as there, in place of z
//! dx = dz w     dw += dz^T x     db += sums of the columns of dz
//! ```
//!
//! The forward also computes the gradients, as Liger Kernel does (Hsu et al., arXiv:2410.10989), and the
//! backward multiplies them by the gradient of the loss. The other way is to keep the logarithm of each
//! row's sum and to compute the logits again in the backward (Wijmans et al., "Cut your losses",
//! arXiv:2411.09009): that takes four products instead of three, and the last layer is a third of a small
//! model's arithmetic or more. The price is memory for `dx` and `dw` between forward and backward, which
//! follow each other directly in a training step.

use std::ops::Range;

use candelabrum_memory::simd::simd;
use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::cross_entropy::{CrossEntropyConfig, SoftmaxCrossEntropy, softmax_cross_entropy_with};
use super::linear::{affine, linear};
use super::sizes::{is_index, sizes};
use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::column_sums::column_sums;
use crate::kernels::elementwise::{add_assign, largest, map_all};
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, StridedMatrix, matmul};
use crate::kernels::moments::{LaneSums, sum_of};
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "linear_cross_entropy";

/// The number of logits that exist at the same time, unless [`ROWS`] rows have more.
const LOGITS: usize = 1 << 20;

/// The smallest number of rows of a chunk. With fewer rows, reading the weight and adding to its
/// gradient would cost as much as the products.
const ROWS: usize = 256;

/// `softmax_cross_entropy_with(linear(xs, weight, bias), labels, config)`, where the logits never exist
/// as a whole.
///
/// The forward pass computes the gradients of those inputs that are in the graph. If you need only the
/// loss, detach `xs`, `weight` and `bias`: then it takes a third of the time.
///
/// On a GPU these are two operations, and the logits exist as a whole.
///
/// Inputs in f16 and bf16 are converted to f32, and the loss is in f32, because 16 bits are too few for
/// its scaled value. It carries its [weight](crate::LossWeight), the number of rows that it counted.
///
/// # Shapes
///
/// `xs` (.., in), `weight` (classes, in), `bias` (classes), `labels` (..) class indices in u8, u32 or
/// i64 -> a scalar.
///
/// # Errors
///
/// If the labels are no class indices (this operation takes no probabilities), and those of
/// [`linear`](super::linear()) and of
/// [`softmax_cross_entropy_with`](super::softmax_cross_entropy_with).
pub fn linear_cross_entropy(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    labels: &Tensor,
    config: CrossEntropyConfig,
) -> Result<Tensor> {
    let [classes, inputs] = sizes(NAME, "weight", weight.shape(), "(classes, in)")?;
    let Some((&features, rows)) = xs.dims().split_last().filter(|(last, _)| **last == inputs)
    else {
        bail!("{NAME}: input of shape {:?} for a weight of {:?}", xs.shape(), weight.shape());
    };
    if let Some(bias) = bias.filter(|bias| bias.dims() != [classes]) {
        bail!("{NAME}: bias of shape {:?} for {classes} classes", bias.shape());
    }
    if labels.dims() != rows || !is_index(labels.dtype()) {
        bail!(
            "{NAME}: labels of shape {:?} and dtype {:?}, expected {rows:?} in u8, u32 or i64",
            labels.shape(),
            labels.dtype()
        );
    }
    if !xs.device().is_cpu() {
        let bias = bias.map(fused::widen).transpose()?;
        let logits = linear(&fused::widen(xs)?, &fused::widen(weight)?, bias.as_ref(), None)?;
        return softmax_cross_entropy_with(&logits, labels, config);
    }
    let count = rows.iter().product();
    let loss = SoftmaxCrossEntropy::of_classes(
        &labels.flatten_all()?,
        (count, classes),
        xs.device(),
        config,
    )?;
    let inputs = [fused::widen(xs)?, fused::widen(weight)?];
    let ([xs, weight], bias) = (&inputs, bias.map(fused::widen).transpose()?);
    let inputs = [Some(xs), Some(weight), bias.as_ref()];
    let wanted = inputs.map(|input| input.is_some_and(Tensor::track_op));
    let weight = loss.weight();
    let op = LinearCrossEntropy { inputs: features, loss, wanted };
    let loss = fused::run(op, (), &inputs)?;
    weight.give_to(&loss);
    Ok(loss)
}

struct LinearCrossEntropy {
    inputs: usize,
    loss: SoftmaxCrossEntropy,
    /// Whether the gradients of the inputs, of the weight and of the bias are needed.
    wanted: [bool; 3],
}

impl LinearCrossEntropy {
    /// The rows of a chunk. They depend only on the shape.
    fn chunk(&self) -> usize {
        (LOGITS / self.loss.classes).max(ROWS)
    }

    /// The lengths of the gradients that are computed.
    fn lengths(&self, rows: usize) -> [usize; 3] {
        let (classes, inputs) = (self.loss.classes, self.inputs);
        let lengths = [rows * inputs, classes * inputs, classes];
        std::array::from_fn(|input| if self.wanted[input] { lengths[input] } else { 0 })
    }

    /// Replaces the logits of the rows `rows` by their gradients, if one is wanted, and writes the losses.
    fn losses<T: Float>(
        &self,
        logits: &mut [T],
        rows: Range<usize>,
        total: usize,
        losses: &mut [T],
    ) {
        let classes = self.loss.classes;
        let scale = T::one() / T::from_f64(self.loss.rows(total) as f64);
        let gradients = self.wanted.contains(&true);
        let run = |row: usize, z: &mut [T], loss: &mut T| {
            *loss = match self.loss.label(rows.start + row) {
                Some(class) => self.row(z, class, gradients.then_some(scale)),
                None => {
                    z.fill(T::zero());
                    T::zero()
                }
            };
        };
        let threads = worth_threads(logits.len());
        let rows = logits.par_chunks_mut(classes).zip(losses).enumerate();
        for_each(threads, rows, |(row, (z, loss))| run(row, z, loss));
    }

    /// The loss of a row of logits, which become their gradients times `scale`, or scratch.
    fn row<T: Float>(&self, z: &mut [T], class: usize, scale: Option<T>) -> T {
        let smoothing = T::from_f64(self.loss.smoothing);
        let classes = T::from_f64(self.loss.classes as f64);
        let labels = T::from_f64(1.0 - self.loss.smoothing);
        simd(
            #[inline(always)]
            || {
                let max = largest(z[0], z);
                let below = max - z[class];
                let mut all_below = LaneSums::new();
                if self.loss.smoothing != 0.0 {
                    all_below.add(z, z, |z, _| [max - z]);
                }
                for z in &mut *z {
                    *z = (*z - max).exp();
                }
                let sum = sum_of(z, z, |z, _| z);
                if let Some(scale) = scale {
                    let (factor, even) = (scale / sum, scale * smoothing / classes);
                    for z in &mut *z {
                        *z = *z * factor - even;
                    }
                    z[class] -= scale * labels;
                }
                let ln = sum.ln();
                let mut loss = labels * (below + ln);
                if self.loss.smoothing != 0.0 {
                    let [all_below] = all_below.totals().map(T::narrow);
                    loss += smoothing * (all_below / classes + ln);
                }
                loss
            },
        )
    }
}

impl FusedOp for LinearCrossEntropy {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias] = inputs else { unreachable!("three inputs") };
        let (classes, width) = (self.loss.classes, self.inputs);
        let rows = self.loss.batch;
        let lengths = self.lengths(rows);
        let mut gradients = Pooled::new(lengths.iter().sum());
        let (dxs, rest) = gradients.split_at_mut(lengths[0]);
        let (dw, db) = rest.split_at_mut(lengths[1]);
        let (mut losses, mut sums) = (Pooled::new(rows), Pooled::new(db.len()));
        db.fill(T::zero());
        let weight = StridedMatrix::new(weight, classes, width);
        let chunk = self.chunk().min(rows);
        let mut logits = Pooled::new(chunk * classes);
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let z = &mut logits[..count * classes];
            let x = StridedMatrix::new(&xs[first * width..][..count * width], count, width);
            matmul(z, Destination::Overwrite, x, weight.t());
            if !bias.is_empty() {
                in_rows(z, classes, |z| add_assign(z, bias));
            }
            let range = first..first + count;
            self.losses(z, range.clone(), rows, &mut losses[range]);
            let dz = StridedMatrix::new(z, count, classes);
            if self.wanted[0] {
                let dx = &mut dxs[first * width..][..count * width];
                matmul(dx, Destination::Overwrite, dz, weight);
            }
            if self.wanted[1] {
                let dst = if first == 0 { Destination::Overwrite } else { Destination::Add };
                matmul(dw, dst, dz.t(), x);
            }
            if self.wanted[2] {
                column_sums(z, &mut sums);
                add_assign(db, &sums);
            }
        }
        let total: f64 = losses.iter().map(|loss| loss.widen()).sum();
        loss[0] = T::narrow(total / self.loss.rows(rows) as f64);
        Ok(gradients)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        self.loss.tell_pass();
        let factor = pass.dys[0];
        let mut rest = pass.saved;
        for (input, length) in self.lengths(self.loss.batch).into_iter().enumerate() {
            let (gradient, others) = rest.split_at(length);
            rest = others;
            let Some(place) = pass.grads.take(input) else { continue };
            map_all(place, gradient, move |gradient| gradient * factor);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(weight), bias] = inputs else { unreachable!("three inputs") };
        let xs = xs.reshape((self.loss.batch, self.inputs))?;
        let logits = affine(&xs, weight, bias.as_ref())?;
        self.loss.composite(&[Some(logits), None])
    }
}

/// Calls `f` with each row.
fn in_rows<T: Float>(rows: &mut [T], len: usize, f: impl Fn(&mut [T]) + Sync) {
    for_each(worth_threads(rows.len()), rows.par_chunks_mut(len), f);
}
