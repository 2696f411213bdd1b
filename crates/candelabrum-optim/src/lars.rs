//! LARS: SGD with layer rates proportional to the ratio of the norms of weight and gradient. You,
//! Gitman and Ginsburg 2017 (arXiv 1708.03888), algorithm 1:
//!
//! ```text
//! ratio = trust_coefficient · ‖p‖ / (‖grad‖ + weight_decay · ‖p‖)
//! v = momentum · v + lr · ratio · (grad + weight_decay · p)
//! p = p - v
//! ```
//!
//! As in the paper, the rate is part of the velocity, so a new rate affects only new gradients. In
//! PyTorch's SGD the rate multiplies the whole velocity. The ratio is 1 if ‖p‖ or ‖grad‖ is 0.
//! A group can set it to 1 too, as is usual for biases and norms. A layer is one parameter.

use candelabrum_memory::chunks::squares;
use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// LARS, for large batches.
///
/// It has [the methods][methods] `new`, `momentum` and `trust_coefficient`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::Lars;
///
/// let optimizer = Lars::new(2.0).momentum(0.9).trust_coefficient(1e-3);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CLarsRule%3E
pub type Lars = RuleOptimizer<LarsRule>;

/// The formula of [`Lars`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LarsRule {
    momentum: f64,
    trust_coefficient: f64,
}

impl Lars {
    /// The paper's settings: momentum 0.9, trust coefficient 0.001, weight decay 0.0005.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self::with_rule(LarsRule { momentum: 0.9, trust_coefficient: 0.001 }, lr, 0.0005)
    }

    builder! { optimizer:
        /// The share of the velocity that each step keeps.
        momentum(momentum: f64) => optimizer.rule.momentum = momentum;
        /// The distance that a layer may move, as a share of its norm.
        trust_coefficient(coefficient: f64) => optimizer.rule.trust_coefficient = coefficient;
    }
}

impl UpdateRule for LarsRule {
    const NAME: &'static str = "Lars";

    fn check(&self) -> Result<()> {
        AllowedRange::NotNegative.check(Self::NAME, "momentum", self.momentum)?;
        AllowedRange::Positive.check(Self::NAME, "trust_coefficient", self.trust_coefficient)
    }

    fn describe(&self) -> String {
        let Self { momentum, trust_coefficient } = self;
        format!("momentum={momentum} trust_coefficient={trust_coefficient}")
    }

    fn states(&self) -> usize {
        1
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        let text = include_str!("kernels/lars.cu");
        let formula = Formula { name: "lars", text, needs_sums: now.trust_ratio };
        let coefficient = if now.trust_ratio { self.trust_coefficient } else { 0.0 };
        let (lr, decay) = (now.lr, now.weight_decay);
        Some((formula, [lr, decay, self.momentum, coefficient, 0.0, 0.0, 0.0, 0.0]))
    }

    fn update(&self, now: StepSettings, mut parts: ParamParts<'_>) {
        let mut rate = now.lr;
        if now.trust_ratio {
            let norms = parts.again().sums(
                #[inline(always)]
                |chunk| [squares(chunk.value), squares(chunk.grad)],
            );
            let [value, grad] = norms.map(f64::sqrt);
            // Not the divisor is compared with 0: with weight decay it is not 0 where the gradient is.
            if value > 0.0 && grad > 0.0 {
                rate *= self.trust_coefficient * value / (grad + now.weight_decay * value);
            }
        }
        let factors = [now.weight_decay as f32, self.momentum as f32, rate as f32];
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, grad, state: [velocity, ..] }| {
                lars(value, grad, velocity, factors);
            },
        );
    }
}

#[inline(always)]
fn lars(value: &mut [f32], grad: &[f32], velocity: &mut [f32], [decay, keep, rate]: [f32; 3]) {
    for ((p, &g), v) in value.iter_mut().zip(grad).zip(velocity) {
        *v = keep * *v + rate * (g + decay * *p);
        *p -= *v;
    }
}
