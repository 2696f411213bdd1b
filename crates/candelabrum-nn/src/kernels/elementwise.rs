//! Passes over whole slices for several operations.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
use std::iter;

use candelabrum_memory::simd::simd;

use super::float::Float;
use super::parallel::in_blocks;
use super::prefetch::for_each_with;
use crate::activation::Activation;

/// Runs a loop for the vectors of this machine, in which `$function` is that of the activation, and the constant `$needs`
/// says whether its [`backward`](Function::backward) gets the input. What a loop knows only at run time is loaded from
/// memory: it would compute the exponentials of both ways.
macro_rules! with_function {
    ($activation:expr, ($function:ident, $needs:tt) => $loop:expr) => {
        match $activation {
            None => with_function!(IdentityFunction, false, $function, $needs, $loop),
            Some(Activation::Relu) => with_function!(Relu, ReluFunction, $function, $needs, $loop),
            Some(Activation::Relu6) => {
                with_function!(Relu6, Relu6Function::new(), $function, $needs, $loop)
            }
            Some(Activation::Gelu) => {
                with_function!(Gelu, GeluFunction::new(), $function, $needs, $loop)
            }
            Some(Activation::GeluTanh) => {
                with_function!(GeluTanh, GeluTanhFunction::new(), $function, $needs, $loop)
            }
            Some(Activation::Silu) => with_function!(Silu, SiluFunction, $function, $needs, $loop),
            Some(Activation::Sigmoid) => {
                with_function!(Sigmoid, SigmoidFunction, $function, $needs, $loop)
            }
            Some(Activation::Tanh) => with_function!(Tanh, TanhFunction, $function, $needs, $loop),
        }
    };
    (IdentityFunction, $value:expr, $function:ident, $needs:tt, $loop:expr) => {{
        const $needs: bool = $value;
        let $function = IdentityFunction;
        simd(
            #[inline(always)]
            || $loop,
        )
    }};
    ($name:ident, $value:expr, $function:ident, $needs:tt, $loop:expr) => {{
        const $needs: bool = Activation::$name.needs_input();
        let $function = $value;
        simd(
            #[inline(always)]
            || $loop,
        )
    }};
}

/// Adds `bias` to every element and applies the activation.
#[inline(always)]
pub(crate) fn bias_activation<T: Float>(ys: &mut [T], bias: T, activation: Option<Activation>) {
    each(ys, &iter::repeat(bias), |y, b| y + b, activation);
}

/// Adds `bias` to a row element by element and applies the activation.
#[inline(always)]
pub(crate) fn bias_row_activation<T: Float>(
    ys: &mut [T],
    bias: &[T],
    activation: Option<Activation>,
) {
    each(ys, &bias.iter(), |y, &b| y + b, activation);
}

/// Applies the activation, if there is one.
#[inline(always)]
pub(crate) fn activate<T: Float>(ys: &mut [T], activation: Option<Activation>) {
    if activation.is_some() {
        each(ys, &iter::repeat(()), |y, ()| y, activation);
    }
}

/// `y = activation(add(y, b))`.
fn each<T: Float, B>(
    ys: &mut [T],
    bs: &(impl Iterator<Item = B> + Clone),
    add: impl Fn(T, B) -> T,
    activation: Option<Activation>,
) {
    with_function!(activation, (function, _) => for (y, b) in ys.iter_mut().zip(bs.clone()) {
        *y = function.forward(add(*y, b));
    });
}

/// `dy *= activation'(z)`. `reference` is `z` if the activation [needs its
/// input](Activation::needs_input), and the activation's result otherwise.
pub(crate) fn activation_backward<T: Float>(
    dys: &mut [T],
    reference: &[T],
    activation: Activation,
) {
    with_function!(Some(activation), (function, _) => for_each_with(dys, [reference], |dy, [reference]| {
        *dy = function.backward(*dy, reference);
    }));
}

/// `dx = dy activation'(z)`, with the `reference` of [`activation_backward`].
pub(crate) fn activation_gradient<T: Float>(
    dxs: &mut [T],
    dys: &[T],
    reference: &[T],
    activation: Activation,
) {
    with_function!(Some(activation), (function, _) => for_each_with(dxs, [dys, reference], |dx, [dy, reference]| {
        *dx = function.backward(dy, reference);
    }));
}

/// `h = activation(z)`.
pub(crate) fn activated<T: Float>(zs: &[T], hs: &mut [T], activation: Activation) {
    with_function!(Some(activation), (function, _) => for_each_with(hs, [zs], |h, [z]| *h = function.forward(z)));
}

/// `h = activation(z)` again, and `dh *= activation'(z)`, in one pass: both need the same exponentials.
pub(crate) fn activated_again<T: Float>(
    zs: &[T],
    hs: &mut [T],
    dhs: &mut [T],
    activation: Activation,
) {
    with_function!(Some(activation), (function, NEEDS_INPUT) => for ((h, dh), &z) in hs.iter_mut().zip(&mut *dhs).zip(zs) {
        *h = function.forward(z);
        *dh = function.backward(*dh, if NEEDS_INPUT { z } else { *h });
    });
}

/// [`activation_backward`], divided over the threads.
pub(crate) fn activation_backward_in_blocks<T: Float>(
    dys: &mut [T],
    reference: &[T],
    activation: Activation,
) {
    in_blocks(dys, |start, dys| {
        activation_backward(dys, &reference[start..][..dys.len()], activation);
    });
}

/// A function of one number. Every method is inlined into the loops above.
trait ElementFunction<T>: Copy {
    fn forward(self, z: T) -> T;

    /// `dy` times the derivative, computed from `z` or from the result, depending on the
    /// activation.
    fn backward(self, dy: T, reference: T) -> T;
}

#[derive(Clone, Copy)]
struct IdentityFunction;

impl<T: Float> ElementFunction<T> for IdentityFunction {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z
    }

    #[inline(always)]
    fn backward(self, dy: T, _: T) -> T {
        dy
    }
}

/// `max(z, 0)`. NaN stays NaN.
#[inline(always)]
pub(crate) fn rectified<T: Float>(z: T) -> T {
    // In this order it is one `maxps`, which returns its second operand if one operand is NaN.
    if T::zero() > z { T::zero() } else { z }
}

#[derive(Clone, Copy)]
struct ReluFunction;

impl<T: Float> ElementFunction<T> for ReluFunction {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        rectified(z)
    }

    /// The gradient passes unless the result is `<= 0`: it is 0 at exactly 0, and it passes at NaN.
    #[inline(always)]
    fn backward(self, dy: T, y: T) -> T {
        if y <= T::zero() { T::zero() } else { dy }
    }
}

/// `min(max(z, 0), 6)`. NaN stays NaN.
#[inline(always)]
pub(crate) fn clipped<T: Float>(z: T) -> T {
    let (y, six) = (rectified(z), T::narrow(6.0));
    if six < y { six } else { y }
}

#[derive(Clone, Copy)]
struct Relu6Function<T> {
    six: T,
}

impl<T: Float> Relu6Function<T> {
    fn new() -> Self {
        Self { six: T::from_f64(6.0) }
    }
}

impl<T: Float> ElementFunction<T> for Relu6Function<T> {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        clipped(z)
    }

    /// The gradient passes between 0 and 6. Unlike that of [`ReluFunction`], it is 0 at NaN.
    #[inline(always)]
    fn backward(self, dy: T, y: T) -> T {
        // `&` has no branch, so the loop becomes vectors.
        if (y > T::zero()) & (y < self.six) { dy } else { T::zero() }
    }
}

#[derive(Clone, Copy)]
struct SiluFunction;

impl<T: Float> ElementFunction<T> for SiluFunction {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z * z.sigmoid()
    }

    #[inline(always)]
    fn backward(self, dy: T, z: T) -> T {
        let s = z.sigmoid();
        dy * s * (T::one() + z * (T::one() - s))
    }
}

#[derive(Clone, Copy)]
struct SigmoidFunction;

impl<T: Float> ElementFunction<T> for SigmoidFunction {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z.sigmoid()
    }

    #[inline(always)]
    fn backward(self, dy: T, y: T) -> T {
        dy * y * (T::one() - y)
    }
}

#[derive(Clone, Copy)]
struct TanhFunction;

impl<T: Float> ElementFunction<T> for TanhFunction {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z.tanh()
    }

    #[inline(always)]
    fn backward(self, dy: T, y: T) -> T {
        dy * (T::one() - y * y)
    }
}

/// `x Phi(x)`
#[derive(Clone, Copy)]
struct GeluFunction<T> {
    /// `1 / sqrt(2 pi)`
    factor: T,
}

impl<T: Float> GeluFunction<T> {
    fn new() -> Self {
        Self { factor: T::from_f64(FRAC_1_SQRT_2 * FRAC_2_SQRT_PI / 2.0) }
    }
}

impl<T: Float> ElementFunction<T> for GeluFunction<T> {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z * z.normal().0
    }

    /// `dy (Phi(z) + z Phi'(z))`
    #[inline(always)]
    fn backward(self, dy: T, z: T) -> T {
        let (below, bell) = z.normal();
        dy * (below + z * self.factor * bell)
    }
}

/// The constants of `x / 2 (1 + tanh(beta (x + kappa x^3)))`, which is `x sigmoid(2 beta (x + kappa x^3))`.
#[derive(Clone, Copy)]
struct GeluTanhFunction<T> {
    two_beta: T,
    kappa: T,
    three_kappa: T,
}

impl<T: Float> GeluTanhFunction<T> {
    const KAPPA: f64 = 0.044_715;

    fn new() -> Self {
        Self {
            two_beta: T::from_f64(SQRT_2 * FRAC_2_SQRT_PI),
            kappa: T::from_f64(Self::KAPPA),
            three_kappa: T::from_f64(3.0 * Self::KAPPA),
        }
    }

    #[inline(always)]
    fn gate(self, z: T) -> T {
        (self.two_beta * (z + self.kappa * z * z * z)).sigmoid()
    }
}

impl<T: Float> ElementFunction<T> for GeluTanhFunction<T> {
    #[inline(always)]
    fn forward(self, z: T) -> T {
        z * self.gate(z)
    }

    #[inline(always)]
    fn backward(self, dy: T, z: T) -> T {
        let s = self.gate(z);
        let inner_derivative = self.two_beta * (T::one() + self.three_kappa * z * z);
        dy * (s + z * s * (T::one() - s) * inner_derivative)
    }
}

/// The sum of a slice in sixteen lanes, in an order that depends only on the length.
#[inline(always)]
pub(crate) fn sum<T: Float>(xs: &[T]) -> T {
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

/// The largest of `first` and the elements of a slice, in sixteen lanes. It may miss a NaN.
#[inline(always)]
pub(crate) fn largest<T: Float>(first: T, xs: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [first; 16];
    let chunks = xs.chunks_exact(16);
    let rest = chunks.remainder().iter().fold(first, |max, &x| larger(max, x));
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    lanes.into_iter().fold(rest, larger)
}

/// `y = f(x)` for each element, by the threads of the pool where there are many. `f` is a `move` closure: the compiler
/// makes no vectors of a loop that reads a number through two references.
pub(crate) fn map_all<T: Float>(ys: &mut [T], xs: &[T], f: impl Fn(T) -> T + Copy + Sync) {
    in_blocks(ys, |first, ys| {
        let (xs, f) = (&xs[first..][..ys.len()], f);
        simd(
            #[inline(always)]
            || {
                for (y, &x) in ys.iter_mut().zip(xs) {
                    *y = f(x);
                }
            },
        );
    });
}

/// `ys += xs`, by the threads of the pool where there are many elements.
pub(crate) fn add_all<T: Float>(ys: &mut [T], xs: &[T]) {
    in_blocks(ys, |first, ys| {
        simd(
            #[inline(always)]
            || add_assign(ys, &xs[first..]),
        );
    });
}

/// `ys += xs`.
#[inline(always)]
pub(crate) fn add_assign<T: Float>(ys: &mut [T], xs: &[T]) {
    for (y, &x) in ys.iter_mut().zip(xs) {
        *y += x;
    }
}
