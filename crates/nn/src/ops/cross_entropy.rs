//! Softmax and cross entropy in one operation.
//!
//! ```text
//! lse_n   = max_c z_nc + ln(sum_c exp(z_nc - max_c z_nc))
//! loss    = mean_n sum_c t_nc (lse_n - z_nc)
//! dz_nc   = dloss / N * (exp(z_nc - lse_n) * sum_c t_nc - t_nc)
//! ```
//!
//! The maximum keeps `exp` from overflowing. Class indices are the one-hot case of `t`. The mean
//! over the batch is PyTorch's, for indices and probabilities alike.

use candle_core::{DType, Result, Tensor, bail};

use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};

const NAME: &str = "softmax_cross_entropy";

/// The mean cross entropy between `softmax(logits)` and the targets.
///
/// # Shapes
///
/// `logits` (N, C); `targets` (N) class indices in u8, u32 or i64, or (N, C) probabilities
/// (one-hot among them) in the dtype of the logits -> a scalar.
///
/// # Errors
///
/// If a class index is out of range, if shapes or dtypes do not fit together, if the batch is
/// empty, or if `targets` would need a gradient: detach them.
pub fn softmax_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (batch, classes) = logits.dims2()?;
    if batch == 0 || classes == 0 {
        bail!("{NAME}: nothing to take the mean of, logits of shape {:?}", logits.shape());
    }
    let indices = matches!(targets.dtype(), DType::U8 | DType::U32 | DType::I64);
    if indices && targets.dims() == [batch] {
        let indices = class_indices(targets, classes)?;
        let op = SoftmaxCrossEntropy { batch, classes, indices };
        return fused::run(op, (), &[Some(logits), None]);
    }
    check_probabilities(targets, logits)?;
    let op = SoftmaxCrossEntropy { batch, classes, indices: Vec::new() };
    fused::run(op, (), &[Some(logits), Some(targets)])
}

fn class_indices(targets: &Tensor, classes: usize) -> Result<Vec<usize>> {
    let labels = targets.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let index = |(row, label): (usize, i64)| match usize::try_from(label) {
        Ok(index) if index < classes => Ok(index),
        _ => bail!("{NAME}: class {label} in row {row}, but there are {classes} classes"),
    };
    labels.into_iter().enumerate().map(index).collect()
}

fn check_probabilities(targets: &Tensor, logits: &Tensor) -> Result<()> {
    if targets.dtype() != logits.dtype() || targets.dims() != logits.dims() {
        let (batch, classes) = logits.dims2()?;
        bail!(
            "{NAME}: targets of shape {:?} and dtype {:?}, expected ({batch}) in u8, u32 or i64, \
             or ({batch}, {classes}) in {:?}",
            targets.shape(),
            targets.dtype(),
            logits.dtype()
        );
    }
    if targets.track_op() {
        bail!("{NAME}: no gradient for the targets, detach them");
    }
    Ok(())
}

struct SoftmaxCrossEntropy {
    batch: usize,
    classes: usize,
    /// Empty where the targets are probabilities.
    indices: Vec<usize>,
}

impl Fused for SoftmaxCrossEntropy {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0, 1])
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let &[logits, targets] = inputs else { unreachable!("two inputs") };
        let rows = logits.chunks_exact(self.classes);
        let mut total = T::zero();
        if targets.is_empty() {
            for (row, &index) in rows.zip(&self.indices) {
                total += log_sum_exp(row) - row[index];
            }
        } else {
            for (row, targets) in rows.zip(targets.chunks_exact(self.classes)) {
                let lse = log_sum_exp(row);
                for (&z, &t) in row.iter().zip(targets) {
                    // 0 * infinity is 0 here: a class without weight does not count.
                    if t != T::zero() {
                        total += t * (lse - z);
                    }
                }
            }
        }
        loss[0] = total / T::from_f64(self.batch as f64);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let &[logits, targets] = pass.inputs else { unreachable!("two inputs") };
        let Some(dzs) = pass.grads.take(0) else { return Ok(()) };
        let scale = pass.dys[0] / T::from_f64(self.batch as f64);
        let rows = dzs.chunks_exact_mut(self.classes).zip(logits.chunks_exact(self.classes));
        if targets.is_empty() {
            for ((dz, z), &index) in rows.zip(&self.indices) {
                softmax_into(dz, z, scale);
                dz[index] -= scale;
            }
        } else {
            for ((dz, z), t) in rows.zip(targets.chunks_exact(self.classes)) {
                let weight = t.iter().fold(T::zero(), |sum, &t| sum + t);
                softmax_into(dz, z, scale * weight);
                for (dz, &t) in dz.iter_mut().zip(t) {
                    *dz -= scale * t;
                }
            }
        }
        Ok(())
    }
}

fn log_sum_exp<T: Float>(row: &[T]) -> T {
    let max = row_max(row);
    let sum = row.iter().fold(T::zero(), |sum, &z| sum + (z - max).exp());
    max + sum.ln()
}

/// `out = scale * softmax(row)`
fn softmax_into<T: Float>(out: &mut [T], row: &[T], scale: T) {
    let max = row_max(row);
    let mut sum = T::zero();
    for (out, &z) in out.iter_mut().zip(row) {
        *out = (z - max).exp();
        sum += *out;
    }
    let factor = scale / sum;
    out.iter_mut().for_each(|out| *out *= factor);
}

fn row_max<T: Float>(row: &[T]) -> T {
    row.iter().fold(row[0], |max, &z| if z > max { z } else { max })
}
