//! The negative logarithm of the probability of the right class.
//!
//! ```text
//! loss = mean_n -x_n,t(n)        dx_n,t(n) = -dloss / N, and 0 elsewhere
//! ```
//!
//! [`softmax_cross_entropy`](super::softmax_cross_entropy) is this loss behind a
//! [`log_softmax`](super::log_softmax), in one operation.

use candle_core::{Result, Tensor, bail};

use super::cross_entropy::{CrossEntropyConfig, SoftmaxCrossEntropy};
use super::element_losses::Reduction;
use super::sizes::{is_index, rows_and_last};
use crate::LossWeight;
use crate::autograd::fused::{self, Backward, FusedOp, widen};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

const NAME: &str = "nll_loss";

/// Minus the logarithm of the probability of the right class: PyTorch's `nll_loss`. Rows of the class
/// `ignore_index` do not count. The loss carries its [weight](LossWeight), the rows that a mean counts.
///
/// # Shapes
///
/// `log_probs` (.., C), `targets` (..) class indices in u8, u32 or i64 -> a scalar, in f32 for an input in f16 or
/// bf16. The classes are the last dimension, whereas PyTorch expects them in the second one.
///
/// # Errors
///
/// If a class index on the CPU is out of range (on a GPU the loss is NaN then), shapes or dtypes do not fit, or
/// the batch is empty.
pub fn nll_loss(
    log_probs: &Tensor,
    targets: &Tensor,
    ignore_index: Option<i64>,
    reduction: Reduction,
) -> Result<Tensor> {
    let (rows, classes) = rows_and_last(NAME, "input", log_probs.shape(), "(.., C)")?;
    if targets.dims() != rows || !is_index(targets.dtype()) {
        bail!(
            "{NAME}: targets of shape {:?} and dtype {:?}, expected {rows:?} in u8, u32 or i64",
            targets.shape(),
            targets.dtype()
        );
    }
    let config = CrossEntropyConfig { label_smoothing: 0.0, ignore_index };
    let size = (rows.iter().product(), classes);
    let labels = targets.flatten_all()?;
    let targets = SoftmaxCrossEntropy::of_classes(&labels, size, log_probs.device(), config)?;
    let weight = match reduction {
        Reduction::Mean => targets.weight(),
        Reduction::Sum => LossWeight::fixed(1),
    };
    let loss = fused::run(Nll { targets, reduction }, (), &[Some(&widen(log_probs)?)])?;
    weight.give_to(&loss);
    Ok(loss)
}

struct Nll {
    targets: SoftmaxCrossEntropy,
    reduction: Reduction,
}

impl Nll {
    fn divisor(&self) -> f64 {
        self.reduction.divisor(self.targets.rows(self.targets.batch))
    }
}

impl FusedOp for Nll {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let rows = inputs[0].chunks_exact(self.targets.classes).enumerate();
        let of_row =
            |(row, xs): (usize, &[T])| self.targets.label(row).map(|class| xs[class].widen());
        let total: f64 = rows.filter_map(of_row).sum();
        loss[0] = T::narrow(-total / self.divisor());
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        if self.reduction == Reduction::Mean {
            self.targets.tell_pass();
        }
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let slope = T::narrow(-pass.dys[0].widen() / self.divisor());
        dxs.fill(T::zero());
        for (row, dx) in dxs.chunks_exact_mut(self.targets.classes).enumerate() {
            if let Some(class) = self.targets.label(row) {
                dx[class] = slope;
            }
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(log_probs)] = inputs else { unreachable!("one input") };
        let is_mean = self.reduction == Reduction::Mean;
        self.targets.composite_of(log_probs, None, Tensor::neg, is_mean)
    }
}
