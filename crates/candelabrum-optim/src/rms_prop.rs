//! RMSProp, PyTorch's `torch.optim.RMSprop`:
//!
//! ```text
//! g = grad + weight_decay · p
//! s = alpha · s + (1 - alpha) · g²
//! a = a + (1 - alpha) · (g - a)              centered
//! d = sqrt(s) + eps                          (centered: sqrt(s - a²) + eps)
//! p = p - lr · g / d                         without momentum
//! b = momentum · b + g / d,  p = p - lr · b  with momentum
//! ```
//!
//! Tieleman and Hinton, COURSERA lecture 6.5, 2012. The centered form is from Graves 2013 (arXiv
//! 1308.0850, equation 40). SINGA's RMSProp (its `rho` is alpha, 0.9 by default) adds eps inside of
//! the square root, `g / sqrt(s + eps)`, and has neither momentum nor the centered form. If
//! rounding makes `s - a²` negative, PyTorch's value becomes NaN. Here the difference counts as 0.

use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::average::MovingAverage;
use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// RMSProp, with momentum and the centered form as options.
///
/// It has [the methods][methods] `new`, `alpha`, `eps`, `momentum` and `centered`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::RmsProp;
///
/// let optimizer = RmsProp::new(1e-2).alpha(0.9).momentum(0.9).centered();
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CRmsPropRule%3E
pub type RmsProp = RuleOptimizer<RmsPropRule>;

/// The formula of [`RmsProp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsPropRule {
    alpha: f64,
    eps: f64,
    momentum: f64,
    centered: bool,
}

impl RmsProp {
    /// PyTorch's settings: alpha 0.99, eps 1e-8.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let rule = RmsPropRule { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false };
        Self::with_rule(rule, lr, 0.0)
    }

    builder! { optimizer:
        /// The share of the average of squares that each step keeps.
        alpha(alpha: f64) => optimizer.rule.alpha = alpha;
        /// The number added to the square root, outside of it.
        eps(eps: f64) => optimizer.rule.eps = eps;
        /// The share of the velocity that each step keeps.
        momentum(momentum: f64) => optimizer.rule.momentum = momentum;
        /// Divides by the standard deviation instead of the root mean square.
        centered() => optimizer.rule.centered = true;
    }
}

impl UpdateRule for RmsPropRule {
    const NAME: &'static str = "RmsProp";

    fn check(&self) -> Result<()> {
        AllowedRange::Share.check(Self::NAME, "alpha", self.alpha)?;
        AllowedRange::NotNegative.check(Self::NAME, "eps", self.eps)?;
        AllowedRange::NotNegative.check(Self::NAME, "momentum", self.momentum)
    }

    fn describe(&self) -> String {
        let Self { alpha, eps, momentum, centered } = self;
        format!("alpha={alpha} eps={eps} momentum={momentum} centered={centered}")
    }

    fn states(&self) -> usize {
        1 + usize::from(self.momentum != 0.0) + usize::from(self.centered)
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        let text = include_str!("kernels/rms_prop.cu");
        let formula = Formula { name: "rms_prop", text, needs_sums: false };
        let (alpha, centered) = (self.alpha, f64::from(u8::from(self.centered)));
        let (decay, step) = (now.weight_decay, -now.lr);
        Some((formula, [decay, alpha, 1.0 - alpha, self.eps, self.momentum, step, centered, 0.0]))
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        let factors = RmsPropFactors {
            l2: now.weight_decay as f32,
            keep: self.alpha as f32,
            take: (1.0 - self.alpha) as f32,
            mean: MovingAverage::new(1.0 - self.alpha),
            eps: self.eps as f32,
            momentum: self.momentum as f32,
            step: -now.lr as f32,
        };
        let kind = (self.centered, self.momentum != 0.0);
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, grad, state: [squares, second, third] }| match kind {
                (false, false) => plain(value, grad, squares, &factors),
                (false, true) => with_momentum(value, grad, squares, second, &factors),
                (true, false) => centered(value, grad, squares, second, &factors),
                (true, true) => centered_momentum(value, grad, squares, second, third, &factors),
            },
        );
    }
}

/// The factors of one step.
struct RmsPropFactors {
    l2: f32,
    keep: f32,
    take: f32,
    mean: MovingAverage,
    eps: f32,
    momentum: f32,
    step: f32,
}

impl RmsPropFactors {
    #[inline(always)]
    fn square(&self, s: &mut f32, g: f32) -> f32 {
        *s = self.keep * *s + self.take * g * g;
        *s
    }

    #[inline(always)]
    fn variance(&self, s: &mut f32, a: &mut f32, g: f32) -> f32 {
        let s = self.square(s, g);
        *a = self.mean.moved(*a, g);
        let variance = s - *a * *a;
        // Not `f32::max`, which would drop a NaN.
        if variance < 0.0 { 0.0 } else { variance }
    }

    #[inline(always)]
    fn descend(&self, p: &mut f32, g: f32, s: f32) {
        *p += self.step * g / (s.sqrt() + self.eps);
    }

    #[inline(always)]
    fn roll(&self, p: &mut f32, b: &mut f32, g: f32, s: f32) {
        *b = self.momentum * *b + g / (s.sqrt() + self.eps);
        *p += self.step * *b;
    }
}

#[inline(always)]
fn plain(value: &mut [f32], grad: &[f32], squares: &mut [f32], factors: &RmsPropFactors) {
    for ((p, &g), s) in value.iter_mut().zip(grad).zip(squares) {
        let g = g + factors.l2 * *p;
        let s = factors.square(s, g);
        factors.descend(p, g, s);
    }
}

#[inline(always)]
fn with_momentum(
    value: &mut [f32],
    grad: &[f32],
    squares: &mut [f32],
    velocity: &mut [f32],
    factors: &RmsPropFactors,
) {
    for (((p, &g), s), b) in value.iter_mut().zip(grad).zip(squares).zip(velocity) {
        let g = g + factors.l2 * *p;
        let s = factors.square(s, g);
        factors.roll(p, b, g, s);
    }
}

#[inline(always)]
fn centered(
    value: &mut [f32],
    grad: &[f32],
    squares: &mut [f32],
    means: &mut [f32],
    factors: &RmsPropFactors,
) {
    for (((p, &g), s), a) in value.iter_mut().zip(grad).zip(squares).zip(means) {
        let g = g + factors.l2 * *p;
        let s = factors.variance(s, a, g);
        factors.descend(p, g, s);
    }
}

#[inline(always)]
fn centered_momentum(
    value: &mut [f32],
    grad: &[f32],
    squares: &mut [f32],
    means: &mut [f32],
    velocity: &mut [f32],
    factors: &RmsPropFactors,
) {
    let kept = squares.iter_mut().zip(means).zip(velocity);
    for ((p, &g), ((s, a), b)) in value.iter_mut().zip(grad).zip(kept) {
        let g = g + factors.l2 * *p;
        let s = factors.variance(s, a, g);
        factors.roll(p, b, g, s);
    }
}
