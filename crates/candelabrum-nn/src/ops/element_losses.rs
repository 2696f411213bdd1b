//! Losses that are a mean or a sum over pairs of numbers.
//!
//! ```text
//! mse       d^2                                    d = x - t
//! l1        |d|
//! huber     d^2 / 2 if |d| < delta, otherwise delta (|d| - delta / 2)
//! smooth_l1 huber / beta with delta = beta
//! bce       (1 - t) x + (1 + (p - 1) t) ln(1 + e^-x)
//! cosine    1 - x if t = 1, max(x - margin, 0) if t = -1
//! ```
//!
//! Huber's loss is that of Huber (Annals of Mathematical Statistics 35(1), 1964), `smooth_l1` is Girshick's
//! (Fast R-CNN, arXiv:1504.08083). A loss carries its [weight](LossWeight): a mean counts its numbers, so means
//! over ranks and micro-batches are means over all numbers.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::cosine::{NormFloor, cosines};
use crate::LossWeight;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, widen};
use crate::kernels::float::Float;
use crate::kernels::moments::LaneSums;
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// The numbers whose losses exist at the same time.
const BLOCK: usize = 1 << 12;

/// What a loss makes of the losses of all its parts, by PyTorch's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean, which weighs what it counts: see [`LossWeight`].
    #[default]
    Mean,
    /// Their sum. It weighs 1, so a step of several ranks follows the mean of the ranks' sums, as with PyTorch's
    /// DDP. Unlike that of a mean, this step depends on how the global batch is divided.
    Sum,
}

impl Reduction {
    /// The divisor of a sum over `count` parts.
    pub(super) fn divisor(self, count: usize) -> f64 {
        match self {
            Self::Mean => count.max(1) as f64,
            Self::Sum => 1.0,
        }
    }

    /// The weight of a loss over `count` parts, always so many for a batch of this shape.
    pub(super) fn weight(self, count: usize) -> LossWeight {
        match self {
            Self::Mean => LossWeight::fixed(count),
            Self::Sum => LossWeight::fixed(1),
        }
    }
}

/// The squared difference: PyTorch's `mse_loss`.
///
/// # Shapes
///
/// `xs` (..), `targets` of the same shape and dtype -> a scalar, in f32 for inputs in f16 and bf16.
///
/// # Errors
///
/// If the shapes or dtypes differ or are no floats, or there is nothing to take the mean of.
pub fn mse_loss(xs: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
    run(SquaredError, (xs, targets), None, reduction)
}

/// The absolute difference: PyTorch's `l1_loss`. The gradient of equal numbers is 0.
///
/// # Shapes
///
/// Those of [`mse_loss`].
///
/// # Errors
///
/// Those of [`mse_loss`].
pub fn l1_loss(xs: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
    run(AbsoluteError, (xs, targets), None, reduction)
}

/// The square of small differences and, from `delta` on, a line: PyTorch's `huber_loss`.
///
/// # Shapes
///
/// Those of [`mse_loss`].
///
/// # Errors
///
/// Those of [`mse_loss`], and if `delta` is not above 0.
pub fn huber_loss(
    xs: &Tensor,
    targets: &Tensor,
    delta: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    if !(delta > 0.0 && delta.is_finite()) {
        bail!("{}: delta {delta}, expected a number above 0", Huber::NAME);
    }
    run(Huber { delta, scale: 1.0 }, (xs, targets), None, reduction)
}

/// [`huber_loss`] divided by its `beta`: PyTorch's `smooth_l1_loss`. With a `beta` of 0 it is [`l1_loss`].
///
/// # Shapes
///
/// Those of [`mse_loss`].
///
/// # Errors
///
/// Those of [`mse_loss`], and if `beta` is below 0.
pub fn smooth_l1_loss(
    xs: &Tensor,
    targets: &Tensor,
    beta: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    if !(beta >= 0.0 && beta.is_finite()) {
        bail!("smooth_l1_loss: beta {beta}, expected a number from 0 on");
    }
    if beta == 0.0 {
        return l1_loss(xs, targets, reduction);
    }
    run(Huber { delta: beta, scale: beta.recip() }, (xs, targets), None, reduction)
}

/// The cross entropy of independent yes-or-no questions: PyTorch's `binary_cross_entropy_with_logits`. A question
/// has the probability `sigmoid(x)` of a yes. `pos_weight` weighs the answers yes, for classes that are rare.
///
/// # Shapes
///
/// `logits` (..), `targets` of the same shape and dtype, from 0 to 1, `pos_weight` which is broadcast to it, (C)
/// for logits (N, C) for instance -> a scalar, in f32 for inputs in f16 and bf16.
///
/// # Errors
///
/// If the shapes do not fit, the dtypes differ or are no floats, there is nothing to take the mean of, or
/// `targets` or `pos_weight` would need a gradient (detach them).
pub fn bce_with_logits_loss(
    logits: &Tensor,
    targets: &Tensor,
    pos_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    run(BinaryCrossEntropy, (logits, targets), pos_weight, reduction)
}

/// For pairs of vectors that shall have the same direction (target 1) or not (target -1): `1 - cos`, or how far
/// `cos` is above `margin`. PyTorch's `cosine_embedding_loss`.
///
/// # Shapes
///
/// `xs` and `ys` (N, D), `targets` (N) in the same dtype -> a scalar, in f32 for inputs in f16 and bf16.
///
/// # Errors
///
/// If the shapes or dtypes differ or are no floats, there is no pair, or `targets` would need a gradient.
pub fn cosine_embedding_loss(
    xs: &Tensor,
    ys: &Tensor,
    targets: &Tensor,
    margin: f64,
    reduction: Reduction,
) -> Result<Tensor> {
    // The constant of PyTorch's code.
    let cosines = cosines(&widen(xs)?, &widen(ys)?, NormFloor::Above(1e-12))?;
    run(CosineMargin { margin }, (&cosines, &widen(targets)?), None, reduction)
}

/// The loss of a number `x` with the target `t` and the weight `p`.
trait LossFormula: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    /// Whether the loss depends on `x - t` alone. The gradient of the target is then that of `x` with the other
    /// sign.
    const OF_DIFFERENCE: bool;

    fn loss<T: Float>(self, x: T, t: T, p: T) -> T;

    /// The derivative by `x`.
    fn slope<T: Float>(self, x: T, t: T, p: T) -> T;

    /// The losses, in candle's operations.
    fn composite(self, xs: &Tensor, ts: &Tensor, ps: Option<&Tensor>) -> Result<Tensor>;
}

#[derive(Clone, Copy)]
struct SquaredError;

impl LossFormula for SquaredError {
    const NAME: &'static str = "mse_loss";
    const OF_DIFFERENCE: bool = true;

    #[inline(always)]
    fn loss<T: Float>(self, x: T, t: T, _: T) -> T {
        (x - t) * (x - t)
    }

    #[inline(always)]
    fn slope<T: Float>(self, x: T, t: T, _: T) -> T {
        (x - t) + (x - t)
    }

    fn composite(self, xs: &Tensor, ts: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        (xs - ts)?.sqr()
    }
}

#[derive(Clone, Copy)]
struct AbsoluteError;

impl LossFormula for AbsoluteError {
    const NAME: &'static str = "l1_loss";
    const OF_DIFFERENCE: bool = true;

    #[inline(always)]
    fn loss<T: Float>(self, x: T, t: T, _: T) -> T {
        magnitude(x - t)
    }

    #[inline(always)]
    fn slope<T: Float>(self, x: T, t: T, _: T) -> T {
        clamped(x - t, T::zero(), T::one())
    }

    fn composite(self, xs: &Tensor, ts: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        // candle's own backward of abs gives -1 at 0.
        let ds = (xs - ts)?;
        ds.detach().sign()?.mul(&ds)
    }
}

#[derive(Clone, Copy)]
struct Huber {
    delta: f64,
    scale: f64,
}

impl LossFormula for Huber {
    const NAME: &'static str = "huber_loss";
    const OF_DIFFERENCE: bool = true;

    #[inline(always)]
    fn loss<T: Float>(self, x: T, t: T, _: T) -> T {
        let (size, delta, half) = (magnitude(x - t), T::from_f64(self.delta), T::from_f64(0.5));
        let loss = if size < delta { half * size * size } else { delta * (size - half * delta) };
        loss * T::from_f64(self.scale)
    }

    #[inline(always)]
    fn slope<T: Float>(self, x: T, t: T, _: T) -> T {
        let (d, delta) = (x - t, T::from_f64(self.delta));
        let slope = if magnitude(d) < delta { d } else { clamped(d, T::zero(), delta) };
        slope * T::from_f64(self.scale)
    }

    fn composite(self, xs: &Tensor, ts: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        let ds = (xs - ts)?;
        let sizes = ds.detach().sign()?.mul(&ds)?;
        let lines = ((&sizes - self.delta / 2.0)? * self.delta)?;
        let losses = sizes.lt(self.delta)?.where_cond(&(sizes.sqr()? * 0.5)?, &lines)?;
        losses * self.scale
    }
}

#[derive(Clone, Copy)]
struct BinaryCrossEntropy;

impl LossFormula for BinaryCrossEntropy {
    const NAME: &'static str = "bce_with_logits_loss";
    const OF_DIFFERENCE: bool = false;

    #[inline(always)]
    fn loss<T: Float>(self, x: T, t: T, p: T) -> T {
        let one = T::one();
        (one - t) * x + (one + (p - one) * t) * softplus(T::zero() - x)
    }

    #[inline(always)]
    fn slope<T: Float>(self, x: T, t: T, p: T) -> T {
        let one = T::one();
        (one - t) - (one + (p - one) * t) * (T::zero() - x).sigmoid()
    }

    fn composite(self, xs: &Tensor, ts: &Tensor, ps: Option<&Tensor>) -> Result<Tensor> {
        // ln(1 + e^-x) = max(-x, 0) + ln(1 + e^-|x|), whose parts have no large numbers. The sign is a constant,
        // and at 0 both ways have the same derivative.
        let signs = xs.detach().ge(0.0)?.to_dtype(xs.dtype())?.affine(2.0, -1.0)?;
        let sizes = (xs * signs)?;
        let soft = ((&sizes - xs)? * 0.5)?.add(&(sizes.neg()?.exp()? + 1.0)?.log()?)?;
        let soft = match ps {
            Some(ps) => soft.mul(&((ps - 1.0)?.mul(ts)? + 1.0)?)?,
            None => soft,
        };
        ts.affine(-1.0, 1.0)?.mul(xs)? + soft
    }
}

#[derive(Clone, Copy)]
struct CosineMargin {
    margin: f64,
}

impl LossFormula for CosineMargin {
    const NAME: &'static str = "cosine_embedding_loss";
    const OF_DIFFERENCE: bool = false;

    #[inline(always)]
    fn loss<T: Float>(self, x: T, t: T, _: T) -> T {
        let (zero, one, above) = (T::zero(), T::one(), x - T::from_f64(self.margin));
        if t == one {
            one - x
        } else if t == zero - one && above > zero {
            above
        } else {
            zero
        }
    }

    #[inline(always)]
    fn slope<T: Float>(self, x: T, t: T, _: T) -> T {
        let (zero, one) = (T::zero(), T::one());
        if t == one {
            zero - one
        } else if t == zero - one && x >= T::from_f64(self.margin) {
            one
        } else {
            zero
        }
    }

    fn composite(self, xs: &Tensor, ts: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        let zeros = xs.zeros_like()?;
        let is_above = (ts.eq(-1.0)? * xs.ge(self.margin)?)?;
        let others = is_above.where_cond(&(xs - self.margin)?, &zeros)?;
        ts.eq(1.0)?.where_cond(&xs.affine(-1.0, 1.0)?, &others)
    }
}

/// `|x|`. NaN stays NaN.
#[inline(always)]
fn magnitude<T: Float>(x: T) -> T {
    if x < T::zero() { T::zero() - x } else { x }
}

/// `bound` with the sign of `x`, and `at_zero` for neither.
#[inline(always)]
fn clamped<T: Float>(x: T, at_zero: T, bound: T) -> T {
    if x > T::zero() {
        bound
    } else if x < T::zero() {
        T::zero() - bound
    } else {
        at_zero
    }
}

/// `ln(1 + e^x)`, precise also where it is close to 0 or to `x`.
#[inline(always)]
fn softplus<T: Float>(x: T) -> T {
    let (zero, one) = (T::zero(), T::one());
    let small = (zero - magnitude(x)).exp();
    let sum = one + small;
    // The rounding error of the sum is in the quotient, too (Goldberg, ACM Computing Surveys 23(1), 1991).
    let ln = if sum == one { small } else { sum.ln() * (small / (sum - one)) };
    if x > zero { x + ln } else { ln }
}

fn run<F: LossFormula>(
    formula: F,
    (xs, targets): (&Tensor, &Tensor),
    weights: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    let (name, count) = (F::NAME, xs.elem_count());
    if targets.dims() != xs.dims() {
        bail!("{name}: targets of shape {:?} for {:?}", targets.shape(), xs.shape());
    }
    if count == 0 {
        bail!("{name}: nothing to take the mean of, an input of shape {:?}", xs.shape());
    }
    let constant = [Some(targets).filter(|_| !F::OF_DIFFERENCE), weights];
    if constant.into_iter().flatten().any(Tensor::track_op) {
        bail!("{name}: no gradient for the targets and their weights, detach them");
    }
    let weights = weights.map(|weights| widen(&weights.broadcast_as(xs.shape())?)).transpose()?;
    let inputs = [&widen(xs)?, &widen(targets)?];
    let inputs = [Some(inputs[0]), Some(inputs[1]), weights.as_ref()];
    let op = ElementLoss { formula, divisor: reduction.divisor(count) };
    let loss = fused::run(op, (), &inputs)?;
    reduction.weight(count).give_to(&loss);
    Ok(loss)
}

struct ElementLoss<F> {
    formula: F,
    divisor: f64,
}

impl<F: LossFormula> ElementLoss<F> {
    /// `ys = f(x, t, p)` for the numbers from `start` on.
    fn each<T: Float>(inputs: &[&[T]], start: usize, ys: &mut [T], f: impl Fn(T, T, T) -> T) {
        let [xs, ts] = [0, 1].map(|input| &inputs[input][start..][..ys.len()]);
        let ps = inputs[2].get(start..).filter(|ps| !ps.is_empty());
        simd(
            #[inline(always)]
            || {
                let pairs = ys.iter_mut().zip(xs.iter().zip(ts));
                match ps {
                    Some(ps) => pairs.zip(ps).for_each(|((y, (&x, &t)), &p)| *y = f(x, t, p)),
                    None => pairs.for_each(|(y, (&x, &t))| *y = f(x, t, T::one())),
                }
            },
        );
    }
}

impl<F: LossFormula> FusedOp for ElementLoss<F> {
    const NAME: &'static str = F::NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1, 2]);

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let count = inputs[0].len();
        let mut totals = vec![0.0; count.div_ceil(BLOCK)];
        let block = |(number, total): (usize, &mut f64)| {
            let start = number * BLOCK;
            let mut losses = Pooled::new(BLOCK.min(count - start));
            Self::each(inputs, start, &mut losses, |x, t, p| self.formula.loss(x, t, p));
            let mut sum = LaneSums::new();
            sum.add(&losses, &losses, |loss, _| [loss]);
            [*total] = sum.totals();
        };
        for_each(worth_threads(count), totals.par_iter_mut().enumerate(), block);
        loss[0] = T::narrow(totals.iter().sum::<f64>() / self.divisor);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let factor = T::narrow(pass.dys[0].widen() / self.divisor);
        for (input, factor) in [(0, factor), (1, T::zero() - factor)] {
            let Some(gradient) = pass.grads.take(input) else { continue };
            in_blocks(gradient, |start, gradient| {
                let slope = |x, t, p| factor * self.formula.slope(x, t, p);
                Self::each(pass.inputs, start, gradient, slope);
            });
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(ts), ps] = inputs else { unreachable!("three inputs") };
        self.formula.composite(xs, ts, ps.as_ref())?.sum_all()? / self.divisor
    }
}
