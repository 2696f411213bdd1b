//! Stochastic gradient descent with momentum, PyTorch's `torch.optim.SGD`:
//!
//! ```text
//! g = grad + weight_decay · p
//! v = g                                      for a parameter's first gradient
//! v = momentum · v + (1 - dampening) · g     after that
//! p = p - lr · v                     (Nesterov: p - lr · (g + momentum · v))
//! ```
//!
//! Momentum is that of Sutskever et al., ICML 2013. SINGA starts v at zero, so its dampening also
//! reduces the first gradient. This formula is PyTorch's. A gradient counts as the first one if all
//! of v is 0. PyTorch checks instead whether v exists. The two differ only if a
//! parameter's first gradient is all 0.

use candelabrum_memory::cuda::{Formula, SCALARS};
use serde::{Deserialize, Serialize};

use crate::error::AllowedRange;
use crate::parts::ParamParts;
use crate::{Error, Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// SGD with momentum, dampening, Nesterov's variant and L2 weight decay.
///
/// It has [the methods][methods] `new`, `momentum`, `dampening` and `nesterov`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::Sgd;
///
/// let optimizer = Sgd::new(0.1).momentum(0.9).nesterov().weight_decay(5e-4);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CSgdRule%3E
pub type Sgd = RuleOptimizer<SgdRule>;

/// The formula of [`Sgd`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SgdRule {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    /// Plain descent with learning rate `lr`.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        Self::with_rule(SgdRule::default(), lr, 0.0)
    }

    builder! { optimizer:
        /// The share of the velocity that each step keeps.
        momentum(momentum: f64) => optimizer.rule.momentum = momentum;
        /// The share by which each new gradient in the velocity is reduced.
        dampening(dampening: f64) => optimizer.rule.dampening = dampening;
        /// Uses Nesterov's variant, which looks ahead along the velocity. It needs momentum and no
        /// dampening.
        nesterov() => optimizer.rule.nesterov = true;
    }
}

impl UpdateRule for SgdRule {
    const NAME: &'static str = "Sgd";

    fn check(&self) -> Result<()> {
        AllowedRange::NotNegative.check(Self::NAME, "momentum", self.momentum)?;
        AllowedRange::Number.check(Self::NAME, "dampening", self.dampening)?;
        let refuse = |setting: &str, value, range| {
            Err(Error::Setting { owner: Self::NAME, setting: setting.to_owned(), value, range })
        };
        if self.nesterov && self.momentum == 0.0 {
            return refuse("momentum", self.momentum, "above 0 for Nesterov");
        }
        if self.nesterov && self.dampening != 0.0 {
            return refuse("dampening", self.dampening, "0 for Nesterov");
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let Self { momentum, dampening, nesterov } = self;
        format!("momentum={momentum} dampening={dampening} nesterov={nesterov}")
    }

    fn states(&self) -> usize {
        usize::from(self.momentum != 0.0)
    }

    fn is_elementwise(&self) -> bool {
        // The first of several damped gradients is found by the whole velocity.
        self.dampening == 0.0
    }

    fn on_gpu(&self, now: StepSettings) -> Option<(Formula, [f64; SCALARS])> {
        let needs_sums = self.dampening != 0.0 && self.momentum != 0.0;
        let formula = Formula { name: "sgd", text: include_str!("kernels/sgd.cu"), needs_sums };
        let kind = match (self.states(), self.nesterov) {
            (0, _) => 0.0,
            (_, false) => 1.0,
            (_, true) => 2.0,
        };
        let take = 1.0 - self.dampening;
        Some((formula, [now.lr, now.weight_decay, self.momentum, take, kind, 0.0, 0.0, 0.0]))
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        let (lr, decay, momentum) = (now.lr as f32, now.weight_decay as f32, self.momentum as f32);
        // The first velocity is the gradient itself. Without dampening the formula is the same for
        // all gradients, so there is no need to check.
        let damped = self.dampening != 0.0 && parts.state[0].iter().any(|v| *v != 0.0);
        let (keep, take) = (momentum, if damped { (1.0 - self.dampening) as f32 } else { 1.0 });
        parts.for_each(
            #[inline(always)]
            |ParamParts { value, grad, state: [velocity, ..] }| {
                if self.states() == 0 {
                    plain(value, grad, lr, decay);
                } else if self.nesterov {
                    with_velocity(value, grad, velocity, [decay, keep, take], |p, g, v| {
                        p - lr * (g + momentum * v)
                    });
                } else {
                    with_velocity(value, grad, velocity, [decay, keep, take], |p, _, v| p - lr * v);
                }
            },
        );
    }
}

#[inline(always)]
fn plain(value: &mut [f32], grad: &[f32], lr: f32, decay: f32) {
    for (p, &g) in value.iter_mut().zip(grad) {
        *p -= lr * (g + decay * *p);
    }
}

#[inline(always)]
fn with_velocity(
    value: &mut [f32],
    grad: &[f32],
    velocity: &mut [f32],
    [decay, keep, take]: [f32; 3],
    next: impl Fn(f32, f32, f32) -> f32,
) {
    for ((p, v), &g) in value.iter_mut().zip(velocity).zip(grad) {
        let g = g + decay * *p;
        *v = keep * *v + take * g;
        *p = next(*p, g, *v);
    }
}
