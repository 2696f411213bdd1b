//! The function by which a channel's values are normalised.

use crate::ops::float::Float;
use crate::ops::moments::Moments;

/// An activation whose derivative is 0 or 1, so that the backward needs only the sign of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Rectifier {
    Relu,
    Relu6,
}

/// The function of a channel's values, `(x - shift) scale + bias`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Line<T> {
    /// Mean and biased variance, as in [`Moments`].
    pub(in crate::ops) shift: T,
    pub(in crate::ops) rest: T,
    pub(in crate::ops) variance: T,
    /// `1 / sqrt(variance + eps)`
    pub(in crate::ops) inverse: T,
    pub(in crate::ops) scale: T,
    bias: T,
}

impl<T: Float> Line<T> {
    pub(in crate::ops) const LEN: usize = 6;

    #[inline(always)]
    pub(in crate::ops) fn new(moments: Moments<T>, eps: f64, weight: T, bias: T) -> Self {
        let Moments { shift, rest, variance } = moments;
        let inverse = 1.0 / (variance + eps).sqrt();
        let scale = inverse * weight.widen();
        Self {
            shift,
            rest: T::narrow(rest),
            variance: T::narrow(variance),
            inverse: T::narrow(inverse),
            scale: T::narrow(scale),
            bias: T::narrow(bias.widen() - rest * scale),
        }
    }

    #[inline(always)]
    pub(in crate::ops) fn at(&self, x: T) -> T {
        (x - self.shift) * self.scale + self.bias
    }

    pub(in crate::ops) fn save(self, to: &mut [T]) {
        let Self { shift, rest, variance, inverse, scale, bias } = self;
        to.copy_from_slice(&[shift, rest, variance, inverse, scale, bias]);
    }

    pub(in crate::ops) fn load(from: &[T]) -> Self {
        let &[shift, rest, variance, inverse, scale, bias, ..] = from else {
            unreachable!("six numbers per channel")
        };
        Self { shift, rest, variance, inverse, scale, bias }
    }
}
