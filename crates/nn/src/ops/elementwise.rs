//! Passes over whole slices that several operations share.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
use std::iter;

use super::float::Float;
use super::simd::simd;
use crate::activation::Activation;

/// Adds `bias` to every element and applies the activation.
pub(super) fn bias_activation<T: Float>(ys: &mut [T], bias: T, activation: Option<Activation>) {
    each(ys, iter::repeat(bias), |y, b| y + b, activation);
}

/// Adds `bias` to a row element by element and applies the activation.
pub(super) fn bias_row_activation<T: Float>(
    ys: &mut [T],
    bias: &[T],
    activation: Option<Activation>,
) {
    each(ys, bias.iter(), |y, &b| y + b, activation);
}

/// Applies the activation alone.
pub(super) fn activate<T: Float>(ys: &mut [T], activation: Option<Activation>) {
    if activation.is_some() {
        each(ys, iter::repeat(()), |y, ()| y, activation);
    }
}

/// `y = activation(add(y, b))`.
fn each<T: Float, B>(
    ys: &mut [T],
    bs: impl Iterator<Item = B>,
    add: impl Fn(T, B) -> T,
    activation: Option<Activation>,
) {
    match activation {
        None => map(ys, bs, add),
        Some(Activation::Relu) => map(ys, bs, |y, b| relu(add(y, b))),
        Some(Activation::Gelu) => {
            let gelu = Gelu::new();
            map(ys, bs, |y, b| gelu.forward(add(y, b)));
        }
        Some(Activation::GeluTanh) => {
            let gelu = GeluTanh::new();
            map(ys, bs, |y, b| gelu.forward(add(y, b)));
        }
        Some(Activation::Silu) => map(ys, bs, |y, b| {
            let z = add(y, b);
            z * z.sigmoid()
        }),
        Some(Activation::Sigmoid) => map(ys, bs, |y, b| add(y, b).sigmoid()),
        Some(Activation::Tanh) => map(ys, bs, |y, b| add(y, b).tanh()),
    }
}

/// `dy *= activation'(z)`. `reference` is `z` where the activation [needs its
/// input](Activation::needs_input), and its result otherwise.
pub(super) fn activation_backward<T: Float>(
    dys: &mut [T],
    reference: &[T],
    activation: Activation,
) {
    let one = T::one();
    match activation {
        // The gradient passes where the result is not `<= 0`: 0 at exactly 0, and NaN passes it.
        Activation::Relu => {
            map(dys, reference.iter(), |dy, &y| if y <= T::zero() { T::zero() } else { dy });
        }
        Activation::Gelu => {
            let gelu = Gelu::new();
            map(dys, reference.iter(), |dy, &z| dy * gelu.derivative(z));
        }
        Activation::GeluTanh => {
            let gelu = GeluTanh::new();
            map(dys, reference.iter(), |dy, &z| dy * gelu.derivative(z));
        }
        Activation::Silu => map(dys, reference.iter(), |dy, &z| {
            let s = z.sigmoid();
            dy * s * (one + z * (one - s))
        }),
        Activation::Sigmoid => map(dys, reference.iter(), |dy, &y| dy * y * (one - y)),
        Activation::Tanh => map(dys, reference.iter(), |dy, &y| dy * (one - y * y)),
    }
}

/// `y = f(y, b)` in the vectors of this machine.
#[inline(always)]
fn map<T: Float, B>(ys: &mut [T], bs: impl Iterator<Item = B>, f: impl Fn(T, B) -> T) {
    simd(|| {
        for (y, b) in ys.iter_mut().zip(bs) {
            *y = f(*y, b);
        }
    });
}

/// `max(x, 0)` that keeps NaN.
#[inline(always)]
fn relu<T: Float>(x: T) -> T {
    // In this order it is one `maxps`, whose second operand wins when one is NaN.
    if T::zero() > x { T::zero() } else { x }
}

/// The numbers in `x Phi(x)`.
#[derive(Clone, Copy)]
struct Gelu<T> {
    half: T,
    /// `1 / sqrt(2)`
    root: T,
    /// `1 / sqrt(2 pi)`
    density: T,
}

impl<T: Float> Gelu<T> {
    fn new() -> Self {
        Self {
            half: T::from_f64(0.5),
            root: T::from_f64(FRAC_1_SQRT_2),
            density: T::from_f64(FRAC_1_SQRT_2 * FRAC_2_SQRT_PI / 2.0),
        }
    }

    #[inline(always)]
    fn forward(self, x: T) -> T {
        x * self.half * (T::one() + (x * self.root).erf())
    }

    /// `Phi(x) + x Phi'(x)`
    #[inline(always)]
    fn derivative(self, x: T) -> T {
        let below = self.half * (T::one() + (x * self.root).erf());
        below + x * self.density * (T::zero() - x * x * self.half).exp()
    }
}

/// The numbers in `x / 2 (1 + tanh(beta (x + kappa x^3)))`.
#[derive(Clone, Copy)]
struct GeluTanh<T> {
    half: T,
    beta: T,
    kappa: T,
    three_kappa: T,
}

impl<T: Float> GeluTanh<T> {
    const KAPPA: f64 = 0.044_715;

    fn new() -> Self {
        Self {
            half: T::from_f64(0.5),
            beta: T::from_f64(SQRT_2 * FRAC_2_SQRT_PI / 2.0),
            kappa: T::from_f64(Self::KAPPA),
            three_kappa: T::from_f64(3.0 * Self::KAPPA),
        }
    }

    #[inline(always)]
    fn inner(self, x: T) -> T {
        (self.beta * (x + self.kappa * x * x * x)).tanh()
    }

    #[inline(always)]
    fn forward(self, x: T) -> T {
        x * self.half * (T::one() + self.inner(x))
    }

    #[inline(always)]
    fn derivative(self, x: T) -> T {
        let t = self.inner(x);
        let inner_derivative = self.beta * (T::one() + self.three_kappa * x * x);
        let right = x * self.half * (T::one() - t * t) * inner_derivative;
        self.half * (T::one() + t) + right
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
