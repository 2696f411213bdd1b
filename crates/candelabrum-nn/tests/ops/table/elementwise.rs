//! Activations, sums, products, multiples, masks, gates, dropout.

use candelabrum_nn::Activation;
use candelabrum_nn::ops;
use candelabrum_testkit::integers;
use candle_core::{DType, Device, Result, Tensor};

use super::case::{Arguments, Cases, golden_cases};
use crate::random;

const INF: f64 = f64::INFINITY;

pub(crate) fn apply(activation: Activation, xs: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Relu => ops::relu(xs),
        Activation::Relu6 => ops::relu6(xs),
        Activation::Gelu => ops::gelu(xs),
        Activation::GeluTanh => ops::gelu_tanh(xs),
        Activation::Silu => ops::silu(xs),
        Activation::Sigmoid => ops::sigmoid(xs),
        Activation::Tanh => ops::tanh(xs),
        _ => panic!("an activation without a test: {activation}"),
    }
}

/// None, and every activation.
pub(super) fn activations() -> impl Iterator<Item = Option<Activation>> {
    [None].into_iter().chain(Activation::ALL.iter().copied().map(Some))
}

/// What golden files tell of an activation.
pub(super) fn relu(flag: usize) -> Option<Activation> {
    (flag == 1).then_some(Activation::Relu)
}

/// Zeros, infinities and NaN.
fn odd() -> Result<[Tensor; 1]> {
    Ok([Tensor::new(&[[0.0, -0.0, INF], [-INF, f64::NAN, 1e30]], &Device::Cpu)?])
}

#[test]
fn activation() -> Result<()> {
    let mut cases = Cases::new("activation", &["xs"], &[]);
    cases.golden("relu", |_| Ok(|t: &Arguments| ops::relu(&t[0])))?;
    for case in golden_cases("activations") {
        if let Ok(activation) = case.name.parse() {
            cases.add_golden(&case, move |t| apply(activation, &t[0]));
        }
    }
    let far = [40.0, -40.0, 90.0, -90.0, 1e-30, -1e-30, -1e30];
    let far = [Tensor::new(&far, &Device::Cpu)?];
    for &activation in Activation::ALL {
        let f = move |t: &Arguments| apply(activation, &t[0]);
        cases.add_with(activation, &[random((3, 7), 1)?.affine(3.0, 0.0)?], f);
        // Also above 6, where relu6 is flat.
        let wide = [random((3, 7), 1)?.affine(9.0, 0.0)?];
        cases.add_with(activation, &wide, f).not_in_16_bits();
        cases.add_with(activation, &odd()?, f).rough();
        cases.add_with(activation, &far, f).rough();
        cases.add(activation, &[&[0, 3]], f);
        cases.add_with(activation, &[random(50_001, 1)?.affine(9.0, 0.0)?], f);
    }
    cases.check()
}

/// Pairs of shapes that fit, with equal ones, empty ones and large ones.
const PAIRS: [(&[usize], &[usize]); 24] = [
    (&[4, 5], &[4, 5]),
    (&[2, 3, 4, 1], &[2, 3, 4, 1]),
    (&[], &[]),
    (&[2, 3, 5], &[5]),
    (&[2, 3, 5], &[3, 5]),
    (&[2, 3, 5], &[2, 1, 5]),
    (&[2, 3, 5], &[3, 1]),
    (&[2, 3, 5], &[1, 1, 1]),
    (&[5], &[2, 3, 5]),
    (&[2, 1, 5], &[3, 1]),
    (&[4, 1], &[1, 3]),
    (&[2, 3, 4, 2], &[3, 1, 2]),
    (&[], &[3, 2]),
    (&[1], &[]),
    (&[0, 3], &[3]),
    (&[0, 4], &[0, 4]),
    (&[2, 0], &[2, 1]),
    (&[9, 31, 301], &[9, 31, 301]),
    (&[9, 31, 301], &[301]),
    (&[9, 31, 301], &[31, 1]),
    (&[9, 31, 301], &[9, 1, 301]),
    (&[9, 31, 301], &[9, 1, 1]),
    (&[9, 31, 301], &[1]),
    (&[9001, 7], &[7]),
];

#[test]
fn add() -> Result<()> {
    let mut cases = Cases::new("add", &["xs", "ys_in"], &[]);
    for file in ["add", "add_broadcast"] {
        cases.golden(file, |case| {
            let [flag] = case.config()?;
            Ok(move |t: &Arguments| ops::add(&t[0], &t[1], relu(flag)))
        })?;
    }
    let whole = |seed, sign| integers((4, 5), seed, 3)?.to_dtype(DType::F64)?.affine(sign, 0.0);
    let exact_zeros = [whole(1, 1.0)?, whole(2, -1.0)?];
    for activation in activations() {
        let sum = move |t: &Arguments| ops::add(&t[0], &t[1], activation);
        for (left, right) in PAIRS {
            cases.add(activation, &[left, right], sum);
        }
        cases.add_with(activation, &exact_zeros, sum).rough();
        cases.add(activation, &[&[4]], move |t| ops::add(&t[0], &t[0], activation));
    }
    cases.check()
}

#[test]
fn mul() -> Result<()> {
    let product = |t: &Arguments| ops::mul(&t[0], &t[1]);
    let mut cases = Cases::new("mul", &["xs", "ys_in"], &[]);
    cases.golden("mul", |_| Ok(product))?;
    for (left, right) in PAIRS {
        cases.add("", &[left, right], product);
    }
    cases.add("twice", &[&[3, 4]], |t| ops::mul(&t[0], &t[0]));
    cases.check()
}

#[test]
fn scale() -> Result<()> {
    let by = |factor| move |t: &Arguments| ops::scale(&t[0], factor);
    let mut cases = Cases::new("scale", &["xs"], &[]);
    cases.golden("scale", |case| Ok(by(case.number("factor")?)))?;
    for factor in [0.125, -3.0, 0.0] {
        for dims in [&[3, 5][..], &[0, 5], &[9, 31, 301]] {
            cases.add(factor, &[dims], by(factor));
        }
        cases.add_with(factor, &odd()?, by(factor)).rough();
    }
    cases.check()
}

#[test]
fn masked_fill() -> Result<()> {
    let with = |value| move |t: &Arguments| ops::masked_fill(&t[0], &t[1], value);
    let mut cases = Cases::new("masked_fill", &["xs"], &["mask"]);
    cases.golden("masked_fill", |case| Ok(with(case.number("value")?)))?;
    for (dims, mask) in [
        (&[2, 3, 4, 4][..], &[4, 4][..]),
        (&[2, 3, 4], &[3, 1]),
        (&[2, 3, 4], &[2, 1, 1]),
        (&[2, 3, 4], &[2, 3, 4]),
        (&[3, 5], &[]),
        (&[0, 3], &[3]),
        (&[9, 31, 301], &[31, 1]),
        (&[9, 31, 301], &[301]),
        (&[9, 31, 301], &[9, 31, 301]),
    ] {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let hidden = integers(mask, 3, 2)?.to_dtype(dtype)?;
            cases.add((mask, dtype), &[dims], with(-0.75)).constants([hidden]);
        }
    }
    let mask = Tensor::new(&[1_u8, 0, 1], &Device::Cpu)?;
    cases.add_with("odd", &odd()?, with(-INF)).constants([mask]).rough();
    cases.check()
}

#[test]
fn gated_units() -> Result<()> {
    let mut packed = Cases::new("swiglu", &["xs"], &[]);
    let mut pairs = Cases::new("silu_mul", &["gate", "xs"], &[]);
    packed.golden("swiglu", |_| Ok(|t: &Arguments| ops::swiglu(&t[0])))?;
    for dims in [&[3, 10][..], &[2], &[2, 3, 4], &[0, 4], &[3, 0], &[301, 500]] {
        packed.add("", &[dims], |t| ops::swiglu(&t[0]));
        pairs.add("", &[dims, dims], |t| ops::silu_mul(&t[0], &t[1]));
    }
    packed.check()?;
    pairs.check()
}

#[test]
fn dropout() -> Result<()> {
    let with = |p| move |t: &Arguments| ops::dropout(&t[0], p, 7);
    let mut values = random(5000, 1)?.to_vec1::<f64>()?;
    for (index, value) in values.iter_mut().enumerate().filter(|(index, _)| index % 7 == 0) {
        *value = [f64::NAN, INF][index % 2];
    }
    let odd = [Tensor::from_vec(values, 5000, &Device::Cpu)?];
    let mut cases = Cases::new("dropout", &["xs"], &[]);
    for p in [0.0, 0.4, 0.99] {
        for dims in [&[70, 90][..], &[0, 3], &[50_001]] {
            cases.add(p, &[dims], with(p));
        }
        cases.add_with(p, &odd, with(p)).rough();
    }
    cases.check()
}
