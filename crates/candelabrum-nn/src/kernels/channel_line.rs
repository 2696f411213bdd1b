//! The function by which a channel's values are normalised.

use crate::kernels::float::Float;
use crate::kernels::moments::Moments;

/// An activation whose derivative is 0 or 1, so that the backward needs only the sign of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rectifier {
    Relu,
    Relu6,
}

/// The function of a channel's values, `(x - shift) scale + bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelLine<T> {
    /// Mean and biased variance, as in [`Moments`].
    pub(crate) shift: T,
    pub(crate) rest: T,
    pub(crate) variance: T,
    /// `1 / sqrt(variance + eps)`
    pub(crate) inverse: T,
    pub(crate) scale: T,
    bias: T,
}

impl<T: Float> ChannelLine<T> {
    pub(crate) const LEN: usize = 6;

    #[inline(always)]
    pub(crate) fn new(moments: Moments<T>, eps: f64, weight: T, bias: T) -> Self {
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
    pub(crate) fn at(&self, x: T) -> T {
        (x - self.shift) * self.scale + self.bias
    }

    pub(crate) fn save(self, to: &mut [T]) {
        let Self { shift, rest, variance, inverse, scale, bias } = self;
        to.copy_from_slice(&[shift, rest, variance, inverse, scale, bias]);
    }

    pub(crate) fn load(from: &[T]) -> Self {
        let &[shift, rest, variance, inverse, scale, bias, ..] = from else {
            unreachable!("six numbers per channel")
        };
        Self { shift, rest, variance, inverse, scale, bias }
    }
}
