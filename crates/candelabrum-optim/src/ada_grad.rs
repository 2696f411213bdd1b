//! AdaGrad, PyTorch's `torch.optim.Adagrad`, with step t from 1:
//!
//! ```text
//! g = grad + weight_decay · p
//! s = s + g²                                 s begins with initial_accumulator
//! p = p - lr / (1 + (t - 1) · lr_decay) · g / (sqrt(s) + eps)
//! ```
//!
//! Duchi, Hazan and Singer, JMLR 12, 2011. SINGA's AdaGrad adds eps (1e-8) inside of the square
//! root, `g / sqrt(s + eps)`, and has neither `lr_decay` nor an initial value.

use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// AdaGrad.
///
/// It has [the methods][methods] `new`, `lr_decay`, `initial_accumulator` and `eps`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::AdaGrad;
///
/// let optimizer = AdaGrad::new(1e-2).initial_accumulator(0.1);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CAdaGradRule%3E
pub type AdaGrad = RuleOptimizer<AdaGradRule>;

/// The formula of [`AdaGrad`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaGradRule {
    lr_decay: f64,
    initial_accumulator: f64,
    eps: f64,
}

impl AdaGrad {
    /// PyTorch's settings: eps 1e-10, no decay of the rate, sums that start at 0.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let rule = AdaGradRule { lr_decay: 0.0, initial_accumulator: 0.0, eps: 1e-10 };
        Self::with_rule(rule, lr, 0.0)
    }

    builder! { optimizer:
        /// Divides the rate of step t by `1 + (t - 1) · decay`, in addition to any schedule.
        lr_decay(lr_decay: f64) => optimizer.rule.lr_decay = lr_decay;
        /// The initial value of the sums of squares.
        initial_accumulator(value: f64) => optimizer.rule.initial_accumulator = value;
        /// The number added to the square root, outside of it.
        eps(eps: f64) => optimizer.rule.eps = eps;
    }
}

impl UpdateRule for AdaGradRule {
    const NAME: &'static str = "AdaGrad";

    fn check(&self) -> Result<()> {
        AllowedRange::NotNegative.check(Self::NAME, "lr_decay", self.lr_decay)?;
        AllowedRange::NotNegative.check(
            Self::NAME,
            "initial_accumulator",
            self.initial_accumulator,
        )?;
        AllowedRange::NotNegative.check(Self::NAME, "eps", self.eps)
    }

    fn describe(&self) -> String {
        let Self { lr_decay, initial_accumulator, eps } = self;
        format!("lr_decay={lr_decay} initial_accumulator={initial_accumulator} eps={eps}")
    }

    fn states(&self) -> usize {
        1
    }

    fn initial_state(&self) -> f32 {
        self.initial_accumulator as f32
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        let text = include_str!("kernels/ada_grad.cu");
        let formula = Formula { name: "ada_grad", text, needs_sums: false };
        let lr = now.lr / (1.0 + (now.step - 1) as f64 * self.lr_decay);
        Some((formula, [now.weight_decay, -lr, self.eps, 0.0, 0.0, 0.0, 0.0, 0.0]))
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        let lr = now.lr / (1.0 + (now.step - 1) as f64 * self.lr_decay);
        let factors = [now.weight_decay as f32, -lr as f32, self.eps as f32];
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, grad, state: [sums, ..] }| {
                ada_grad(value, grad, sums, factors);
            },
        );
    }
}

#[inline(always)]
fn ada_grad(value: &mut [f32], grad: &[f32], sums: &mut [f32], [l2, step, eps]: [f32; 3]) {
    for ((p, &g), s) in value.iter_mut().zip(grad).zip(sums) {
        let g = g + l2 * *p;
        *s += g * g;
        *p += step * g / (s.sqrt() + eps);
    }
}
