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

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType, bail};

use super::float::{Float, cpu_slice, for_float, with_slices};

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
    let targets = Targets::new(targets, batch, classes, logits.dtype())?;
    logits.contiguous()?.apply_op1(SoftmaxCrossEntropy { batch, classes, targets })
}

enum Targets {
    Indices(Vec<usize>),
    Probabilities(Tensor),
}

impl Targets {
    fn new(targets: &Tensor, batch: usize, classes: usize, dtype: DType) -> Result<Self> {
        let indices = matches!(targets.dtype(), DType::U8 | DType::U32 | DType::I64);
        if indices && targets.dims() == [batch] {
            let labels = targets.to_dtype(DType::I64)?.to_vec1::<i64>()?;
            let index = |(row, label): (usize, i64)| match usize::try_from(label) {
                Ok(index) if index < classes => Ok(index),
                _ => bail!("{NAME}: class {label} in row {row}, but there are {classes} classes"),
            };
            return Ok(Self::Indices(
                labels.into_iter().enumerate().map(index).collect::<Result<_>>()?,
            ));
        }
        if targets.dtype() != dtype || targets.dims() != [batch, classes] {
            bail!(
                "{NAME}: targets of shape {:?} and dtype {:?}, expected ({batch}) in u8, u32 or \
                 i64, or ({batch}, {classes}) in {dtype:?}",
                targets.shape(),
                targets.dtype()
            );
        }
        if targets.track_op() {
            bail!("{NAME}: no gradient for the targets, detach them");
        }
        Ok(Self::Probabilities(targets.contiguous()?))
    }
}

struct SoftmaxCrossEntropy {
    batch: usize,
    classes: usize,
    targets: Targets,
}

impl SoftmaxCrossEntropy {
    fn forward<T: Float>(&self, logits: &[T]) -> Result<T> {
        let rows = logits.chunks_exact(self.classes);
        let total: T = match &self.targets {
            Targets::Indices(indices) => {
                let mut total = T::zero();
                for (row, &index) in rows.zip(indices) {
                    total += log_sum_exp(row) - row[index];
                }
                total
            }
            Targets::Probabilities(targets) => {
                with_slices([targets], NAME, |[targets]: [&[T]; 1]| {
                    let mut total = T::zero();
                    for (row, targets) in rows.zip(targets.chunks_exact(self.classes)) {
                        let lse = log_sum_exp(row);
                        for (&z, &t) in row.iter().zip(targets) {
                            // 0 * infinity is 0 here: a class without weight does not count.
                            if t != T::zero() {
                                total += t * (lse - z);
                            }
                        }
                    }
                    Ok(total)
                })?
            }
        };
        Ok(total / self.count())
    }

    fn backward<T: Float>(&self, logits: &[T], dloss: T) -> Result<Vec<T>> {
        let scale = dloss / self.count();
        let mut dzs = vec![T::zero(); logits.len()];
        let rows = dzs.chunks_exact_mut(self.classes).zip(logits.chunks_exact(self.classes));
        match &self.targets {
            Targets::Indices(indices) => {
                for ((dz, z), &index) in rows.zip(indices) {
                    softmax_into(dz, z, scale);
                    dz[index] -= scale;
                }
            }
            Targets::Probabilities(targets) => {
                with_slices([targets], NAME, |[targets]: [&[T]; 1]| {
                    for ((dz, z), t) in rows.zip(targets.chunks_exact(self.classes)) {
                        let weight = t.iter().fold(T::zero(), |sum, &t| sum + t);
                        softmax_into(dz, z, scale * weight);
                        for (dz, &t) in dz.iter_mut().zip(t) {
                            *dz -= scale * t;
                        }
                    }
                    Ok(())
                })?;
            }
        }
        Ok(dzs)
    }

    fn count<T: Float>(&self) -> T {
        T::from_f64(self.batch as f64)
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

impl CustomOp1 for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        for_float!(storage.dtype(), NAME, T => {
            let loss = self.forward::<T>(cpu_slice(storage, layout, NAME)?)?;
            Ok((T::to_cpu_storage_owned(vec![loss]), Shape::from(())))
        })
    }

    fn bwd(&self, logits: &Tensor, _loss: &Tensor, dloss: &Tensor) -> Result<Option<Tensor>> {
        if !logits.track_op() {
            return Ok(None);
        }
        for_float!(logits.dtype(), NAME, T => {
            let dzs = with_slices([logits, dloss], NAME, |[logits, dloss]: [&[T]; 2]| {
                self.backward(logits, dloss[0])
            })?;
            Tensor::from_vec(dzs, logits.shape(), logits.device()).map(Some)
        })
    }
}
