//! Passes over whole slices that several operations share.

use super::float::Float;
use crate::activation::Activation;

/// Adds `bias` to every element and applies the activation.
pub(super) fn bias_activation<T: Float>(ys: &mut [T], bias: T, activation: Option<Activation>) {
    match activation {
        None => ys.iter_mut().for_each(|y| *y += bias),
        Some(Activation::Relu) => ys.iter_mut().for_each(|y| *y = relu(*y + bias)),
    }
}

/// Adds `bias` to a row element by element and applies the activation.
pub(super) fn bias_row_activation<T: Float>(
    ys: &mut [T],
    bias: &[T],
    activation: Option<Activation>,
) {
    let pairs = ys.iter_mut().zip(bias);
    match activation {
        None => pairs.for_each(|(y, &b)| *y += b),
        Some(Activation::Relu) => pairs.for_each(|(y, &b)| *y = relu(*y + b)),
    }
}

/// Applies the activation alone.
pub(super) fn activate<T: Float>(ys: &mut [T], activation: Option<Activation>) {
    match activation {
        None => {}
        Some(Activation::Relu) => ys.iter_mut().for_each(|y| *y = relu(*y)),
    }
}

/// `dy *= activation'(z)`, from the activation's result `ys`.
pub(super) fn activation_backward<T: Float>(dys: &mut [T], ys: &[T], activation: Activation) {
    match activation {
        Activation::Relu => relu_backward(dys, ys),
    }
}

/// `max(x, 0)` that keeps NaN.
#[inline(always)]
pub(super) fn relu<T: Float>(x: T) -> T {
    // In this order it is one `maxps`, whose second operand wins when one is NaN.
    if T::zero() > x { T::zero() } else { x }
}

/// The gradient passes where the result is not `<= 0`: 0 at exactly 0, and NaN lets it through.
fn relu_backward<T: Float>(dys: &mut [T], ys: &[T]) {
    for (dy, &y) in dys.iter_mut().zip(ys) {
        *dy = if y <= T::zero() { T::zero() } else { *dy };
    }
}

/// The sum of a slice in sixteen lanes, in an order that depends on the length only.
pub(super) fn sum<T: Float>(xs: &[T]) -> T {
    let mut lanes = [T::zero(); 16];
    let chunks = xs.chunks_exact(16);
    let mut rest = T::zero();
    for &x in chunks.remainder() {
        rest += x;
    }
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    lanes.into_iter().fold(rest, |sum, x| sum + x)
}

/// `ys += xs`.
pub(super) fn add_assign<T: Float>(ys: &mut [T], xs: &[T]) {
    for (y, &x) in ys.iter_mut().zip(xs) {
        *y += x;
    }
}
