//! The numbers by which a channel's values are normalised.

use crate::ops::float::Float;
use crate::ops::moments::Moments;

/// The function of a channel's values, `(x - shift) scale + bias`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<T> {
    /// Mean and biased variance, as in [`Moments`].
    pub(super) shift: T,
    pub(super) rest: T,
    pub(super) variance: T,
    /// `1 / sqrt(variance + eps)`
    pub(super) inverse: T,
    pub(super) scale: T,
    bias: T,
}

impl<T: Float> Line<T> {
    pub(super) const LEN: usize = 6;

    #[inline(always)]
    pub(super) fn new(moments: Moments<T>, eps: f64, weight: T, bias: T) -> Self {
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

    pub(super) fn moments(&self) -> Moments<T> {
        let Self { shift, rest, variance, .. } = *self;
        Moments { shift, rest: rest.widen(), variance: variance.widen() }
    }

    #[inline(always)]
    pub(super) fn at(&self, x: T) -> T {
        (x - self.shift) * self.scale + self.bias
    }

    pub(super) fn save(self, to: &mut [T]) {
        let Self { shift, rest, variance, inverse, scale, bias } = self;
        to.copy_from_slice(&[shift, rest, variance, inverse, scale, bias]);
    }

    pub(super) fn load(from: &[T]) -> Self {
        let &[shift, rest, variance, inverse, scale, bias, ..] = from else {
            unreachable!("six numbers per channel")
        };
        Self { shift, rest, variance, inverse, scale, bias }
    }
}

/// The sums over the whole batch in the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// The number of values of a channel.
    pub(super) count: f64,
    /// The gradients of weight and bias.
    pub(super) dw: f64,
    pub(super) db: f64,
}
