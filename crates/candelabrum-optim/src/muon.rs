//! Muon: momentum that is made orthogonal, for the matrices of hidden layers, and AdamW for all other
//! parameters. PyTorch's `torch.optim.Muon`, for a matrix p of shape (rows, columns):
//!
//! ```text
//! b = b + (1 - momentum) · (grad - b)        as `average.rs` computes it
//! u = grad + momentum · (b - grad)           Nesterov; otherwise u = b
//! x = u / max(‖u‖, eps)                      transposed if rows > columns
//! x = a·x + (b·s + c·s·s)·x with s = x·xᵀ    5 times, (a, b, c) = (3.4445, -4.7750, 2.0315)
//! p = p · (1 - lr · weight_decay)
//! p = p - lr · scale · x
//! ```
//!
//! ‖·‖ is the Euclidean norm of all elements. The iteration (Newton–Schulz) moves all singular values
//! of u near 1, between about 0.7 and 1.2. The scale is `sqrt(max(1, rows / columns))`
//! ([`MuonScale::Original`]) or `0.2 · sqrt(max(rows, columns))` ([`MuonScale::MatchRmsAdamW`]), with
//! which a step has the root mean square of a step of AdamW, so that both take the same learning rate.
//!
//! Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024
//! (kellerjordan.github.io/posts/muon). The second scale: Liu et al., "Muon is scalable for LLM
//! training", 2025 (arXiv 2502.16982). PyTorch iterates in bf16, here in f32: a rounding of the
//! products, which are sums in one order, so all ranks have the same bits.

use candelabrum_memory::chunks::{by_chunks, squares};
use serde::{Deserialize, Serialize};

use crate::adam::{AdamRule, AdamW};
use crate::average::MovingAverage;
use crate::error::AllowedRange;
use crate::matmul::{RightPanels, multiply, transposed};
use crate::param_traits::ParamTraits;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// Muon for matrices, and AdamW for all other parameters.
///
/// The embeddings and the last layer of a language model are matrices, too, but are no hidden layers: leave them to
/// AdamW by [`ParamGroup::muon`](crate::ParamGroup::muon). A group can give AdamW's parameters a learning rate of their
/// own.
///
/// It has [the methods][methods] `new`, `momentum`, `nesterov`, `scale`, `coefficients`, `iterations`, `eps` and
/// `adamw`, and [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::{Muon, MuonScale, ParamGroup};
///
/// let optimizer = Muon::new(3e-3)
///     .scale(MuonScale::MatchRmsAdamW)
///     .group(ParamGroup::matching("*embedding.weight").muon(false))
///     .group(ParamGroup::below_dims(2).weight_decay(0.0));
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CMuonRule%3E
pub type Muon = RuleOptimizer<MuonRule>;

/// The factor of the learning rate of a matrix, by its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MuonScale {
    /// `sqrt(max(1, rows / columns))`.
    #[default]
    Original,
    /// `0.2 · sqrt(max(rows, columns))`: the step has the root mean square of a step of AdamW.
    MatchRmsAdamW,
}

impl MuonScale {
    fn of(self, rows: usize, columns: usize) -> f64 {
        let (rows, columns) = (rows as f64, columns as f64);
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// The formula of [`Muon`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MuonRule {
    momentum: f64,
    nesterov: bool,
    scale: MuonScale,
    coefficients: [f64; 3],
    iterations: u32,
    eps: f64,
    /// The formula of all parameters that are no matrices of hidden layers.
    adamw: AdamRule<true>,
}

impl Muon {
    /// PyTorch's settings: momentum 0.95 with Nesterov's variant, five iterations with the coefficients
    /// 3.4445, -4.7750 and 2.0315, eps 1e-7, weight decay 0.1. AdamW has betas 0.9 and 0.999 and eps
    /// 1e-8.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let rule = MuonRule {
            momentum: 0.95,
            nesterov: true,
            scale: MuonScale::Original,
            coefficients: [3.4445, -4.7750, 2.0315],
            iterations: 5,
            eps: 1e-7,
            adamw: AdamW::new(0.0).rule,
        };
        Self::with_rule(rule, lr, 0.1)
    }

    builder! { optimizer:
        /// The share of the average of gradients that each step keeps.
        momentum(momentum: f64) => optimizer.rule.momentum = momentum;
        /// Whether the step looks ahead along the average.
        nesterov(on: bool) => optimizer.rule.nesterov = on;
        /// The factor of the learning rate of a matrix.
        scale(scale: MuonScale) => optimizer.rule.scale = scale;
        /// The coefficients a, b and c of the iteration.
        coefficients(coefficients: [f64; 3]) => optimizer.rule.coefficients = coefficients;
        /// The number of iterations, at most 99.
        iterations(iterations: u32) => optimizer.rule.iterations = iterations;
        /// The lowest norm by which a matrix is divided.
        eps(eps: f64) => optimizer.rule.eps = eps;
        /// The betas and eps of AdamW, for the parameters that Muon leaves to it.
        adamw(betas: [f64; 2], eps: f64) => {
            optimizer.rule.adamw = AdamW::new(0.0).betas(betas[0], betas[1]).eps(eps).rule;
        };
    }
}

impl UpdateRule for MuonRule {
    const NAME: &'static str = "Muon";

    fn check(&self) -> Result<()> {
        AllowedRange::Share.check(Self::NAME, "momentum", self.momentum)?;
        for (name, coefficient) in ["a", "b", "c"].into_iter().zip(self.coefficients) {
            AllowedRange::Number.check(
                Self::NAME,
                format!("the coefficient {name}"),
                coefficient,
            )?;
        }
        AllowedRange::BelowHundred.check(Self::NAME, "iterations", f64::from(self.iterations))?;
        AllowedRange::NotNegative.check(Self::NAME, "eps", self.eps)?;
        self.adamw.check()
    }

    fn describe(&self) -> String {
        let Self { momentum, nesterov, scale, coefficients: [a, b, c], iterations, eps, adamw } =
            self;
        format!(
            "momentum={momentum} nesterov={nesterov} scale={scale:?} coefficients={a},{b},{c} \
             iterations={iterations} eps={eps} adamw: {}",
            adamw.describe()
        )
    }

    fn states(&self) -> usize {
        2
    }

    fn state_len(&self, state: usize, param: &ParamTraits) -> usize {
        if is_hidden(param) && state > 0 { 0 } else { param.elements }
    }

    fn update(&self, now: StepSettings, mut parts: ParamParts<'_>) {
        if !is_hidden(&now.param) {
            return self.adamw.update(now, parts);
        }
        let ParamTraits { rows, columns, .. } = now.param;
        let mut direction = vec![0.0; parts.grad.len()];
        self.average(&mut parts, &mut direction);
        let step = self.orthogonal(direction, rows, columns);
        let keep = (1.0 - now.lr * now.weight_decay) as f32;
        let lr = (-now.lr * self.scale.of(rows, columns)) as f32;
        let state = Default::default();
        ParamParts { value: parts.value, grad: &step, state }.for_each(
            #[inline(always)]
            |ParamParts { value, grad: step, .. }| {
                for (p, &x) in value.iter_mut().zip(step) {
                    *p = keep * *p + lr * x;
                }
            },
        );
    }
}

/// Whether a parameter is updated by Muon's own formula.
fn is_hidden(param: &ParamTraits) -> bool {
    param.dims == 2 && param.muon
}

impl MuonRule {
    /// Moves the average, and writes the direction of the step before it is made orthogonal.
    fn average(&self, parts: &mut ParamParts<'_>, direction: &mut [f32]) {
        let (moving, ahead) =
            (MovingAverage::new(1.0 - self.momentum), MovingAverage::new(self.momentum));
        let [buffer, ..] = &mut parts.state;
        let state = [&mut **buffer, direction, &mut []];
        // The values are as long as the gradient, which is all that they are here for.
        ParamParts { value: &mut *parts.value, grad: parts.grad, state }.for_each(
            #[inline(always)]
            |ParamParts { grad, state: [buffer, direction, _], .. }| {
                for ((u, b), &g) in direction.iter_mut().zip(buffer).zip(grad) {
                    *b = moving.moved(*b, g);
                    *u = if self.nesterov { ahead.moved(g, *b) } else { *b };
                }
            },
        );
    }

    /// Newton–Schulz. `u` and the result have the shape (rows, columns).
    fn orthogonal(&self, mut u: Vec<f32>, rows: usize, columns: usize) -> Vec<f32> {
        let is_tall = rows > columns;
        let (short, long) = (rows.min(columns), rows.max(columns));
        let norm = by_chunks(
            &u[..],
            #[inline(always)]
            |chunk| [squares(chunk), 0.0],
        )[0]
        .sqrt();
        // Not `f64::max`, which would drop a NaN.
        let norm = if norm < self.eps { self.eps } else { norm };
        let scale = if norm == 0.0 { 0.0 } else { (1.0 / norm) as f32 };
        u.iter_mut().for_each(|x| *x *= scale);
        let mut x = if is_tall { transposed(&u, rows, columns) } else { u };
        let mut next = vec![0.0; x.len()];
        let (mut gram, mut polynomial) = (vec![0.0; short * short], vec![0.0; short * short]);
        let [a, b, c] = self.coefficients.map(|coefficient| coefficient as f32);
        for _ in 0..self.iterations {
            multiply(&x, &RightPanels::from_transposed(&x, short, long), &mut gram, |_, sum| sum);
            let squared = RightPanels::from_matrix(&gram, short, short);
            multiply(&gram, &squared, &mut polynomial, |at, sum| b * gram[at] + c * sum);
            let panels = RightPanels::from_matrix(&x, short, long);
            multiply(&polynomial, &panels, &mut next, |at, sum| a * x[at] + sum);
            std::mem::swap(&mut x, &mut next);
        }
        if is_tall { transposed(&x, columns, rows) } else { x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_a_step_are_nearly_orthonormal() {
        for (rows, columns) in [(5, 9), (9, 5), (40, 40), (1, 7)] {
            let u = (0..rows * columns).map(|i| ((i * i * 31 + i * 7) % 97) as f32 - 48.0);
            let x = Muon::new(0.1).rule.orthogonal(u.collect(), rows, columns);
            let norm: f32 = x.iter().map(|x| x * x).sum();
            // All min(rows, columns) singular values are about 1.
            let mean = norm / rows.min(columns) as f32;
            assert!((0.4..1.5).contains(&mean), "{rows} {columns}: {mean}");
        }
    }
}
