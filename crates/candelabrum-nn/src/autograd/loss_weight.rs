//! The weight of a loss: how much of its batch it counted.
//!
//! A mean over parts must be weighted by what the parts counted, or it is a mean of means. So the
//! tensor of a loss carries its weight, from where the loss is computed to the optimizer and to the
//! metrics. The losses of this crate carry it by themselves. [`weighted`] gives it to any other one.
//!
//! candle's tensors have no place for it, so each thread keeps a table of the weights of its last losses by the
//! tensors' numbers. Every tensor has a number of its own, so no other tensor can be mistaken for a
//! loss. A tensor that is computed from a loss (divided, added to another loss, detached) is another
//! tensor and carries no weight.

use std::cell::RefCell;
use std::collections::VecDeque;

use candle_core::{DType, Result, Tensor, TensorId, bail};

/// The number of losses whose weights are kept. A step uses its losses soon after it has computed them, if only after
/// those of all its micro-batches.
const KEPT: usize = 4096;

/// The number of weights that may have labels in the memory of a GPU.
const KEPT_ON_GPU: usize = 64;

thread_local! {
    static LAST: RefCell<VecDeque<(TensorId, LossWeight)>> = const { RefCell::new(VecDeque::new()) };
}

/// What a loss counted: the rows of a batch, for instance, that are not ignored.
#[derive(Clone, Debug)]
pub struct LossWeight {
    counted: TargetCount,
    varies: bool,
    ignored: Option<i64>,
}

#[derive(Clone, Debug)]
enum TargetCount {
    Known(f64),
    /// All class indices on a GPU but these.
    AllBut {
        labels: Tensor,
        ignored: i64,
    },
}

impl LossWeight {
    /// The weight of a loss that counts `counted` of its batch, always so many for a batch of this shape.
    pub fn fixed(counted: usize) -> Self {
        Self { counted: TargetCount::Known(counted as f64), varies: false, ignored: None }
    }

    /// A weight of this value, which varies.
    ///
    /// # Errors
    /// A weight that is negative or not finite.
    pub fn new(weight: f64) -> Result<Self> {
        if !(weight >= 0.0 && weight.is_finite()) {
            bail!("the weight of a loss is {weight}, expected a number from 0 on: what it counted");
        }
        Ok(Self { counted: TargetCount::Known(weight), varies: true, ignored: None })
    }

    /// The weight of a loss that counts the `counted` targets that are not of the class `ignored`.
    pub(crate) fn of_rows(counted: usize, ignored: i64) -> Self {
        Self { counted: TargetCount::Known(counted as f64), varies: true, ignored: Some(ignored) }
    }

    /// As [`Self::of_rows`], for class indices on a GPU, which are counted when the number is needed.
    pub(crate) fn of_rows_on_gpu(labels: Tensor, ignored: i64) -> Self {
        let counted = TargetCount::AllBut { labels, ignored };
        Self { counted, varies: true, ignored: Some(ignored) }
    }

    /// The weight that `loss` carries. The thread that has computed the loss knows it.
    pub fn from_loss(loss: &Tensor) -> Option<Self> {
        LAST.with_borrow(|last| {
            let mut newest_first = last.iter().rev();
            newest_first.find(|(id, _)| *id == loss.id()).map(|(_, weight)| weight.clone())
        })
    }

    /// Lets `loss` carry this weight.
    pub fn give_to(self, loss: &Tensor) {
        let most = if self.labels().is_some() { KEPT_ON_GPU } else { KEPT };
        LAST.with_borrow_mut(|last| {
            while last.len() >= most {
                last.pop_front();
            }
            last.push_back((loss.id(), self));
        });
    }

    /// The class indices on a GPU that are counted when the number is needed.
    pub fn labels(&self) -> Option<&Tensor> {
        match &self.counted {
            TargetCount::Known(_) => None,
            TargetCount::AllBut { labels, .. } => Some(labels),
        }
    }

    /// How much the loss counted. For class indices on a GPU with a class to ignore, it waits for the GPU.
    ///
    /// # Errors
    /// A device's error.
    pub fn value(&self) -> Result<f64> {
        match &self.counted {
            TargetCount::Known(counted) => Ok(*counted),
            TargetCount::AllBut { labels, ignored } => {
                let counted = labels.to_dtype(DType::I64)?.ne(*ignored)?.to_dtype(DType::F32)?;
                // In f32 the sum of a long row of ones would stop at 2^24.
                let rows = counted.flatten_all()?.to_vec1::<f32>()?;
                Ok(rows.into_iter().map(f64::from).sum())
            }
        }
    }

    /// The same weight, counted now: later changes of class indices in place do not change it.
    ///
    /// # Errors
    /// Those of [`Self::value`].
    pub fn counted(&self) -> Result<Self> {
        Ok(Self { counted: TargetCount::Known(self.value()?), ..self.clone() })
    }

    /// Whether batches of one shape may have different weights. Replicas must then exchange them.
    pub fn varies(&self) -> bool {
        self.varies
    }

    /// The class whose targets the loss ignores.
    pub fn ignored(&self) -> Option<i64> {
        self.ignored
    }
}

/// `loss`, which carries this weight from now on: how much of its batch it counted, in any unit that is
/// the same on all ranks (samples, tokens, pixels).
///
/// Give the loss itself to the optimizer. A tensor that is computed from it carries no weight.
///
/// ```
/// use candelabrum_nn::{LossWeight, weighted};
/// use candle_core::{Device, Tensor};
///
/// // Two of three samples have a target, and the loss is the mean over these two.
/// let difference = Tensor::new(&[0.5_f32, -1.5, 0.0], &Device::Cpu)?;
/// let has_target = Tensor::new(&[1.0_f32, 1.0, 0.0], &Device::Cpu)?;
/// let loss = ((difference.sqr()? * has_target)?.sum_all()? / 2.0)?;
/// let loss = weighted(&loss, 2.0)?;
/// assert_eq!(LossWeight::from_loss(&loss).expect("it has one").value()?, 2.0);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// A weight that is negative or not finite.
pub fn weighted(loss: &Tensor, weight: f64) -> Result<Tensor> {
    let ignored = LossWeight::from_loss(loss).and_then(|weight| weight.ignored);
    LossWeight { ignored, ..LossWeight::new(weight)? }.give_to(loss);
    Ok(loss.clone())
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn scalar() -> Tensor {
        Tensor::new(1f32, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_tensor_carries_its_last_weight_and_what_is_computed_from_it_none() {
        let loss = scalar();
        assert!(LossWeight::from_loss(&loss).is_none());
        LossWeight::fixed(3).give_to(&loss);
        let weight = LossWeight::from_loss(&loss.clone()).unwrap();
        assert_eq!(
            (weight.value().unwrap(), weight.varies(), weight.ignored()),
            (3.0, false, None)
        );
        weighted(&loss, 0.0).unwrap();
        let weight = LossWeight::from_loss(&loss).unwrap();
        assert_eq!((weight.value().unwrap(), weight.varies()), (0.0, true));
        assert!(LossWeight::from_loss(&(&loss / 2.0).unwrap()).is_none());
        let loss = Var::new(1f32, &Device::Cpu).unwrap().sqr().unwrap();
        weighted(&loss, 2.0).unwrap();
        assert!(LossWeight::from_loss(&loss.detach()).is_none());
    }

    #[test]
    fn labels_that_are_not_ignored_are_counted() {
        let labels = Tensor::new(&[[1i64, -100], [-100, 2]], &Device::Cpu).unwrap();
        let weight = LossWeight::of_rows_on_gpu(labels, -100);
        assert_eq!((weight.value().unwrap(), weight.ignored()), (2.0, Some(-100)));
    }

    #[test]
    fn meaningless_weights_are_refused() {
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(weighted(&scalar(), weight).is_err(), "{weight}");
        }
    }
}
