//! Linear layers, with what follows them in one operation.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{self, CrossEntropyConfig, HiddenUnits};
use candelabrum_testkit::integers;
use candle_core::{DType, Result};

use super::case::{Arguments, Cases, golden_cases};
use super::elementwise::{activations, relu};

#[test]
fn linear() -> Result<()> {
    let layer = |activation: Option<Activation>| {
        move |t: &Arguments| ops::linear(&t[0], &t[1], t.get(2), activation)
    };
    let mut cases = Cases::new("linear", &["xs", "weight", "bias"], &[]);
    cases.golden("linear", |case| {
        let [flag] = case.config()?;
        Ok(layer(relu(flag)))
    })?;
    for case in golden_cases("activations") {
        if let Some(name) = case.name.strip_prefix("linear_") {
            let activation = name.parse().expect("cases have the names of activations");
            cases.add_golden(&case, layer(Some(activation)));
        }
    }
    for activation in activations() {
        for dims in [&[3, 5][..], &[1, 5], &[2, 3, 5], &[5], &[2, 1, 2, 5], &[0, 5], &[2, 0, 5]] {
            cases.add(activation, &[dims, &[7, 5], &[7]], layer(activation)).optional(&[&[2]]);
        }
    }
    cases.add("one tensor", &[&[3, 3]], |t| ops::linear(&t[0], &t[0], Some(&t[0].get(0)?), None));
    cases.add("no inputs", &[&[3, 0], &[2, 0]], layer(None));
    for [xs, weight] in [[[130, 80], [300, 80]], [[100, 600], [300, 600]]] {
        let gelu = Some(Activation::Gelu);
        cases.add(gelu, &[&xs, &weight, &weight[..1]], layer(gelu));
    }
    cases.check()
}

#[test]
fn linear_add() -> Result<()> {
    let sum = |t: &Arguments| ops::linear_add(&t[0], &t[1], t.get(3), &t[2]);
    let mut cases = Cases::new("linear_add", &["xs", "weight", "residual", "bias"], &[]);
    cases.golden("linear_add", |_| Ok(sum))?;
    for dims in [&[3, 5][..], &[2, 3, 5], &[5], &[0, 5], &[1700, 5]] {
        let result = [&dims[..dims.len() - 1], &[7]].concat();
        cases.add("", &[dims, &[7, 5], &result, &[7]], sum).optional(&[&[3]]);
    }
    let to_itself = |t: &Arguments| ops::linear_add(&t[0], &t[1], None, &t[0]);
    cases.add("to itself", &[&[2, 3], &[3, 3]], to_itself);
    cases.add("", &[&[130, 20], &[300, 20], &[130, 300], &[300]], sum);
    cases.check()
}

#[test]
fn feed_forward() -> Result<()> {
    let branch = |units| {
        move |t: &Arguments| {
            let (up, down) = ((&t[1], t.get(3)), (&t[2], t.get(4)));
            ops::feed_forward(&t[0], up, units, down, t.get(5))
        }
    };
    let inputs = ["xs", "up", "down", "up_bias", "down_bias", "residual"];
    let mut cases = Cases::new("feed_forward", &inputs, &[]);
    cases.golden("feed_forward", |case| {
        Ok(branch(match case.name.parse() {
            Ok(activation) => HiddenUnits::Activation(activation),
            Err(_) => HiddenUnits::SwiGlu,
        }))
    })?;
    let activations = [Activation::Gelu, Activation::Relu, Activation::Tanh, Activation::Silu];
    let activations = activations.map(|activation| (HiddenUnits::Activation(activation), 1));
    for (units, width) in activations.into_iter().chain([(HiddenUnits::SwiGlu, 2)]) {
        for dims in [&[3, 5][..], &[2, 3, 5], &[5], &[0, 5]] {
            let result = [&dims[..dims.len() - 1], &[7]].concat();
            let up = [4 * width, 5];
            let shapes: [&[usize]; 6] = [dims, &up, &[7, 4], &up[..1], &[7], &result];
            cases.add(units, &shapes, branch(units)).optional(&[&[3], &[4], &[5]]);
        }
        // More rows than a block has.
        let up = [70 * width, 20];
        cases.add(units, &[&[2100, 20], &up, &[30, 70], &up[..1], &[30]], branch(units));
        cases.add((units, "to itself"), &[&[5, 2], &[3 * width, 2], &[2, 3]], move |t| {
            ops::feed_forward(&t[0], (&t[1], None), units, (&t[2], None), Some(&t[0]))
        });
    }
    cases.check()
}

#[test]
fn linear_cross_entropy() -> Result<()> {
    let with = |label_smoothing, ignore_index| {
        let config = CrossEntropyConfig { label_smoothing, ignore_index };
        move |t: &Arguments| ops::linear_cross_entropy(&t[0], &t[1], t.get(2), &t[3], config)
    };
    let mut cases = Cases::new("linear_cross_entropy", &["xs", "weight", "bias"], &["labels"]);
    cases.golden("linear_cross_entropy", |case| {
        Ok(with(case.number("smoothing")? as f32, case.ignored()?))
    })?;
    for (smoothing, ignored) in
        [(0.0, None), (0.2, None), (0.1, Some(3)), (1.0, Some(3)), (0.0, Some(2))]
    {
        for dtype in [DType::U8, DType::U32, DType::I64] {
            let labels = integers((4, 5), 4, 7)?.to_dtype(dtype)?;
            let f = with(smoothing, ignored);
            let shapes: [&[usize]; 3] = [&[4, 5, 3], &[7, 3], &[7]];
            let case = cases.add((smoothing, ignored, dtype), &shapes, f).constants([labels]);
            case.optional(&[&[2]]);
        }
    }
    // Several chunks of rows and of classes.
    for rows in [600, 0] {
        let shapes: [&[usize]; 3] = [&[rows, 5], &[4100, 5], &[4100]];
        let case = cases.add("chunks", &shapes, with(0.1, Some(17)));
        case.constants([integers(rows, 9, 4100)?]);
    }
    cases.check()
}
