//! The cosine of the angle between two vectors.
//!
//! ```text
//! forward    c = x y / (|x|' |y|')
//! backward   dx = dc / |x|' (y / |y|' - c x / |x|),   dy likewise
//! ```
//!
//! `|x|'` is the norm of `x` or a small number instead, so that a vector of zeros has the cosine 0. Where it is
//! the small number, the gradient is PyTorch's, whose `clamp_min` of the norm passes the gradient on.

use candle_core::{D, Result, Tensor, bail};
use rayon::prelude::*;

use super::sizes::rows_and_last;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::moments::LaneSums;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "cosine_similarity";

/// The cosine between the vectors in the last dimension of `xs` and `ys`: PyTorch's `cosine_similarity` with
/// `dim=-1`. A norm below `eps` counts as `eps`; PyTorch's default is 1e-8.
///
/// # Shapes
///
/// `xs` and `ys` (.., D) -> (..)
///
/// # Errors
///
/// If the shapes or dtypes differ or are no floats, the vectors have no elements, or `eps` is not above 0.
pub fn cosine_similarity(xs: &Tensor, ys: &Tensor, eps: f64) -> Result<Tensor> {
    if !(eps > 0.0 && eps.is_finite()) {
        bail!("{NAME}: eps {eps}, expected a number above 0");
    }
    cosines(xs, ys, NormFloor::AtLeast(eps))
}

/// What takes the place of the norm of a vector in the denominator.
#[derive(Clone, Copy, Debug)]
pub(super) enum NormFloor {
    /// `max(|x|, eps)`
    AtLeast(f64),
    /// `sqrt(|x|^2 + eps)`
    Above(f64),
}

impl NormFloor {
    /// For the square of a norm: its place in the denominator, and what `x` is multiplied with in the derivative
    /// of this place by `x`.
    fn of(self, square: f64) -> (f64, f64) {
        match self {
            Self::AtLeast(eps) if square == 0.0 => (eps, 0.0),
            Self::AtLeast(eps) => (square.sqrt().max(eps), square.sqrt().recip()),
            Self::Above(eps) => ((square + eps).sqrt(), (square + eps).sqrt().recip()),
        }
    }

    fn composite(self, xs: &Tensor) -> Result<Tensor> {
        let squares = xs.sqr()?.sum(D::Minus1)?;
        match self {
            Self::Above(eps) => (squares + eps)?.sqrt(),
            Self::AtLeast(eps) => {
                // The derivative of candle's sqrt at 0 is infinite.
                let is_zero = squares.eq(0.0)?;
                let norms = is_zero.where_cond(&squares.ones_like()?, &squares)?.sqrt()?;
                let norms = is_zero.where_cond(&norms.zeros_like()?, &norms)?;
                let raised = norms.detach().maximum(eps)?;
                &norms + (raised - norms.detach())?
            }
        }
    }
}

pub(super) fn cosines(xs: &Tensor, ys: &Tensor, norm: NormFloor) -> Result<Tensor> {
    let (rows, width) = rows_and_last(NAME, "input", xs.shape(), "(.., D)")?;
    if xs.dims() != ys.dims() || width == 0 {
        bail!("{NAME}: vectors of shape {:?} and {:?}", xs.shape(), ys.shape());
    }
    fused::run(Cosine { width, norm }, rows, &[Some(xs), Some(ys)])
}

struct Cosine {
    width: usize,
    norm: NormFloor,
}

impl Cosine {
    /// The product of both vectors and the squares of their norms.
    fn sums<T: Float>(x: &[T], y: &[T]) -> [f64; 3] {
        let mut sums = LaneSums::new();
        sums.add(x, y, |x, y| [x * y, x * x, y * y]);
        sums.totals()
    }
}

impl FusedOp for Cosine {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1]);

    fn forward<T: Float>(&self, inputs: &[&[T]], cosines: &mut [T]) -> Result<Pooled<T>> {
        let rows = inputs[0].par_chunks(self.width).zip(inputs[1].par_chunks(self.width));
        for_each(worth_threads(inputs[0].len()), rows.zip(cosines), |((x, y), cosine)| {
            let [product, xx, yy] = Self::sums(x, y);
            *cosine = T::narrow(product / (self.norm.of(xx).0 * self.norm.of(yy).0));
        });
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        for input in 0..2 {
            let Some(gradient) = pass.grads.take(input) else { continue };
            let [xs, ys] = [input, 1 - input].map(|input| pass.inputs[input]);
            let rows = xs.par_chunks(self.width).zip(ys.par_chunks(self.width));
            let rows = rows.zip(pass.dys.par_iter()).zip(gradient.par_chunks_mut(self.width));
            for_each(worth_threads(xs.len()), rows, |(((x, y), &dc), dx)| {
                let [product, xx, yy] = Self::sums(x, y);
                let ((norm, slope), (other, _)) = (self.norm.of(xx), self.norm.of(yy));
                let of_other = T::narrow(dc.widen() / (norm * other));
                let own = T::narrow(dc.widen() * product / (norm * norm * other) * slope);
                for ((dx, &x), &y) in dx.iter_mut().zip(x).zip(y) {
                    *dx = of_other * y - own * x;
                }
            });
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(left), Some(right)] = inputs else { unreachable!("two inputs") };
        let (xs, ys) = (fused::widen(left)?, fused::widen(right)?);
        let norms = self.norm.composite(&xs)?.mul(&self.norm.composite(&ys)?)?;
        (&xs * &ys)?.sum(D::Minus1)?.div(&norms)?.to_dtype(left.dtype())
    }
}
