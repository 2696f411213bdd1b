//! Adam and AdamW, PyTorch's `torch.optim.Adam` and `AdamW`, with step t from 1:
//!
//! ```text
//! g = grad + weight_decay · p                Adam: L2, part of the gradient
//! p = p · (1 - lr · weight_decay)            AdamW: decoupled, first
//! m = m + (1 - beta1) · (g - m)              as `average.rs` computes it
//! v = beta2 · v + (1 - beta2) · g²
//! s = v                                      AMSGrad: s = max(s, v)
//! p = p - lr / (1 - beta1^t) · m / (sqrt(s) / sqrt(1 - beta2^t) + eps)
//! ```
//!
//! Kingma and Ba, ICLR 2015 (arXiv 1412.6980). AMSGrad: Reddi et al., ICLR 2018 (arXiv 1904.09237).
//! AdamW: Loshchilov and Hutter, ICLR 2019 (arXiv 1711.05101). SINGA's Adam adds eps in the same
//! place and has L2 decay. Its default learning rate is 0.1, PyTorch's is 0.001. Here there is no
//! default.

use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::average::MovingAverage;
use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// Adam with weight decay as part of the gradient.
///
/// It has [the methods][methods] `new`, `betas`, `eps` and `amsgrad`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::Adam;
///
/// let optimizer = Adam::new(1e-3).betas(0.9, 0.98).eps(1e-9);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CAdamRule%3CDECOUPLED%3E%3E
pub type Adam = RuleOptimizer<AdamRule<false>>;

/// Adam with weight decay separate from the gradient. The default decay is 0.01.
///
/// It has [the methods][methods] `new`, `betas`, `eps` and `amsgrad`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::AdamW;
///
/// let optimizer = AdamW::new(3e-4).betas(0.9, 0.95).weight_decay(0.1);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CAdamRule%3CDECOUPLED%3E%3E
pub type AdamW = RuleOptimizer<AdamRule<true>>;

/// The formula of [`Adam`] and [`AdamW`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamRule<const DECOUPLED: bool> {
    beta1: f64,
    beta2: f64,
    eps: f64,
    amsgrad: bool,
}

impl<const DECOUPLED: bool> RuleOptimizer<AdamRule<DECOUPLED>> {
    /// PyTorch's settings: betas 0.9 and 0.999, eps 1e-8.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let rule = AdamRule { beta1: 0.9, beta2: 0.999, eps: 1e-8, amsgrad: false };
        Self::with_rule(rule, lr, if DECOUPLED { 0.01 } else { 0.0 })
    }

    builder! { optimizer:
        /// The shares of the averages of the gradient and of its square that each step keeps.
        betas(beta1: f64, beta2: f64) => optimizer.rule.set_betas(beta1, beta2);
        /// The number added to the square root, outside of it.
        eps(eps: f64) => optimizer.rule.set_eps(eps);
        /// Divides by the largest average of squares so far.
        amsgrad() => optimizer.rule.amsgrad = true;
    }
}

impl<const DECOUPLED: bool> AdamRule<DECOUPLED> {
    pub(crate) fn set_betas(&mut self, beta1: f64, beta2: f64) {
        (self.beta1, self.beta2) = (beta1, beta2);
    }

    pub(crate) fn set_eps(&mut self, eps: f64) {
        self.eps = eps;
    }

    /// The numbers of [`AdamFactors`] in f64.
    pub(crate) fn factors(&self, now: StepSettings) -> [f64; SCALARS] {
        let decay = now.weight_decay;
        [
            if DECOUPLED { 0.0 } else { decay },
            if DECOUPLED { 1.0 - now.lr * decay } else { 1.0 },
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            now.bias_correction(self.beta2).sqrt(),
            self.eps,
            -now.lr / now.bias_correction(self.beta1),
        ]
    }
}

impl<const DECOUPLED: bool> UpdateRule for AdamRule<DECOUPLED> {
    const NAME: &'static str = if DECOUPLED { "AdamW" } else { "Adam" };

    fn check(&self) -> Result<()> {
        AllowedRange::Share.check(Self::NAME, "beta1", self.beta1)?;
        AllowedRange::Share.check(Self::NAME, "beta2", self.beta2)?;
        AllowedRange::NotNegative.check(Self::NAME, "eps", self.eps)
    }

    fn describe(&self) -> String {
        let Self { beta1, beta2, eps, amsgrad } = self;
        format!("beta1={beta1} beta2={beta2} eps={eps} amsgrad={amsgrad}")
    }

    fn states(&self) -> usize {
        if self.amsgrad { 3 } else { 2 }
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        const TEXT: &str = include_str!("kernels/adam.cu");
        const AMSGRAD: &str = concat!("#define AMSGRAD\n", include_str!("kernels/adam.cu"));
        let (name, text) = if self.amsgrad { ("amsgrad", AMSGRAD) } else { ("adam", TEXT) };
        Some((Formula { name, text, needs_sums: false }, self.factors(now)))
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        let factors = AdamFactors::new(self.factors(now));
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, grad, state: [m, v, max] }| {
                if self.amsgrad {
                    amsgrad(value, grad, m, v, max, &factors);
                } else {
                    adam(value, grad, m, v, &factors);
                }
            },
        );
    }
}

/// The factors of one step, computed in f64.
pub(crate) struct AdamFactors {
    l2: f32,
    shrink: f32,
    first: MovingAverage,
    keep2: f32,
    take2: f32,
    root: f32,
    eps: f32,
    step: f32,
}

impl AdamFactors {
    pub(crate) fn new(factors: [f64; SCALARS]) -> Self {
        let first = MovingAverage::new(factors[2]);
        let [l2, shrink, _, keep2, take2, root, eps, step] = factors.map(|factor| factor as f32);
        Self { l2, shrink, first, keep2, take2, root, eps, step }
    }

    #[inline(always)]
    pub(crate) fn average(&self, p: &mut f32, g: f32, m: &mut f32, v: &mut f32) {
        let g = g + self.l2 * *p;
        *p *= self.shrink;
        *m = self.first.moved(*m, g);
        *v = self.keep2 * *v + self.take2 * g * g;
    }

    #[inline(always)]
    pub(crate) fn descend(&self, p: &mut f32, m: f32, squares: f32) {
        *p += self.step * m / (squares.sqrt() / self.root + self.eps);
    }
}

#[inline(always)]
fn adam(value: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], factors: &AdamFactors) {
    for (((p, &g), m), v) in value.iter_mut().zip(grad).zip(m).zip(v) {
        factors.average(p, g, m, v);
        factors.descend(p, *m, *v);
    }
}

#[inline(always)]
fn amsgrad(
    value: &mut [f32],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    max: &mut [f32],
    factors: &AdamFactors,
) {
    for ((((p, &g), m), v), max) in value.iter_mut().zip(grad).zip(m).zip(v).zip(max) {
        factors.average(p, g, m, v);
        // Not `f32::max`, which would drop a NaN.
        *max = if *max > *v { *max } else { *v };
        factors.descend(p, *m, *max);
    }
}
