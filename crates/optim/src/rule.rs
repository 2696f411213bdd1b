//! What distinguishes one optimizer from another: a formula and its settings.

use std::fmt::Debug;

use crate::Result;
use crate::parts::Parts;

/// An optimizer's formula. [`RuleOptimizer`](crate::RuleOptimizer) makes an [`Optimizer`](crate::Optimizer) of it:
/// learning rate, schedules, groups, state and the count of steps are the same for all.
pub trait Rule: Debug + Send {
    /// The name in messages.
    const NAME: &'static str;

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting).
    fn check(&self) -> Result<()>;

    /// Every setting of its own, as `name=value`.
    fn describe(&self) -> String;

    /// How many vectors it keeps for a parameter: at most [`MAX_STATES`](crate::MAX_STATES).
    fn states(&self) -> usize;

    /// What their elements begin with.
    fn initial_state(&self) -> f32 {
        0.0
    }

    /// The next value of one parameter. `parts.state` has the vectors kept for it; those that are
    /// not kept are empty.
    fn update(&self, now: Now, parts: Parts<'_>);
}

/// What holds for one parameter in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// The number of this step, from 1.
    pub step: u64,
    /// The learning rate by schedule and group.
    pub lr: f64,
    /// The weight decay by group.
    pub weight_decay: f64,
    /// Whether a trust ratio may scale the rate.
    pub trust_ratio: bool,
}

impl Now {
    /// `1 - beta^step`: the share of the gradients in an average that began with zeros.
    pub fn bias_correction(&self, beta: f64) -> f64 {
        1.0 - beta.powf(self.step as f64)
    }
}
