//! The normalisation of a row, or of a group of channels, without weight and bias.

use crate::kernels::float::Float;
use crate::kernels::moments::Moments;

/// `h = ((x - shift) - rest) inverse`, where `shift + rest` is the mean and `inverse` is `1 / sqrt(variance + eps)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowScale<T> {
    shift: T,
    rest: T,
    pub(crate) inverse: T,
}

impl<T: Float> RowScale<T> {
    pub(crate) const LEN: usize = 3;

    #[inline(always)]
    pub(crate) fn new(moments: Moments<T>, eps: f64) -> Self {
        let Moments { shift, rest, variance } = moments;
        let inverse = 1.0 / (variance + eps).sqrt();
        Self { shift, rest: T::narrow(rest), inverse: T::narrow(inverse) }
    }

    #[inline(always)]
    pub(crate) fn at(&self, x: T) -> T {
        ((x - self.shift) - self.rest) * self.inverse
    }

    pub(crate) fn save(self, to: &mut [T]) {
        to.copy_from_slice(&[self.shift, self.rest, self.inverse]);
    }

    pub(crate) fn load(from: &[T]) -> Self {
        let &[shift, rest, inverse, ..] = from else { unreachable!("three numbers per row") };
        Self { shift, rest, inverse }
    }
}
