//! Adafactor: steps divided by the root of second moments that are kept as one mean for each row and one
//! for each column. PyTorch's `torch.optim.Adafactor`, with step t from 1. The state of a matrix of n rows
//! and m columns has n + m numbers instead of n · m:
//!
//! ```text
//! share = t^beta2_decay
//! alpha = max(eps2, rms(p)) · min(lr, 1 / sqrt(t))          before the weight decay
//! p = p · (1 - lr · weight_decay)
//! r = r + share · (mean of grad² over the columns - r)      for each row
//! c = c + share · (mean of grad² over the rows - c)         for each column
//! v = r · c / max(mean of r, eps1)                          for each element
//! v = v + share · (grad² - v)                               instead, for a vector
//! u = grad / sqrt(max(v, eps1²))
//! p = p - alpha / max(1, rms(u) / d) · u
//! ```
//!
//! rms(x) is the root of the mean of x² over a whole parameter. A parameter of more than two dimensions
//! consists of matrices of its last two. Shazeer and Stern, ICML 2018 (arXiv 1804.04235). As in PyTorch,
//! `lr` is the largest relative step, and there is no momentum.

use candelabrum_memory::chunks::{Splittable, by_chunks, squares};
use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::average::MovingAverage;
use crate::error::AllowedRange;
use crate::param_traits::ParamTraits;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// Adafactor, whose state takes little memory.
///
/// It has [the methods][methods] `new`, `beta2_decay`, `eps` and `clipping_threshold`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::Adafactor;
///
/// let optimizer = Adafactor::new(1e-2).weight_decay(0.1);
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CAdafactorRule%3E
pub type Adafactor = RuleOptimizer<AdafactorRule>;

/// The elements of a row for which a direction is computed at a time.
const BLOCK: usize = 256;

/// The columns whose squares one thread adds up at a time.
const STRIPE: usize = 64;

/// The formula of [`Adafactor`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdafactorRule {
    beta2_decay: f64,
    eps1: f64,
    eps2: f64,
    threshold: f64,
}

impl Adafactor {
    /// PyTorch's settings: beta2_decay -0.8, eps1 the distance of 1 to the next f32 number, eps2 1e-3, clipping
    /// threshold 1, no weight decay.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let eps1 = f64::from(f32::EPSILON);
        let rule = AdafactorRule { beta2_decay: -0.8, eps1, eps2: 1e-3, threshold: 1.0 };
        Self::with_rule(rule, lr, 0.0)
    }

    builder! { optimizer:
        /// The exponent of the share of a new square in its mean, at most 0.
        beta2_decay(exponent: f64) => optimizer.rule.beta2_decay = exponent;
        /// The lowest root of a second moment, and the lowest root mean square of a parameter by which
        /// the learning rate is multiplied.
        eps(eps1: f64, eps2: f64) => (optimizer.rule.eps1, optimizer.rule.eps2) = (eps1, eps2);
        /// PyTorch's `d`: a step with a larger root mean square is scaled down to it. At least 1.
        clipping_threshold(threshold: f64) => optimizer.rule.threshold = threshold;
    }
}

impl UpdateRule for AdafactorRule {
    const NAME: &'static str = "Adafactor";

    fn check(&self) -> Result<()> {
        AllowedRange::NotPositive.check(Self::NAME, "beta2_decay", self.beta2_decay)?;
        AllowedRange::NotNegative.check(Self::NAME, "eps1", self.eps1)?;
        AllowedRange::NotNegative.check(Self::NAME, "eps2", self.eps2)?;
        AllowedRange::FromOne.check(Self::NAME, "the clipping threshold", self.threshold)
    }

    fn describe(&self) -> String {
        let Self { beta2_decay, eps1, eps2, threshold } = self;
        format!("beta2_decay={beta2_decay} eps1={eps1} eps2={eps2} clipping_threshold={threshold}")
    }

    fn states(&self) -> usize {
        2
    }

    /// For a matrix the means of its rows, then those of its columns. For a vector its second moments.
    fn state_len(&self, state: usize, param: &ParamTraits) -> usize {
        let &ParamTraits { elements, dims, rows, columns, .. } = param;
        let kept = [rows, columns][state];
        match (dims < 2, state) {
            (true, 0) => elements,
            (true, _) => 0,
            // Without elements there are no matrices either.
            (false, _) => (elements * kept).checked_div(rows * columns).unwrap_or(0),
        }
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        let ParamParts { value, grad, state: [first, second, _] } = parts;
        let ParamTraits { elements, dims, rows, columns, .. } = now.param;
        if elements == 0 {
            return;
        }
        let moving = MovingAverage::new((now.step as f64).powf(self.beta2_decay));
        let floor = (self.eps1 * self.eps1) as f32;
        let moments = if dims < 2 {
            move_elements(first, grad, moving);
            SecondMoments {
                of_rows: vec![1.0],
                of_columns: first,
                rows: 1,
                columns: elements,
                floor,
            }
        } else {
            move_rows(first, grad, columns, moving);
            move_columns(second, grad, [rows, columns], moving);
            let of_rows = relative(first, rows, self.eps1);
            SecondMoments { of_rows, of_columns: second, rows, columns, floor }
        };
        let piece = ParamPiece { value: &mut *value, grad, start: 0 };
        let sums = by_chunks(
            piece,
            #[inline(always)]
            |piece| moments.sums(piece),
        );
        let [size, of_step] = sums.map(|sum| (sum / elements as f64).sqrt());
        // Not `f64::max`, which would drop a NaN.
        let size = if size < self.eps2 { self.eps2 } else { size };
        let excess = of_step / self.threshold;
        let shrink = if excess < 1.0 { 1.0 } else { excess };
        let relative_step = now.lr.min(1.0 / (now.step as f64).sqrt());
        let alpha = (-size * relative_step / shrink) as f32;
        let keep = (1.0 - now.lr * now.weight_decay) as f32;
        // Computes the direction again, which costs less than storing and reading it.
        by_chunks(
            ParamPiece { value, grad, start: 0 },
            #[inline(always)]
            |piece| moments.go(piece, keep, alpha),
        );
    }
}

/// Moves the second moments of a vector.
fn move_elements(moments: &mut [f32], grad: &[f32], moving: MovingAverage) {
    let state = Default::default();
    ParamParts { value: moments, grad, state }.for_each(
        #[inline(always)]
        |ParamParts { value: moments, grad, .. }| {
            for (v, &g) in moments.iter_mut().zip(grad) {
                *v = moving.moved(*v, g * g);
            }
        },
    );
}

/// Moves the mean square of each row.
fn move_rows(means: &mut [f32], grad: &[f32], columns: usize, moving: MovingAverage) {
    thread_pool::for_each(means.par_iter_mut().zip(grad.par_chunks(columns)), |(mean, row)| {
        let sum = simd(
            #[inline(always)]
            || squares(row),
        );
        *mean = moving.moved(*mean, (sum / columns as f64) as f32);
    });
}

/// Moves the mean square of each column of each matrix.
fn move_columns(
    means: &mut [f32],
    grad: &[f32],
    [rows, columns]: [usize; 2],
    moving: MovingAverage,
) {
    let move_stripe = |first: usize, means: &mut [f32], matrix: &[f32]| {
        let mut sums = [0.0_f64; STRIPE];
        simd(
            #[inline(always)]
            || {
                for row in matrix.chunks_exact(columns) {
                    for (sum, &g) in sums.iter_mut().zip(&row[first..first + means.len()]) {
                        *sum += f64::from(g) * f64::from(g);
                    }
                }
            },
        );
        for (mean, sum) in means.iter_mut().zip(sums) {
            *mean = moving.moved(*mean, (sum / rows as f64) as f32);
        }
    };
    let matrices = grad.par_chunks(rows * columns);
    if columns <= STRIPE {
        // Perhaps very many: the kernels of a convolution.
        let all = means.par_chunks_mut(columns).zip(matrices);
        return thread_pool::for_each(all, |(means, matrix)| move_stripe(0, means, matrix));
    }
    for (means, matrix) in means.chunks_mut(columns).zip(grad.chunks(rows * columns)) {
        let stripes = means.par_chunks_mut(STRIPE).enumerate();
        thread_pool::for_each(stripes, |(stripe, means)| {
            move_stripe(stripe * STRIPE, means, matrix);
        });
    }
}

/// The means of rows, divided by their mean in each matrix.
fn relative(means: &[f32], rows: usize, eps1: f64) -> Vec<f32> {
    let mut all = Vec::with_capacity(means.len());
    for means in means.chunks(rows) {
        let mean = means.iter().map(|&mean| f64::from(mean)).sum::<f64>() / rows as f64;
        let mean = if mean < eps1 { eps1 } else { mean };
        all.extend(means.iter().map(|&of_row| (f64::from(of_row) / mean) as f32));
    }
    all
}

/// The second moments of all elements: each is the product of a number of its row and one of its column.
struct SecondMoments<'a> {
    /// For each row of each matrix.
    of_rows: Vec<f32>,
    /// For each column of each matrix.
    of_columns: &'a [f32],
    rows: usize,
    columns: usize,
    /// The lowest second moment.
    floor: f32,
}

impl SecondMoments<'_> {
    /// The sums of squares of the value and of the direction of the step.
    #[inline(always)]
    fn sums(&self, piece: ParamPiece<'_>) -> [f64; 2] {
        let mut sums = [squares(piece.value), 0.0];
        let mut block = [0.0; BLOCK];
        self.blocks(piece, |_, grad, of_row, of_columns| {
            for ((u, &g), &of_column) in block.iter_mut().zip(grad).zip(of_columns) {
                *u = self.step(g, of_row * of_column);
            }
            sums[1] += squares(&block[..grad.len()]);
        });
        sums
    }

    #[inline(always)]
    fn go(&self, piece: ParamPiece<'_>, keep: f32, alpha: f32) -> [f64; 2] {
        self.blocks(piece, |value, grad, of_row, of_columns| {
            for ((p, &g), &of_column) in value.iter_mut().zip(grad).zip(of_columns) {
                *p = keep * *p + alpha * self.step(g, of_row * of_column);
            }
        });
        [0.0; 2]
    }

    #[inline(always)]
    fn step(&self, g: f32, moment: f32) -> f32 {
        g / (if moment < self.floor { self.floor } else { moment }).sqrt()
    }

    /// Calls `work` with the value, the gradient, the row's number and the columns' numbers of at most
    /// [`BLOCK`] elements of one row.
    #[inline(always)]
    fn blocks(&self, piece: ParamPiece<'_>, mut work: impl FnMut(&mut [f32], &[f32], f32, &[f32])) {
        let ParamPiece { mut value, mut grad, mut start } = piece;
        while !grad.is_empty() {
            let (row, column) = (start / self.columns, start % self.columns);
            let len = grad.len().min(self.columns - column).min(BLOCK);
            let (block, rest) = value.split_at_mut(len);
            let at = row / self.rows * self.columns + column;
            work(block, &grad[..len], self.of_rows[row], &self.of_columns[at..at + len]);
            (value, grad, start) = (rest, &grad[len..], start + len);
        }
    }
}

/// A part of a parameter, from the element number `start` on.
struct ParamPiece<'a> {
    value: &'a mut [f32],
    grad: &'a [f32],
    start: usize,
}

impl Splittable for ParamPiece<'_> {
    fn elements(&self) -> usize {
        self.grad.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (value, value_rest) = self.value.split_at_mut(at);
        let (grad, grad_rest) = self.grad.split_at(at);
        let rest = Self { value: value_rest, grad: grad_rest, start: self.start + at };
        (Self { value, grad, start: self.start }, rest)
    }
}
