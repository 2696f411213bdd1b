//! Gradient clipping: no gradient, or not all of them together, larger than a limit.
//!
//! Pascanu, Mikolov and Bengio, ICML 2013 (arXiv 1211.5063), as `torch.nn.utils.clip_grad_norm_`
//! and `clip_grad_value_`.

use crate::Result;
use crate::chunks::{by_chunks, squares};
use crate::error::Range;

/// How gradients are clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Clip {
    /// Each element to at most this magnitude.
    Value(f32),
    /// All gradients together to at most this Euclidean norm: they keep their direction.
    Norm(f32),
}

impl Clip {
    /// Refuses a limit that is not a finite number above 0.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting).
    pub fn check(self) -> Result<()> {
        let (setting, limit) = match self {
            Self::Value(limit) => ("the value", limit),
            Self::Norm(limit) => ("the norm", limit),
        };
        Range::Positive.check("Clip", setting, f64::from(limit))
    }

    /// What to multiply with gradients of the norm `norm`, at most 1, for [`Clip::Norm`]:
    /// `limit / (norm + 1e-6)`, PyTorch's. `None` where that is nothing to do.
    pub fn factor(self, norm: f64) -> Option<f32> {
        let Self::Norm(limit) = self else { return None };
        let factor = f64::from(limit) / (norm + 1e-6);
        (factor < 1.0).then_some(factor as f32)
    }
}

/// The Euclidean norm of all `slices` together, in f64; the same bits with any number of threads.
pub fn global_norm<'a>(slices: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    let square = |slice| by_chunks(slice, &|chunk: &[f32]| [squares(chunk), 0.0])[0];
    slices.into_iter().map(square).sum::<f64>().sqrt()
}

/// Limits every element to the magnitude `limit`; NaN stays NaN.
///
/// # Panics
/// With a limit below 0 or that is no number; see [`Clip::check`].
pub fn clip_values(values: &mut [f32], limit: f32) {
    by_chunks(values, &|chunk: &mut [f32]| {
        chunk.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        [0.0; 2]
    });
}

/// Multiplies every element by `factor`.
pub fn scale(values: &mut [f32], factor: f32) {
    by_chunks(values, &|chunk: &mut [f32]| {
        chunk.iter_mut().for_each(|x| *x *= factor);
        [0.0; 2]
    });
}

/// Clips all `slices` together; gives their norm before, for [`Clip::Norm`].
///
/// # Panics
/// With a limit that [`Clip::check`] refuses.
///
/// ```
/// use candelabrum_optim::{Clip, clip};
///
/// let (mut a, mut b) = ([3.0], [0.0, 4.0]);
/// assert_eq!(clip(Clip::Norm(1.0), &mut [&mut a, &mut b]), Some(5.0));
/// assert!((a[0] - 0.6).abs() < 1e-6 && (b[1] - 0.8).abs() < 1e-6);
/// ```
pub fn clip(clip: Clip, slices: &mut [&mut [f32]]) -> Option<f64> {
    if let Clip::Value(limit) = clip {
        slices.iter_mut().for_each(|slice| clip_values(slice, limit));
        return None;
    }
    let norm = global_norm(slices.iter().map(|slice| &**slice));
    if let Some(factor) = clip.factor(norm) {
        slices.iter_mut().for_each(|slice| scale(slice, factor));
    }
    Some(norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_none_is_refused() {
        for clip in [Clip::Norm(0.0), Clip::Norm(f32::INFINITY), Clip::Value(-1.0)] {
            assert!(clip.check().is_err(), "{clip:?}");
        }
        Clip::Value(0.5).check().unwrap();
    }

    #[test]
    fn what_is_small_already_keeps_its_bits() {
        let mut values = [0.1, -0.2, f32::MIN_POSITIVE];
        let before = values;
        assert_eq!(clip(Clip::Value(1.0), &mut [&mut values]), None);
        clip(Clip::Norm(1.0), &mut [&mut values]).unwrap();
        assert_eq!(values, before);
        clip(Clip::Value(0.15), &mut [&mut values]);
        assert_eq!(values, [0.1, -0.15, f32::MIN_POSITIVE]);
    }
}
