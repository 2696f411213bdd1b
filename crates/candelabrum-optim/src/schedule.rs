//! Learning-rate schedules: the rate of a step as a function of its number.
//!
//! Steps are the optimizer's own, one for each [`Optimizer::step`](crate::Optimizer::step). So
//! there is one for each batch, and none for a skipped step. The first step has the number 0.
//! Unlike PyTorch's schedulers, a schedule has no state, so a resumed run has the rates of an
//! uninterrupted one. Rates are computed in f64.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::AllowedRange;
use crate::{OneCycle, Result};

/// A learning rate that may change from step to step. A number is a constant rate.
///
/// ```
/// use candelabrum_optim::{Schedule, Sgd};
///
/// let cosine = Schedule::Cosine { lr: 0.1, steps: 900, min: 0.001 };
/// let sgd = Sgd::new(cosine.warm_up(100, 0.1)).momentum(0.9);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Schedule {
    /// A constant rate.
    Constant(f64),
    /// `lr · factor^floor(step / every)`, PyTorch's `StepLR`.
    Step {
        /// The first rate.
        lr: f64,
        /// The number of steps between two changes.
        every: u64,
        /// The factor of each change.
        factor: f64,
    },
    /// `lr · factor^(the number of milestones up to step)`, PyTorch's `MultiStepLR`.
    MultiStep {
        /// The first rate.
        lr: f64,
        /// The steps at which the rate changes, in any order.
        milestones: Vec<u64>,
        /// The factor of each change.
        factor: f64,
    },
    /// `lr · decay_rate^(step / decay_steps)`: SINGA's `ExponentialDecay`, and PyTorch's
    /// `ExponentialLR` with `decay_steps: 1`.
    Exponential {
        /// The first rate.
        lr: f64,
        /// The number of steps in which the rate changes by the whole factor.
        decay_steps: u64,
        /// The factor.
        decay_rate: f64,
        /// Whether the exponent is rounded down, so that the rate changes every `decay_steps`.
        staircase: bool,
    },
    /// `min + (lr - min) · (1 + cos(π · step / steps)) / 2`, PyTorch's `CosineAnnealingLR`
    /// (Loshchilov and Hutter, ICLR 2017, arXiv 1608.03983). After step `steps` the rate rises
    /// again, as in PyTorch.
    Cosine {
        /// The first and highest rate.
        lr: f64,
        /// The step with the lowest rate.
        steps: u64,
        /// The lowest rate.
        min: f64,
    },
    /// `lr · (from + (to - from) · min(step, steps) / steps)`, PyTorch's `LinearLR`: warm-up or
    /// decay.
    Linear {
        /// The rate that both factors multiply.
        lr: f64,
        /// The factor of the first step.
        from: f64,
        /// The factor of step `steps` and of all later steps.
        to: f64,
        /// The number of steps of the change.
        steps: u64,
    },
    /// One rise and one fall, PyTorch's `OneCycleLR`.
    OneCycle(OneCycle),
    /// One schedule for some steps, then another from its step 0: PyTorch's `SequentialLR`. Made by
    /// [`Schedule::then`].
    Then {
        /// The first schedule.
        first: Box<Schedule>,
        /// The number of steps of the first schedule.
        steps: u64,
        /// The second schedule.
        next: Box<Schedule>,
    },
}

impl Schedule {
    /// The rate of step number `step`, counted from 0.
    pub fn rate(&self, step: u64) -> f32 {
        self.at(step) as f32
    }

    /// This schedule for `steps` steps, then `next` from its own step 0.
    #[must_use]
    pub fn then(self, steps: u64, next: impl Into<Self>) -> Self {
        Self::Then { first: Box::new(self), steps, next: Box::new(next.into()) }
    }

    /// This schedule after a warm-up: in the first `steps` steps the rate rises linearly from
    /// `from` times this schedule's first rate to that rate (Goyal et al. 2017, arXiv 1706.02677).
    /// Then this schedule runs from its own step 0. With 0 steps there is no warm-up.
    #[must_use]
    pub fn warm_up(self, steps: u64, from: f64) -> Self {
        if steps == 0 {
            return self;
        }
        Self::Linear { lr: self.at(0), from, to: 1.0, steps }.then(steps, self)
    }

    pub(crate) fn at(&self, step: u64) -> f64 {
        let t = step as f64;
        match self {
            &Self::Constant(lr) => lr,
            &Self::Step { lr, every, factor } => {
                // The check of the schedule refuses 0, but a rate may be computed before the check.
                lr * factor.powf(step.checked_div(every).unwrap_or(0) as f64)
            }
            Self::MultiStep { lr, milestones, factor } => {
                let passed = milestones.iter().filter(|&&milestone| milestone <= step).count();
                lr * factor.powf(passed as f64)
            }
            &Self::Exponential { lr, decay_steps, decay_rate, staircase } => {
                let exponent = t / decay_steps as f64;
                lr * decay_rate.powf(if staircase { exponent.floor() } else { exponent })
            }
            &Self::Cosine { lr, steps, min } => {
                min + (lr - min) * (1.0 + (PI * t / steps as f64).cos()) / 2.0
            }
            &Self::Linear { lr, from, to, steps } => {
                lr * (from + (to - from) * step.min(steps) as f64 / steps as f64)
            }
            Self::OneCycle(cycle) => cycle.at(step),
            Self::Then { first, steps, next } => {
                step.checked_sub(*steps).map_or_else(|| first.at(step), |step| next.at(step))
            }
        }
    }

    /// Refuses a schedule without meaningful rates. `name` is the setting that contains the
    /// schedule.
    pub(crate) fn check(&self, owner: &'static str, name: &str) -> Result<()> {
        use AllowedRange::{NotNegative, Positive};
        let settings: &[(&str, f64, AllowedRange)] = match self {
            &Self::Constant(lr) => return NotNegative.check(owner, name, lr),
            &Self::Step { lr, every, factor } => &[
                ("lr", lr, NotNegative),
                ("every", every as f64, Positive),
                ("factor", factor, NotNegative),
            ],
            &Self::MultiStep { lr, factor, .. } => {
                &[("lr", lr, NotNegative), ("factor", factor, NotNegative)]
            }
            &Self::Exponential { lr, decay_steps, decay_rate, .. } => &[
                ("lr", lr, NotNegative),
                ("decay_steps", decay_steps as f64, Positive),
                ("decay_rate", decay_rate, NotNegative),
            ],
            &Self::Cosine { lr, steps, min } => &[
                ("lr", lr, NotNegative),
                ("steps", steps as f64, Positive),
                ("min", min, NotNegative),
            ],
            &Self::Linear { lr, from, to, steps } => &[
                ("lr", lr, NotNegative),
                ("from", from, NotNegative),
                ("to", to, NotNegative),
                ("steps", steps as f64, Positive),
            ],
            Self::OneCycle(cycle) => return cycle.check(owner, name),
            Self::Then { first, next, .. } => {
                first.check(owner, name)?;
                return next.check(owner, name);
            }
        };
        settings.iter().try_for_each(|&(setting, value, range)| {
            range.check(owner, format_args!("{setting} of the schedule {name}"), value)
        })
    }
}

impl From<f64> for Schedule {
    fn from(lr: f64) -> Self {
        Self::Constant(lr)
    }
}

impl From<f32> for Schedule {
    fn from(lr: f32) -> Self {
        Self::Constant(f64::from(lr))
    }
}

impl From<OneCycle> for Schedule {
    fn from(cycle: OneCycle) -> Self {
        Self::OneCycle(cycle)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(lr) => write!(f, "{lr}"),
            Self::Step { lr, every, factor } => write!(f, "step({lr}, x{factor} every {every})"),
            Self::MultiStep { lr, milestones, factor } => {
                write!(f, "multi_step({lr}, x{factor} at {milestones:?})")
            }
            Self::Exponential { lr, decay_steps, decay_rate, staircase } => {
                let kind = if *staircase { ", staircase" } else { "" };
                write!(f, "exponential({lr}, x{decay_rate} in {decay_steps}{kind})")
            }
            Self::Cosine { lr, steps, min } => write!(f, "cosine({lr} to {min} in {steps})"),
            Self::Linear { lr, from, to, steps } => {
                write!(f, "linear({lr}, x{from} to x{to} in {steps})")
            }
            Self::OneCycle(cycle) => cycle.fmt(f),
            Self::Then { first, steps, next } => write!(f, "({first} for {steps} then {next})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_that_has_no_rates_is_named() {
        let cases = [
            (Schedule::Step { lr: 0.1, every: 0, factor: 0.1 }, "every"),
            (Schedule::MultiStep { lr: 0.1, milestones: vec![1], factor: f64::NAN }, "factor"),
            (Schedule::Cosine { lr: 0.1, steps: 0, min: 0.0 }, "steps"),
            (Schedule::Cosine { lr: 0.1, steps: 5, min: -1.0 }, "min"),
            (Schedule::Linear { lr: -0.1, from: 0.1, to: 1.0, steps: 5 }, "lr"),
            (OneCycle { start_share: 1.5, ..OneCycle::new(0.1, 10) }.into(), "start_share"),
            (OneCycle::new(0.1, 0).into(), "steps"),
            (Schedule::Constant(0.1).then(5, -1.0), "lr"),
            (Schedule::from(f32::INFINITY), "lr"),
        ];
        for (schedule, setting) in cases {
            let message = schedule.check("Sgd", "lr").unwrap_err().to_string();
            assert!(message.contains(setting), "{message}");
        }
    }

    #[test]
    fn a_warm_up_ends_where_the_schedule_begins() {
        let cosine = Schedule::Cosine { lr: 1.0, steps: 10, min: 0.0 };
        let warm = cosine.clone().warm_up(4, 0.5);
        assert_eq!([0, 2, 4].map(|step| warm.rate(step)), [0.5, 0.75, 1.0]);
        assert_eq!(warm.rate(4 + 7), cosine.rate(7));
        assert_eq!(
            warm.to_string(),
            "(linear(1, x0.5 to x1 in 4) for 4 then cosine(1 to 0 in 10))"
        );
    }
}
