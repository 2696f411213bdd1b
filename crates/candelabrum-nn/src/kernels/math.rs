//! Elementary functions of f32 that the compiler can vectorise.
//!
//! The standard library calls the C library once per number, so a loop over its functions cannot be
//! vectorised. The functions here are polynomials without a branch and without a call: inside of
//! [`simd`](candelabrum_memory::simd::simd) a loop over them computes 8 or 16 numbers at a time.
//! They use no fused multiply-add, so every machine computes the same bits.
//!
//! | function | method | largest error (test below) |
//! |---|---|---|
//! | [`exp`] | `2^n e^r`, `\|r\| <= ln 2 / 2`; Cephes' `expf` | 1.0 ulp |
//! | [`tanh`] | odd polynomial below 0.625, else from `e^2x`; Cephes' `tanhf` | 1.3 ulp |
//! | [`sigmoid`] | `e^-\|x\|` and its sum with 1, so that small results keep their digits | 2.1 ulp |
//! | [`exp_of_score`] | `2^n 2^r`, `\|r\| <= 1 / 2`, from the rounded `x log2 e` | `1.4 + \|x\|` |
//! | [`normal`] | `Phi(-\|x\|)` from `e^(-x^2 / 2)` and a quotient of polynomials | see the test |
//!
//! Source: S. L. Moshier, Cephes Mathematical Library, 1984-1992 (single precision). Infinities, NaN, signed zeros and
//! results below the smallest normal number are as in the standard library.

/// 1.5 * 2^23. If it is added to a number, the lowest bits of the sum are the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts. The first has so few digits that its product with an exponent is exact.
const LN_2: (f32, f32) = (355.0 / 512.0, -2.121_944_4e-4);

/// `e^x`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Outside of these bounds the result is infinite or zero. NaN fails both comparisons and stays.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2.0 - n * LN_2.1;
    let p = 1.987_569_1e-4 * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_6e-1;
    let p = p * r + 0.5;
    let p = p * (r * r) + r + 1.0;
    // 2^n in two factors, because 2^n may not be a normal number although the result is.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `e^x` for an `x` up to 87, or 0 if the result would be below the smallest normal number.
///
/// For a softmax: it takes two thirds of the time of [`exp`], and its error grows with `|x|`, when the
/// result is small.
#[inline(always)]
pub(crate) fn exp_of_score(x: f32) -> f32 {
    let x = x * std::f32::consts::LOG2_E;
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    // Of this degree, the polynomial with the smallest relative error, 2.6e-9, among those that are 1 at 0.
    let p = 1.559_467_8e-4 * r + 1.340_664_4e-3;
    let p = p * r + 9.617_693e-3;
    let p = p * r + 5.550_310_6e-2;
    let p = p * r + 2.402_265_2e-1;
    let p = p * r + 6.931_472e-1;
    let p = p * r + 1.0;
    // The lowest bits of `shifted` are `n`.
    let power = (shifted.to_bits() << 23).wrapping_add(1f32.to_bits());
    if x < -126.0 { 0.0 } else { p * f32::from_bits(power) }
}

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = -5.704_988_7e-3 * z + 2.063_909e-2;
    let p = p * z - 5.373_971_6e-2;
    let p = p * z + 1.333_144_2e-1;
    let p = p * z - 3.333_328e-1;
    let small = p * z * a + a;
    let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    (if a < 0.625 { small } else { large }).copysign(x)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// `Phi(x)`, the probability that a number of the standard normal distribution is below `x`, and `e^(-x^2 / 2)`.
///
/// `Phi(-|x|) e^(x^2 / 2)` is smooth: half of the scaled complementary error function, here a quotient of polynomials.
/// So both results need a single exponential.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    let bell = exp_of_score(x * x * -0.5);
    // From 15 on the exponential is 0.
    let a = x.abs();
    let a = if a > 15.0 { 15.0 } else { a };
    // Of these degrees, the quotient with the smallest relative error for `a` up to 6.5, 6.5e-8, among those that are
    // 1 / 2 at 0.
    let p = 1.353_202e-2 * a + 1.040_478_5e-1;
    let p = p * a + 3.338_202_5e-1;
    let p = p * a + 0.5;
    let q = 3.394_077e-2 * a + 2.602_469_6e-1;
    let q = q * a + 8.774_42e-1;
    let q = q * a + 1.465_522_6;
    let q = q * a + 1.0;
    let tail = bell * (p / q);
    (if x < 0.0 { tail } else { 1.0 - tail }, bell)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the largest error in units of the last place, and its argument, over some million
    /// numbers from every binade. Infinities and NaN must match exactly.
    fn check(name: &str, f: fn(f32) -> f32, reference: fn(f64) -> f64, bound: f64) {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
        let near_ends = [88.7, 88.722_83, 88.722_84, 89.0, 1e30, -87.3, -103.2, -104.0, -105.0];
        let grid = (0..u32::MAX).step_by(1499).map(f32::from_bits);
        let mut worst = (0.0, 0.0);
        for x in special.into_iter().chain(near_ends).chain(grid) {
            let (got, exact) = (f(x), reference(f64::from(x)));
            #[expect(clippy::cast_possible_truncation, reason = "the rounded reference")]
            let rounded = exact as f32;
            if exact.is_nan() || rounded.is_infinite() || rounded == 0.0 {
                let same = got.to_bits() == rounded.to_bits() || (got.is_nan() && exact.is_nan());
                // One step from infinity or zero is one unit in the last place.
                let beside = got == f32::MAX.copysign(rounded) && rounded.is_infinite()
                    || rounded == 0.0 && x != 0.0 && got.abs() <= f32::from_bits(1);
                assert!(same || beside, "{name}({x:e}) = {got:e}, not {rounded:e}");
                continue;
            }
            let exponent = (rounded.to_bits() >> 23 & 0xFF).max(1).cast_signed();
            let ulps = (f64::from(got) - exact).abs() / 2f64.powi(exponent - 127 - 23);
            assert!(!ulps.is_nan(), "{name}({x:e}) = {got:e}");
            if ulps > worst.0 {
                worst = (ulps, x);
            }
        }
        assert!(worst.0 <= bound, "{name}: {} ulp at {:e}", worst.0, worst.1);
    }

    #[test]
    fn exp_is_within_its_bound() {
        check("exp", exp, f64::exp, 1.0);
    }

    #[test]
    fn tanh_is_within_its_bound() {
        check("tanh", tanh, f64::tanh, 1.3);
    }

    #[test]
    fn sigmoid_is_within_its_bound() {
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 2.1);
    }

    /// The error of `Phi` is absolute above 0, and relative to the result below, where it grows with the exponent.
    #[test]
    fn normal_is_within_its_bound() {
        const UNIT: f64 = f32::EPSILON as f64 / 2.0;
        for x in (-13_000..=13_000_i16).map(|x| f32::from(x) / 1000.0) {
            let (got, bell) = normal(x);
            let x = f64::from(x);
            let exponent = x * x / 2.0;
            let exact = 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
            // Beyond 6.5 the quotient is less exact.
            let quotient = if x < -6.5 { 1000.0 } else { 2.0 };
            let bound = if x < 0.0 { (quotient + 4.0 + 2.0 * exponent) * exact } else { 3.0 };
            let error = (f64::from(got) - exact).abs();
            assert!(error <= bound * UNIT, "Phi({x}) = {got:e}, not {exact:e}");
            let exact = (-exponent).exp();
            let error = (f64::from(bell) - exact).abs();
            assert!(error <= (4.0 + 2.0 * exponent) * exact * UNIT, "{bell:e}, not {exact:e}");
        }
        assert_eq!(normal(0.0), (0.5, 1.0));
        for large in [15.0, 1e5, 1e30, f32::INFINITY] {
            assert_eq!((normal(large), normal(-large)), ((1.0, 0.0), (0.0, 0.0)), "{large}");
        }
        let (below, bell) = normal(f32::NAN);
        assert!(below.is_nan() && bell.is_nan());
    }
}
