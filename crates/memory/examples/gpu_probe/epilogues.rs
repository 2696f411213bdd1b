//! Products by cuBLASLt that end with a bias and an activation: whether there is an algorithm, how exact
//! it is, and what it does with NaN.

use anyhow::Result;
use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::Epilogue;
use serde_json::json;

use crate::numbers::{Numbers, bound, distance, drawn};
use crate::probe::{Probe, say};
use crate::products::{Factors, reference};

const SIZE: (usize, usize, usize) = (64, 100, 48);

#[derive(Clone, Copy, Debug)]
enum Function {
    Identity,
    Relu,
    GeluTanh,
}

impl Function {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Identity => x,
            Self::Relu => x.max(0.0),
            Self::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// Every epilogue in one type.
pub(crate) fn all(probe: &Probe, element: ElementType) -> Result<bool> {
    let (rows, inner, columns) = SIZE;
    let factors = Factors::new(probe, element, SIZE)?;
    let sums = reference(&factors.host[0], &factors.host[1], SIZE);
    let bias = drawn(element, columns, 3);
    let mut good = true;
    for function in [Function::Identity, Function::Relu, Function::GeluTanh] {
        for with_bias in [false, true] {
            let bias = with_bias.then_some(&*bias);
            let Some(got) = run(probe, element, &factors, SIZE, bias, function)? else {
                say(
                    &json!({"function": format!("{function:?}"), "bias": with_bias, "algorithm": false}),
                );
                continue;
            };
            let added = |at: usize| bias.map_or(0.0, |bias| f64::from(bias[at % columns]));
            let expected: Vec<f64> =
                sums.iter().enumerate().map(|(at, x)| function.of(x + added(at))).collect();
            let (apart, largest) = distance(&got, &expected);
            // What the tests ask of f32.
            let relative = |(got, expected): (&f32, &f64)| {
                (f64::from(*got) - expected).abs() / (1.0 + expected.abs())
            };
            let worst = got.iter().zip(&expected).map(relative).fold(0.0, f64::max);
            let is_right = apart <= bound(element, false);
            say(&json!({
                "function": format!("{function:?}"), "bias": with_bias, "algorithm": true,
                "distance": apart, "largest": largest, "worst": worst, "right": is_right,
            }));
            good &= is_right;
        }
    }
    // A row of the first factor has a NaN, so the whole row of the result must be NaN.
    let mut a = factors.host[0].clone();
    a[inner + 1] = f32::NAN;
    let with_nan = Factors { a: Numbers::new(probe, element, &a)?, ..factors };
    if let Some(got) = run(probe, element, &with_nan, SIZE, None, Function::Relu)? {
        let kept = got[columns..2 * columns].iter().filter(|x| x.is_nan()).count();
        say(&json!({"relu_of_nan": {"nan_kept": kept, "of": columns, "rows": rows}}));
        good &= kept == columns;
    }
    Ok(good)
}

/// The product with a bias; nothing if there is no algorithm.
pub(crate) fn linear(
    probe: &Probe,
    element: ElementType,
    factors: &Factors,
    size: (usize, usize, usize),
) -> Result<Vec<f32>> {
    let bias = drawn(element, size.2, 3);
    Ok(run(probe, element, factors, size, Some(&bias), Function::Identity)?.unwrap_or_default())
}

fn run(
    probe: &Probe,
    element: ElementType,
    factors: &Factors,
    (rows, _, columns): (usize, usize, usize),
    bias: Option<&[f32]>,
    function: Function,
) -> Result<Option<Vec<f32>>> {
    let mut out = Numbers::unset(probe, element, rows * columns, 0)?;
    let mut input = Numbers::unset(probe, element, rows * columns, 0)?;
    let bias = bias.map(|bias| Numbers::new(probe, element, bias)).transpose()?;
    let bias = bias.as_ref().map(Numbers::read).transpose()?;
    let [a, b] = factors.matrices()?;
    let epilogue = match function {
        Function::Identity => Epilogue::Identity,
        Function::Relu => Epilogue::Relu,
        Function::GeluTanh => Epilogue::GeluTanh(input.write()?),
    };
    if !probe.gpu.matmul_then(out.write()?, a, b, bias, epilogue)? {
        return Ok(None);
    }
    Ok(Some(out.values()?.0))
}
