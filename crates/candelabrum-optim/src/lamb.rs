//! LAMB: Adam with steps whose length, layer by layer, is proportional to the norm of the layer's
//! weights. You et al., ICLR 2020 (arXiv 1904.00962), algorithm 2, with step t from 1:
//!
//! ```text
//! m = m + (1 - beta1) · (grad - m)          as `average.rs` computes it
//! v = beta2 · v + (1 - beta2) · grad²
//! r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay · p
//! p = p - lr · ‖p‖ / ‖r‖ · r
//! ```
//!
//! Where implementations differ, this one follows the paper: bias correction is on, the scaling
//! function is the identity, and gradients are not clipped (use [`Clip`](crate::Clip)). The trust
//! ratio ‖p‖ / ‖r‖ is 1 if either norm is 0, as in the authors' code. A group can set it to 1 too,
//! as the authors do for biases and norms. A layer is one parameter.

use candelabrum_memory::chunks::squares;
use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::average::MovingAverage;
use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// LAMB, for large batches.
///
/// It has [the methods][methods] `new`, `betas` and `eps`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::Lamb;
///
/// let optimizer = Lamb::new(1e-3).betas(0.9, 0.98).weight_decay(0.01);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CLambRule%3E
pub type Lamb = RuleOptimizer<LambRule>;

/// The formula of [`Lamb`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LambRule {
    beta1: f64,
    beta2: f64,
    eps: f64,
}

impl Lamb {
    /// The paper's settings: betas 0.9 and 0.999, eps 1e-6, weight decay 0.01.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self::with_rule(LambRule { beta1: 0.9, beta2: 0.999, eps: 1e-6 }, lr, 0.01)
    }

    builder! { optimizer:
        /// The shares of the averages of the gradient and of its square that each step keeps.
        betas(beta1: f64, beta2: f64) => {
            (optimizer.rule.beta1, optimizer.rule.beta2) = (beta1, beta2);
        };
        /// The number added to the square root, outside of it.
        eps(eps: f64) => optimizer.rule.eps = eps;
    }
}

impl LambRule {
    /// The numbers of the formula in one step.
    fn factors(&self, now: StepSettings) -> [f64; SCALARS] {
        let scale1 = 1.0 / now.bias_correction(self.beta1);
        let scale2 = 1.0 / now.bias_correction(self.beta2);
        let (take1, take2) = (1.0 - self.beta1, 1.0 - self.beta2);
        [take1, self.beta2, take2, scale1, scale2, self.eps, now.weight_decay, -now.lr]
    }
}

impl UpdateRule for LambRule {
    const NAME: &'static str = "Lamb";

    fn check(&self) -> Result<()> {
        AllowedRange::Share.check(Self::NAME, "beta1", self.beta1)?;
        AllowedRange::Share.check(Self::NAME, "beta2", self.beta2)?;
        AllowedRange::NotNegative.check(Self::NAME, "eps", self.eps)
    }

    fn describe(&self) -> String {
        let Self { beta1, beta2, eps } = self;
        format!("beta1={beta1} beta2={beta2} eps={eps}")
    }

    fn states(&self) -> usize {
        2
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        const TEXT: &str = include_str!("kernels/lamb.cu");
        const ALONE: &str = concat!("#define NO_TRUST_RATIO\n", include_str!("kernels/lamb.cu"));
        let (name, text) =
            if now.trust_ratio { ("lamb", TEXT) } else { ("lamb_without_trust_ratio", ALONE) };
        // The first pass moves the averages, also where nothing is summed.
        Some((Formula { name, text, needs_sums: true }, self.factors(now)))
    }

    fn update(&self, now: StepSettings, mut parts: ParamParts<'_>) {
        let factors = self.factors(now);
        let first = MovingAverage::new(factors[0]);
        let [_, keep2, take2, scale1, scale2, eps, decay, _] = factors.map(|factor| factor as f32);
        let direction = UpdateDirection { scale1, scale2, eps, decay };
        let [value, step] = parts.again().sums(
            #[inline(always)]
            |ParamParts { value, grad, state: [m, v, _] }| {
                average(grad, m, v, first, [keep2, take2]);
                if now.trust_ratio { direction.squares(value, m, v) } else { [0.0; 2] }
            },
        );
        let ratio = trust_ratio(value.sqrt(), step.sqrt());
        let step = (-now.lr * ratio) as f32;
        // Computes the direction again, which costs less than storing and reading it.
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, state: [m, v, _], .. }| direction.go(value, m, v, step),
        );
    }
}

/// `value / step`, or 1 if one of them is 0 or NaN.
fn trust_ratio(value: f64, step: f64) -> f64 {
    if value > 0.0 && step > 0.0 { value / step } else { 1.0 }
}

#[inline(always)]
fn average(
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    first: MovingAverage,
    [keep2, take2]: [f32; 2],
) {
    for ((&g, m), v) in grad.iter().zip(m).zip(v) {
        *m = first.moved(*m, g);
        *v = keep2 * *v + take2 * g * g;
    }
}

/// The direction of a step, before its length is known.
struct UpdateDirection {
    scale1: f32,
    scale2: f32,
    eps: f32,
    decay: f32,
}

impl UpdateDirection {
    #[inline(always)]
    fn of(&self, p: f32, m: f32, v: f32) -> f32 {
        m * self.scale1 / ((v * self.scale2).sqrt() + self.eps) + self.decay * p
    }

    /// The sums of squares of the value and of the direction, computed block by block on the stack.
    #[inline(always)]
    fn squares(&self, value: &[f32], m: &[f32], v: &[f32]) -> [f64; 2] {
        const BLOCK: usize = 256;
        let mut block = [0.0; BLOCK];
        let mut sums = [squares(value), 0.0];
        for ((value, m), v) in value.chunks(BLOCK).zip(m.chunks(BLOCK)).zip(v.chunks(BLOCK)) {
            for (((r, &p), &m), &v) in block.iter_mut().zip(value).zip(m).zip(v) {
                *r = self.of(p, m, v);
            }
            sums[1] += squares(&block[..value.len()]);
        }
        sums
    }

    #[inline(always)]
    fn go(&self, value: &mut [f32], m: &[f32], v: &[f32], step: f32) {
        for ((p, &m), &v) in value.iter_mut().zip(m).zip(v) {
            *p += step * self.of(*p, m, v);
        }
    }
}
