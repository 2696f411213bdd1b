//! Softmax and cross entropy in one operation.
//!
//! ```text
//! lse_n   = max_c z_nc + ln(sum_c exp(z_nc - max_c z_nc))
//! t'_nc   = (1 - s) t_nc + s / C
//! loss    = mean_n sum_c t'_nc (lse_n - z_nc)
//! dz_nc   = dloss / N * (exp(z_nc - lse_n) * sum_c t'_nc - t'_nc)
//! ```
//!
//! Subtracting the maximum keeps `exp` from overflowing. Class indices are the one-hot case of `t`,
//! and `s` is the label smoothing (Szegedy et al., CVPR 2016, arXiv:1512.00567). As in PyTorch, for
//! indices and probabilities alike, the mean is over the `N` rows that are not ignored. Where all rows
//! are ignored, the loss and its gradient are 0 and the [weight](LossWeight) of the loss is 0, so the batch
//! adds nothing to a mean over several batches. (PyTorch's loss is NaN then.)

mod gpu;

use candle_core::{DType, Device, Result, Tensor, bail};
use rayon::prelude::*;

use super::sizes::{is_index, rows_and_last};
use super::softmax::{exp_into, shifted};
use crate::LossWeight;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, GpuKernels};
use crate::autograd::pass;
use crate::kernels::float::Float;
use crate::kernels::moments::sum_of;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

const NAME: &str = "softmax_cross_entropy";

/// The class index of an ignored row, if the indices were checked.
const IGNORED: u32 = u32::MAX;

/// The variants of the cross entropy. Both are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropyConfig {
    /// The share of the probability, from 0 to 1, that is spread evenly over all classes.
    pub label_smoothing: f32,
    /// Rows of this class count neither in the loss nor in the number of rows of the mean.
    pub ignore_index: Option<i64>,
}

/// The mean cross entropy between `softmax(logits)` and the targets. It carries its [weight](LossWeight), the
/// number of rows that it counted.
///
/// # Shapes
///
/// `logits` (.., C); `targets` (..) class indices in u8, u32 or i64, or (.., C) probabilities
/// (one-hot among them) in the dtype of the logits -> a scalar. The mean is over all rows, for instance
/// over all tokens of all sequences for logits (N, T, C). The classes are the last dimension, whereas
/// PyTorch expects them in the second one.
///
/// Class indices on the CPU are checked. Class indices on a GPU stay there and are not checked,
/// because the program would have to wait for the GPU: an index out of range gives a loss of NaN,
/// which a training step reports as a loss that is not finite.
///
/// # Errors
///
/// If a class index on the CPU is out of range, shapes or dtypes do not fit together, the batch is
/// empty, or `targets` would need a gradient (detach them).
pub fn softmax_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    softmax_cross_entropy_with(logits, targets, CrossEntropyConfig::default())
}

/// [`softmax_cross_entropy`] with smoothed labels or ignored rows.
///
/// # Errors
///
/// Those of [`softmax_cross_entropy`], and if the label smoothing is outside of `[0, 1]`, targets
/// are probabilities and there is a class to ignore.
pub fn softmax_cross_entropy_with(
    logits: &Tensor,
    targets: &Tensor,
    config: CrossEntropyConfig,
) -> Result<Tensor> {
    let (rows, classes) = rows_and_last(NAME, "logits", logits.shape(), "(.., C)")?;
    let batch = rows.iter().product();
    check_sizes(batch, classes)?;
    let indices = is_index(targets.dtype());
    if indices && targets.dims() == rows {
        let (labels, sizes) = (targets.flatten_all()?, (batch, classes));
        let op = SoftmaxCrossEntropy::of_classes(&labels, sizes, logits.device(), config)?;
        let weight = op.weight();
        let loss = fused::run(op, (), &[Some(logits), None])?;
        weight.give_to(&loss);
        return Ok(loss);
    }
    let smoothing = smoothing(config)?;
    check_probabilities(targets, logits, rows)?;
    if config.ignore_index.is_some() {
        bail!("{NAME}: targets that are probabilities have no class to ignore");
    }
    let op = SoftmaxCrossEntropy { batch, classes, smoothing, targets: Targets::Probabilities };
    let weight = op.weight();
    let loss = fused::run(op, (), &[Some(logits), Some(targets)])?;
    weight.give_to(&loss);
    Ok(loss)
}

fn check_sizes(batch: usize, classes: usize) -> Result<()> {
    if batch == 0 || classes == 0 {
        bail!("{NAME}: nothing to take the mean of, logits of shape {:?}", [batch, classes]);
    }
    if classes == 1 {
        bail!(
            "{NAME}: one class, which always has the probability 1, so the loss is 0 and nothing is learned: \
             take `mse_loss` for a number, `bce_with_logits_loss` for yes or no, or two classes"
        );
    }
    Ok(())
}

fn smoothing(config: CrossEntropyConfig) -> Result<f64> {
    let smoothing = config.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        bail!("{NAME}: label smoothing {smoothing} outside of [0, 1]");
    }
    Ok(f64::from(smoothing))
}

fn class_indices(targets: &Tensor, classes: usize, ignored: Option<i64>) -> Result<Vec<u32>> {
    let index = |(row, label): (usize, i64)| match u32::try_from(label) {
        _ if Some(label) == ignored => Ok(IGNORED),
        Ok(index) if (index as usize) < classes && index != IGNORED => Ok(index),
        _ => bail!("{NAME}: class {label} in row {row}, but there are {classes} classes"),
    };
    match targets.dtype() {
        DType::U8 => {
            targets.to_vec1::<u8>()?.into_iter().map(i64::from).enumerate().map(index).collect()
        }
        DType::U32 => {
            targets.to_vec1::<u32>()?.into_iter().map(i64::from).enumerate().map(index).collect()
        }
        _ => targets.to_vec1::<i64>()?.into_iter().enumerate().map(index).collect(),
    }
}

fn check_probabilities(targets: &Tensor, logits: &Tensor, rows: &[usize]) -> Result<()> {
    if targets.dtype() != logits.dtype() || targets.dims() != logits.dims() {
        bail!(
            "{NAME}: targets of shape {:?} and dtype {:?}, expected {rows:?} in u8, u32 or i64, \
             or {:?} in {:?}",
            targets.shape(),
            targets.dtype(),
            logits.shape(),
            logits.dtype()
        );
    }
    if targets.track_op() {
        bail!("{NAME}: no gradient for the targets, detach them");
    }
    Ok(())
}

pub(super) struct SoftmaxCrossEntropy {
    pub(super) batch: usize,
    pub(super) classes: usize,
    pub(super) smoothing: f64,
    pub(super) targets: Targets,
}

/// The targets of all rows.
pub(super) enum Targets {
    /// The second input of the operation.
    Probabilities,
    /// Classes that were checked. `rows` of them are not [`IGNORED`], the class `ignored` of the user.
    Checked { labels: Vec<u32>, rows: usize, ignored: Option<i64> },
    /// Class indices on the device of the logits, contiguous.
    OnDevice { labels: Tensor, ignored: Option<i64> },
}

impl Targets {
    fn classes(
        labels: &Tensor,
        classes: usize,
        device: &Device,
        ignored: Option<i64>,
    ) -> Result<Self> {
        let on_device = || {
            let labels = labels.to_device(device)?.contiguous()?;
            Ok(Self::OnDevice { labels, ignored })
        };
        if !device.is_cpu() && !labels.device().is_cpu() {
            return on_device();
        }
        let checked = class_indices(labels, classes, ignored)?;
        if !device.is_cpu() {
            return on_device();
        }
        let rows = checked.iter().filter(|&&index| index != IGNORED).count();
        Ok(Self::Checked { labels: checked, rows, ignored })
    }

    /// The class indices in i64, and the ignored one.
    fn labels(&self, device: &Device) -> Result<Option<(Tensor, Option<i64>)>> {
        Ok(match self {
            Self::Probabilities => None,
            Self::Checked { labels, rows, .. } => {
                let ignored = (*rows != labels.len()).then_some(i64::from(IGNORED));
                let labels = Tensor::from_iter(labels.iter().copied().map(i64::from), device)?;
                Some((labels, ignored))
            }
            Self::OnDevice { labels, ignored } => Some((labels.to_dtype(DType::I64)?, *ignored)),
        })
    }
}

/// The numbers saved for each row: the maximum and the sum of `exp(z - maximum)`.
const SAVED: usize = 2;

impl FusedOp for SoftmaxCrossEntropy {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1]);

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let &[logits, targets] = inputs else { unreachable!("two inputs") };
        let batch = logits.len() / self.classes;
        let mut saved = Pooled::new(SAVED * batch);
        let mut losses = Pooled::new(batch);
        let run = |row: usize, (z, saved): (&[T], &mut [T]), loss: &mut T| {
            let mut scratch = Pooled::new(z.len());
            let (max, sum) = exp_into(z, &mut scratch);
            saved.copy_from_slice(&[max, sum]);
            *loss = self.loss(z, self.target(targets, row), max, sum.ln());
        };
        let rows = logits.par_chunks(self.classes).zip(saved.par_chunks_mut(SAVED));
        let rows = rows.zip(&mut losses[..]).enumerate();
        for_each(worth_threads(logits.len()), rows, |(row, (z, loss))| run(row, z, loss));
        let total: f64 = losses.iter().map(|loss| loss.widen()).sum();
        loss[0] = T::narrow(total / self.rows(batch) as f64);
        Ok(saved)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let &[logits, targets] = pass.inputs else { unreachable!("two inputs") };
        self.tell_pass();
        let Some(dzs) = pass.grads.take(0) else { return Ok(()) };
        let rows = self.rows(logits.len() / self.classes);
        let scale = pass.dys[0] / T::from_f64(rows as f64);
        let run = |row: usize, (dz, z): (&mut [T], &[T]), saved: &[T]| {
            let &[max, sum] = saved else { unreachable!("two numbers per row") };
            self.gradient(z, self.target(targets, row), (max, sum), scale, dz);
        };
        let rows = dzs.par_chunks_mut(self.classes).zip(logits.par_chunks(self.classes));
        let rows = rows.zip(pass.saved.par_chunks(SAVED)).enumerate();
        for_each(worth_threads(logits.len()), rows, |(row, (z, saved))| run(row, z, saved));
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(logits), probabilities] = inputs else { unreachable!("two inputs") };
        let surprise = |z: &Tensor| {
            let shifted = shifted(z)?;
            shifted.exp()?.sum_keepdim(1)?.log()?.broadcast_sub(&shifted)
        };
        self.composite_of(logits, probabilities.as_ref(), surprise, true)
    }
}

/// `xs` (N, ..), and 0 in the rows for which `rows` (N) is not 0. Their gradient is 0.
fn zero_where(rows: &Tensor, xs: &Tensor) -> Result<Tensor> {
    rows.unsqueeze(1)?.broadcast_as(xs.shape())?.where_cond(&xs.zeros_like()?, xs)
}

/// The target of a row.
#[derive(Clone, Copy, Debug)]
enum ClassTarget<'a, T> {
    Class(usize),
    Probabilities(&'a [T]),
    Ignored,
}

impl SoftmaxCrossEntropy {
    /// The loss of `batch` rows by their class indices, for logits on `device`.
    pub(super) fn of_classes(
        labels: &Tensor,
        (batch, classes): (usize, usize),
        device: &Device,
        config: CrossEntropyConfig,
    ) -> Result<Self> {
        check_sizes(batch, classes)?;
        let smoothing = smoothing(config)?;
        let targets = Targets::classes(labels, classes, device, config.ignore_index)?;
        Ok(Self { batch, classes, smoothing, targets })
    }

    /// The class of a row whose label was checked, `None` if the row is ignored.
    pub(super) fn label(&self, row: usize) -> Option<usize> {
        let Targets::Checked { labels, .. } = &self.targets else { return None };
        Some(labels[row] as usize).filter(|_| labels[row] != IGNORED)
    }

    /// The divisor of the mean over a batch: the rows that count, or 1 if none does. The labels were checked.
    pub(super) fn rows(&self, batch: usize) -> usize {
        if let Targets::Checked { rows, .. } = self.targets { rows.max(1) } else { batch }
    }

    /// The composite of a loss that is the mean, or the sum, of `surprise` (N, C) at the classes of the rows, or
    /// weighted by `probabilities`.
    pub(super) fn composite_of(
        &self,
        logits: &Tensor,
        probabilities: Option<&Tensor>,
        surprise: impl Fn(&Tensor) -> Result<Tensor>,
        is_mean: bool,
    ) -> Result<Tensor> {
        let mut z = fused::widen(&logits.reshape((self.batch, self.classes))?)?;
        let labels = self.targets.labels(logits.device())?;
        let ignored = labels.as_ref().and_then(|(labels, ignored)| Some((labels, (*ignored)?)));
        let ignored = ignored.map(|(labels, ignored)| labels.eq(ignored)).transpose()?;
        if let Some(ignored) = &ignored {
            z = zero_where(ignored, &z)?; // First, because 0 times a NaN in them would be NaN.
        }
        let surprise = surprise(&z)?;
        let counted = |xs: Tensor| match &ignored {
            Some(ignored) => zero_where(ignored, &xs),
            None => Ok(xs),
        };
        let by_label = match (labels, probabilities) {
            (Some((labels, _)), _) => {
                let is_class = (labels.ge(0i64)? * labels.lt(self.classes as i64)?)?;
                // candle's kernels would end the work of a GPU at an index out of range.
                let classes = is_class.where_cond(&labels, &labels.zeros_like()?)?;
                let surprise = surprise.gather(&classes.unsqueeze(1)?, 1)?; // (N, 1)
                let nan = surprise.zeros_like()?.affine(0.0, f64::NAN)?;
                counted(is_class.unsqueeze(1)?.where_cond(&surprise, &nan)?)?
            }
            (None, Some(targets)) => {
                let targets = fused::widen(&targets.reshape(z.shape())?)?;
                // 0 * infinity is 0 here, as in the kernel.
                targets.eq(0.0)?.where_cond(&targets.zeros_like()?, &(&surprise * &targets)?)?
            }
            (None, None) => bail!("{NAME}: no targets, this is a bug"),
        };
        let mut loss = (by_label.sum_all()? * (1.0 - self.smoothing))?;
        if self.smoothing != 0.0 {
            let share = self.smoothing / self.classes as f64;
            loss = (loss + (counted(surprise)?.sum_all()? * share)?)?;
        }
        if !is_mean {
            return loss.to_dtype(logits.dtype());
        }
        // The mean over the rows that count.
        let mean = match &ignored {
            None => (loss / z.dim(0)? as f64)?,
            Some(ignored) => {
                let rows = ignored.eq(0u8)?.to_dtype(z.dtype())?.sum_all()?;
                (loss / rows.maximum(1.0)?)?
            }
        };
        mean.to_dtype(logits.dtype())
    }

    /// What the loss counts.
    pub(super) fn weight(&self) -> LossWeight {
        match &self.targets {
            &Targets::Checked { rows, ignored: Some(ignored), .. } => {
                LossWeight::of_rows(rows, ignored)
            }
            Targets::OnDevice { labels, ignored: Some(ignored) } => {
                LossWeight::of_rows_on_gpu(labels.clone(), *ignored)
            }
            _ => LossWeight::fixed(self.batch),
        }
    }

    /// Tells the backward pass of a loss that may leave rows out.
    pub(super) fn tell_pass(&self) {
        if let Targets::Checked { ignored: Some(_), .. }
        | Targets::OnDevice { ignored: Some(_), .. } = self.targets
        {
            pass::note_varying_loss();
        }
    }

    fn target<'a, T>(&self, probabilities: &'a [T], row: usize) -> ClassTarget<'a, T> {
        match &self.targets {
            Targets::Checked { labels, .. } if labels[row] == IGNORED => ClassTarget::Ignored,
            Targets::Checked { labels, .. } => ClassTarget::Class(labels[row] as usize),
            _ => ClassTarget::Probabilities(&probabilities[row * self.classes..][..self.classes]),
        }
    }

    /// The share of the smoothing for every class.
    fn even_share<T: Float>(&self) -> T {
        T::from_f64(self.smoothing / self.classes as f64)
    }

    /// The loss of a row, with `lse = max + ln`.
    fn loss<T: Float>(&self, z: &[T], target: ClassTarget<'_, T>, max: T, ln: T) -> T {
        // In this order a large maximum does not cost the digits of `ln`.
        let surprise = |z: T| (max - z) + ln;
        let labels = match target {
            ClassTarget::Ignored => return T::zero(),
            ClassTarget::Class(class) => surprise(z[class]),
            ClassTarget::Probabilities(ts) => {
                // 0 * infinity is 0 here: a class without weight does not count.
                let zero = T::zero();
                sum_of_rows(z, ts, |z, t| if t == zero { zero } else { t * surprise(z) })
            }
        };
        if self.smoothing == 0.0 {
            return labels;
        }
        let all = sum_of_rows(z, z, |z, _| surprise(z));
        T::from_f64(1.0 - self.smoothing) * labels + self.even_share::<T>() * all
    }

    /// `dz = scale (exp(z - lse) sum(t') - t')`
    fn gradient<T: Float>(
        &self,
        z: &[T],
        target: ClassTarget<'_, T>,
        (max, sum): (T, T),
        scale: T,
        dz: &mut [T],
    ) {
        let (labels, even) = (scale * T::from_f64(1.0 - self.smoothing), scale * self.even_share());
        let softmax = |dz: &mut [T], weight: T| {
            let factor = weight / sum;
            simd(
                #[inline(always)]
                || {
                    for (dz, &z) in dz.iter_mut().zip(z) {
                        *dz = (z - max).exp() * factor - even;
                    }
                },
            );
        };
        match target {
            ClassTarget::Ignored => dz.fill(T::zero()),
            ClassTarget::Class(class) => {
                softmax(dz, scale);
                dz[class] -= labels;
            }
            ClassTarget::Probabilities(ts) => {
                let weight = sum_of_rows(ts, ts, |t, _| t);
                softmax(dz, labels * weight + scale * T::from_f64(self.smoothing));
                for (dz, &t) in dz.iter_mut().zip(ts) {
                    *dz -= labels * t;
                }
            }
        }
    }
}

/// The sum of `f` over the pairs of two rows.
fn sum_of_rows<T: Float>(xs: &[T], ys: &[T], f: impl Fn(T, T) -> T) -> T {
    simd(
        #[inline(always)]
        || sum_of(xs, ys, &f),
    )
}
