//! Gradient clipping limits each element of the gradients, or the norm of all gradients together.
//!
//! Pascanu, Mikolov and Bengio, ICML 2013 (arXiv 1211.5063), as in `torch.nn.utils.clip_grad_norm_`
//! and `clip_grad_value_`.

use candelabrum_memory::{Norm, SpanMut};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::error::AllowedRange;

/// The kind of clipping.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Clip {
    /// Limits the magnitude of each element.
    Value(f32),
    /// Limits the Euclidean norm of all gradients together. Their direction does not change.
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
        AllowedRange::Positive.check("Clip", setting, f64::from(limit))
    }

    /// For [`Clip::Norm`], the factor for gradients of the norm `norm`, at most 1:
    /// `limit / (norm + 1e-6)`, as in PyTorch. `None` if the gradients need no change.
    pub fn factor(self, norm: f64) -> Option<f32> {
        let Self::Norm(limit) = self else { return None };
        let factor = f64::from(limit) / (norm + 1e-6);
        (factor < 1.0).then_some(factor as f32)
    }
}

/// Clips all `spans` together. For [`Clip::Norm`], returns their norm before clipping.
///
/// # Errors
/// A device's error.
///
/// # Panics
/// With a limit that [`Clip::check`] refuses.
///
/// ```
/// use candelabrum_optim::{Clip, clip};
///
/// let (mut a, mut b) = ([3.0], [0.0, 4.0]);
/// assert_eq!(clip(Clip::Norm(1.0), &mut [(&mut a).into(), (&mut b).into()])?, Some(5.0));
/// assert!((a[0] - 0.6).abs() < 1e-6 && (b[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), candelabrum_optim::Error>(())
/// ```
pub fn clip(clip: Clip, spans: &mut [SpanMut<'_>]) -> Result<Option<f64>> {
    if let Clip::Value(limit) = clip {
        spans.iter_mut().try_for_each(|span| span.clamp(limit))?;
        return Ok(None);
    }
    let mut norm = Norm::default();
    spans.iter().try_for_each(|span| norm.add(span.as_span()))?;
    let norm = norm.get()?;
    if let Some(factor) = clip.factor(norm) {
        spans.iter_mut().try_for_each(|span| span.scale(factor))?;
    }
    Ok(Some(norm))
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
        assert_eq!(clip(Clip::Value(1.0), &mut [(&mut values).into()]).unwrap(), None);
        clip(Clip::Norm(1.0), &mut [(&mut values).into()]).unwrap();
        assert_eq!(values, before);
        clip(Clip::Value(0.15), &mut [(&mut values).into()]).unwrap();
        assert_eq!(values, [0.1, -0.15, f32::MIN_POSITIVE]);
    }
}
