//! The weights of the losses of a step: how much each micro-batch of each rank counts in the mean over
//! the global batch.
//!
//! ```text
//! gradient = sum_rk w_rk g_rk / sum_rk w_rk            rank r of N, micro-batch k of K_r, weight w_rk
//!          = 1/N sum_r sum_k s_rk (g_rk / K_r)         with the shares s_rk = w_rk N K_r / sum w
//! ```
//!
//! An average over ranks divides by N, and the user divides each loss by the number K_r of micro-batches.
//! So each loss is multiplied by its share. Equal weights have shares of 1, exactly in f32.
//!
//! The sum of all weights is known only when a rank has computed its last loss. So a micro-batch is first
//! weighted by `w_rk / u`, where the *unit* `u` is the first weight of this rank that is not 0. The factor
//! `u N K_r / sum w`, which is the same for all of them, follows at the end.

use candelabrum_nn::LossWeight;
use candle_core::Tensor;

use crate::comm::{Collective, Group, Payload, Pending, ReduceOp};
use crate::{Error, Result};

/// The weights of this rank's losses in a step. [`DistOpt`](crate::DistOpt) has one. An optimizer of another
/// kind needs one if it averages over ranks or over micro-batches.
#[derive(Debug, Default)]
pub(crate) struct StepWeight {
    /// The losses so far.
    losses: usize,
    /// The sum of their weights.
    own: f64,
    /// The first weight that is not 0.
    unit: Option<f64>,
    /// Whether one of them varies, so that the ranks must exchange their sums.
    varies: bool,
    /// The weight of this rank that the ranks already exchange.
    begun: Option<(f64, Pending)>,
}

/// What all ranks count in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TotalWeight {
    /// The ranks that have a batch.
    pub(crate) active: usize,
    /// The sum of all weights. NaN if a rank has failed.
    pub(crate) sum: f64,
}

impl StepWeight {
    /// Begins to exchange the weight `weight` of this rank, that of all losses of its coming step together.
    /// All ranks of the group call it before they compute the losses, so that the exchange costs no time.
    pub(crate) fn begin(&mut self, weight: f64, group: &Group) {
        self.begun = Some((weight, start(group, true, weight)));
    }

    /// As [`begin`](Self::begin), for a rank without a batch.
    pub(crate) fn begin_without_batch(&mut self, group: &Group) {
        self.begun = Some((0.0, start(group, false, 0.0)));
    }

    /// Adds a loss of this weight, and returns the factor by which its gradients count among those of this rank. A loss without a weight counts 1.
    ///
    /// # Errors
    /// A device's error, if the weight has to be counted there.
    pub(crate) fn add(&mut self, weight: Option<&LossWeight>) -> Result<f64> {
        self.losses += 1;
        self.varies |= weight.is_some_and(LossWeight::varies);
        let weight = weight.map_or(Ok(1.0), LossWeight::value)?;
        self.own += weight;
        if weight == 0.0 {
            return Ok(0.0);
        }
        Ok(weight / *self.unit.get_or_insert(weight))
    }

    /// Makes the sum of all ranks NaN: this rank has failed, and the step must not pass for one in which nothing
    /// counts.
    pub(crate) fn spoil(&mut self) {
        self.own = f64::NAN;
    }

    /// Returns an error if the losses weigh something else than this rank has [begun](Self::begin) to exchange.
    ///
    /// # Errors
    /// [`Error::BegunWeight`].
    pub(crate) fn check(&self) -> Result<()> {
        match &self.begun {
            // Parts of a weight may add up to it with a rounding error.
            &Some((begun, _)) if (begun - self.own).abs() > 1e-9 * begun.max(self.own) => {
                Err(Error::BegunWeight { begun, counted: self.own })
            }
            _ => Ok(()),
        }
    }

    /// Whether the ranks exchange their sums. `uneven` as for [`total`](Self::total).
    pub(crate) fn is_exchanged(&self, uneven: bool) -> bool {
        // Servers must know of a step in which nothing counts.
        self.has_begun() || self.varies || uneven || self.own == 0.0
    }

    /// Whether a loss was added since the last step.
    pub(crate) fn has_losses(&self) -> bool {
        self.losses > 0
    }

    /// Whether a weight is being exchanged for a step that has not been taken.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// The weights of all ranks of `group`, of which `workers` compute losses. If no weight varies and `uneven` is not set, all ranks count as much as this
    /// one, and nothing is sent. All ranks call it together.
    ///
    /// # Errors
    /// A failure of another rank, a passed deadline or a disagreement between ranks.
    pub(crate) fn total(
        &mut self,
        group: &Group,
        workers: usize,
        uneven: bool,
    ) -> Result<TotalWeight> {
        let (is_exchanged, has_batch) = (self.is_exchanged(uneven), self.has_losses());
        let begun = self.begun.take();
        if group.world_size() == 1 {
            return Ok(TotalWeight { active: usize::from(has_batch), sum: self.own });
        }
        if !is_exchanged {
            return Ok(TotalWeight { active: workers, sum: self.own * workers as f64 });
        }
        let pending = match begun {
            Some((_, pending)) => pending,
            None => start(group, has_batch, self.own),
        };
        let sums = pending.wait()?.to_vec::<f64>()?;
        let &[active, sum] = &sums[..] else {
            let what = format!("{} numbers for the weights of the losses", sums.len());
            return Err(Error::Protocol { what });
        };
        Ok(TotalWeight { active: active as usize, sum })
    }

    /// The factor that makes shares of what [`add`](Self::add) has returned, for an average over so many
    /// ranks. All of this rank's gradients are multiplied by it. Then the next step begins.
    pub(crate) fn finish(&mut self, ranks: usize, total: TotalWeight) -> f64 {
        self.end(total.sum, ranks)
    }

    /// As [`finish`](Self::finish), for a rank that updates with its own gradients alone.
    pub(crate) fn finish_alone(&mut self) -> f64 {
        self.end(self.own, 1)
    }

    /// `loss` times a factor, whose gradients are zeros if the factor is 0.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn scaled(loss: &Tensor, factor: f64) -> Result<Tensor> {
        if factor == 0.0 {
            // candle would leave out the gradients of a loss that is multiplied by the number 0.
            return Ok(loss.broadcast_mul(&Tensor::zeros((), loss.dtype(), loss.device())?)?);
        }
        if factor as f32 == 1.0 { Ok(loss.clone()) } else { Ok((loss * factor)?) }
    }

    fn end(&mut self, sum: f64, ranks: usize) -> f64 {
        let Self { losses, unit, .. } = std::mem::take(self);
        // Without a unit all gradients of this rank are 0. A sum that is not finite has its own error.
        let factor = unit.unwrap_or(0.0) * (ranks * losses) as f64 / sum;
        if factor.is_finite() && factor > 0.0 { factor } else { 1.0 }
    }
}

fn start(group: &Group, has_batch: bool, weight: f64) -> Pending {
    let own = Payload::from_slice(&[f64::from(u8::from(has_batch)), weight]);
    group.start(Collective::AllReduce(ReduceOp::Sum), own.labelled("the weights of the losses"))
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::weighted;
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::World;

    fn weight(weight: f64) -> LossWeight {
        let loss = Tensor::new(0f32, &Device::Cpu).unwrap();
        LossWeight::from_loss(&weighted(&loss, weight).unwrap()).unwrap()
    }

    fn shares(weights: &[f64]) -> Vec<f64> {
        let group = Group::from(&World::single());
        let mut step = StepWeight::default();
        let first: Vec<f64> =
            weights.iter().map(|w| step.add(Some(&weight(*w))).unwrap()).collect();
        let total = step.total(&group, 1, false).unwrap();
        let factor = step.finish(1, total);
        assert!(!step.has_losses());
        first.into_iter().map(|share| share * factor).collect()
    }

    #[test]
    fn equal_weights_have_shares_of_one() {
        for weights in [&[3.0][..], &[7.0; 7], &[0.1; 10], &[1e300; 3]] {
            assert!(shares(weights).iter().all(|share| *share as f32 == 1.0), "{weights:?}");
        }
    }

    #[test]
    fn shares_are_weights_in_units_of_their_mean() {
        assert_eq!(shares(&[1.0, 3.0]), [0.5, 1.5]);
        assert_eq!(shares(&[0.0, 2.0, 4.0]), [0.0, 1.0, 2.0]);
        assert_eq!(shares(&[0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn another_weight_than_the_one_that_was_begun_is_an_error() {
        let group = Group::from(&World::single());
        let mut step = StepWeight::default();
        step.begin(2.0, &group);
        step.add(Some(&weight(3.0))).unwrap();
        let error = step.check().unwrap_err().to_string();
        assert!(error.contains("weigh 3,") && error.contains("weight 2 was begun"), "{error}");
        step.total(&group, 1, false).unwrap();
        step.check().unwrap();
    }
}
