//! A rule: the formula of an optimizer and its settings.

use std::fmt::Debug;

use candelabrum_memory::cuda::{Formula, SCALARS};

use crate::Result;
use crate::param_traits::ParamTraits;
use crate::parts::ParamParts;

/// An optimizer's formula. [`RuleOptimizer`](crate::RuleOptimizer) makes an
/// [`Optimizer`](crate::Optimizer) of it. The learning rate, schedules, groups, state and the count
/// of steps work in the same way for all rules.
pub trait UpdateRule: Debug + Send + Sync {
    /// The name in messages.
    const NAME: &'static str;

    /// Refuses meaningless settings.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting).
    fn check(&self) -> Result<()>;

    /// All settings of the rule, as `name=value`.
    fn describe(&self) -> String;

    /// The number of state vectors per parameter: at most [`MAX_STATES`](crate::MAX_STATES).
    fn states(&self) -> usize;

    /// The length of state vector number `state` of a parameter. An update with a part of the
    /// parameter, which an [element-wise](Self::is_elementwise) rule may get, needs vectors as long as
    /// the parameter.
    fn state_len(&self, state: usize, param: &ParamTraits) -> usize {
        let _ = state;
        param.elements
    }

    /// Whether the elements of the state vectors are numbers, so that replicas may average them. Bit
    /// patterns are copied only.
    fn has_numeric_state(&self) -> bool {
        true
    }

    /// The initial value of their elements.
    fn initial_state(&self) -> f32 {
        0.0
    }

    /// Whether each element's next value depends on this element alone: on its value, gradient and
    /// state. Only then may a part of a parameter be updated without the rest, as servers of a
    /// key-value store do ([`Optimizer::update_range`](crate::Optimizer::update_range)).
    fn is_elementwise(&self) -> bool {
        false
    }

    /// The formula as a kernel, and its scalars for one parameter in one step. One launch updates
    /// parameters with the same formula and up to 16 different sets of scalars. Without a kernel,
    /// parameters on a GPU are copied to the host and back at every update. The kernel must compute
    /// the same bits as [`Self::update`], apart from the order of sums.
    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        let _ = now;
        None
    }

    /// Computes the next value of one parameter on the host. `parts.state` contains the state vectors. Unused
    /// ones are empty.
    fn update(&self, now: StepSettings, parts: ParamParts<'_>);
}

/// The settings of one parameter in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// The number of this step, from 1.
    pub step: u64,
    /// The learning rate by schedule and group.
    pub lr: f64,
    /// The weight decay by group.
    pub weight_decay: f64,
    /// Whether a trust ratio may scale the rate.
    pub trust_ratio: bool,
    /// The shape of the whole parameter.
    pub param: ParamTraits,
}

impl StepSettings {
    /// `1 - beta^step`: the share of the gradients in an average that started at zero.
    pub fn bias_correction(&self, beta: f64) -> f64 {
        1.0 - beta.powf(self.step as f64)
    }
}
