//! Loss scaling: the gradients of f16 parameters are computed from a multiple of the loss, so that
//! small ones do not become 0, and are divided again as f32 numbers in the buckets.
//!
//! Micikevicius et al., "Mixed Precision Training", ICLR 2018 (arXiv:1710.03740). The dynamic scale is
//! that of `torch.amp.GradScaler`: a step whose gradients overflow is left out on all ranks and halves
//! the scale, and after a number of good steps the scale is doubled.

use std::cell::Cell;

use candelabrum_nn::ops;
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::step_end::StepEnd;
use crate::{Error, Result, StepWeight};

/// The factor of the loss. Powers of two change no bit of f32 gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossScale {
    /// No scaling.
    #[default]
    Off,
    /// This factor in every step. Gradients that overflow are an error.
    Fixed(f32),
    /// A factor that adapts.
    Dynamic {
        /// The factor of the first step.
        initial: f32,
        /// The number of good steps after which the factor is doubled.
        interval: u32,
    },
}

impl LossScale {
    /// PyTorch's dynamic scale: 65,536 at first, doubled after 2,000 good steps.
    pub const DYNAMIC: Self = Self::Dynamic { initial: 65_536.0, interval: 2_000 };

    pub(super) fn check(self) -> Result<()> {
        let (factor, interval) = match self {
            Self::Off => return Ok(()),
            Self::Fixed(factor) => (factor, 1),
            Self::Dynamic { initial, interval } => (initial, interval),
        };
        if factor.is_normal() && factor > 0.0 && interval > 0 {
            return Ok(());
        }
        let (setting, value) = ("loss_scale", format!("{self:?}"));
        Err(Error::Setting { setting, value, range: "a factor and an interval above 0" })
    }
}

/// The scale of a run. It is the same on all ranks, because they all leave out the same steps.
#[derive(Debug)]
pub(super) struct LossScaler {
    setting: LossScale,
    factor: f32,
    /// Good steps since the last change of the factor.
    good: u32,
}

impl LossScaler {
    pub(super) fn new(setting: LossScale) -> Self {
        let factor = match setting {
            LossScale::Off => 1.0,
            LossScale::Fixed(factor) | LossScale::Dynamic { initial: factor, .. } => factor,
        };
        Self { setting, factor, good: 0 }
    }

    /// The factor, and the good steps since its last change.
    pub(super) fn state(&self) -> (f32, u32) {
        (self.factor, self.good)
    }

    /// Continues with a saved state. A factor that does not adapt stays as it is set.
    pub(super) fn load_state(&mut self, factor: f32, good: u32) {
        if let LossScale::Dynamic { .. } = self.setting {
            (self.factor, self.good) = (factor, good);
        }
    }

    /// The loss times the factor, and times the [share](crate::StepWeight) of the loss.
    pub(super) fn scaled(&self, loss: &Tensor, share: f64) -> Result<Tensor> {
        StepWeight::scaled(loss, f64::from(self.factor) * share)
    }

    /// Whether losses are scaled.
    pub(super) fn is_on(&self) -> bool {
        self.setting != LossScale::Off
    }

    /// The factor that gradients are multiplied by; `None` if it is 1.
    pub(super) fn inverse(&self) -> Option<f32> {
        (self.factor != 1.0).then(|| 1.0 / self.factor)
    }

    /// The end of a step, and a note for the user. With a dynamic scale, a step whose gradients
    /// overflowed is skipped instead of failed.
    pub(super) fn judge(&mut self, end: StepEnd) -> (StepEnd, Option<String>) {
        let LossScale::Dynamic { interval, .. } = self.setting else { return (end, None) };
        match end {
            StepEnd::Failed(Error::NotFinite { what, .. }) if what != "the loss" => {
                let factor = self.factor;
                self.factor = (factor / 2.0).max(f32::MIN_POSITIVE);
                self.good = 0;
                let why = format!("{what} is not finite at a loss scale of {factor}");
                (StepEnd::Skipped, Some(format!("a step was left out: {why}")))
            }
            StepEnd::Taken => {
                self.good += 1;
                if self.good >= interval && self.factor < f32::MAX / 2.0 {
                    (self.factor, self.good) = (self.factor * 2.0, 0);
                }
                (StepEnd::Taken, None)
            }
            other => (other, None),
        }
    }
}

/// The factor of a loss in memory, from which a recorded pass reads it. A pass repeats its arguments, and
/// the factor may change between two replays.
#[derive(Debug)]
pub(super) struct RecordedScale {
    factor: Cell<f32>,
    /// A scalar in f32.
    memory: Tensor,
}

impl RecordedScale {
    /// A factor of 1, in memory on `device`.
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self { factor: Cell::new(1.0), memory: Tensor::new(1f32, device)? })
    }

    /// The loss times the factor.
    pub(super) fn scaled(&self, loss: &Tensor) -> Result<Tensor> {
        let factor = self.memory.to_dtype(loss.dtype())?.reshape(loss.shape())?;
        Ok(ops::mul(loss, &factor)?)
    }

    /// Writes today's factor, for a loss with this share. Waits for the device if it has changed.
    pub(super) fn write(&self, scaler: &LossScaler, share: f64) -> Result<()> {
        let factor = (f64::from(scaler.factor) * share) as f32;
        if factor != self.factor.get() {
            let memory = self.memory.reshape(1)?;
            memory.slice_set(&Tensor::new(&[factor], memory.device())?, 0, 0)?;
            self.factor.set(factor);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overflow() -> StepEnd {
        StepEnd::Failed(Error::NotFinite { what: "the gradient of `w`".to_owned(), rank: 1 })
    }

    #[test]
    fn an_overflow_halves_the_scale_and_good_steps_double_it() {
        let mut scaler = LossScaler::new(LossScale::Dynamic { initial: 8.0, interval: 3 });
        let (end, note) = scaler.judge(overflow());
        assert!(matches!(end, StepEnd::Skipped));
        assert!(note.is_some_and(|note| note.contains("`w`") && note.contains("8")));
        assert_eq!((scaler.factor, scaler.inverse()), (4.0, Some(0.25)));
        for factor in [4.0, 4.0, 8.0] {
            assert!(matches!(scaler.judge(StepEnd::Taken).0, StepEnd::Taken));
            assert_eq!(scaler.factor, factor);
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_is_an_error_at_any_scale() {
        let mut scaler = LossScaler::new(LossScale::DYNAMIC);
        let loss = StepEnd::Failed(Error::NotFinite { what: "the loss".to_owned(), rank: 0 });
        assert!(matches!(scaler.judge(loss).0, StepEnd::Failed(_)));
        let mut fixed = LossScaler::new(LossScale::Fixed(2.0));
        assert!(matches!(fixed.judge(overflow()).0, StepEnd::Failed(_)));
    }

    #[test]
    fn meaningless_factors_are_refused() {
        for bad in [
            LossScale::Fixed(0.0),
            LossScale::Fixed(f32::NAN),
            LossScale::Dynamic { initial: -1.0, interval: 1 },
            LossScale::Dynamic { initial: 1.0, interval: 0 },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(LossScale::DYNAMIC.check().is_ok() && LossScale::Off.check().is_ok());
    }
}
