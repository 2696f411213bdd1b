//! Parts of tensors, other orders of dimensions, and tensors one after the other.

use candelabrum_nn::ops::{cat, linear, narrow, permute, relu, scale, split, transpose};
use candelabrum_nn::{Init, Params};
use candelabrum_testkit::{assert_close, gradcheck, uniform};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::behaviour::message;
use crate::random;

const EPS: f64 = 1e-5;
const TOL: f64 = 1e-7;

#[test]
fn all_parts_some_parts_and_one_part_twice() -> Result<()> {
    let xs = [random((3, 2, 7), 1)?];
    let all = |t: &[Tensor]| {
        let parts = split(&scale(&t[0], 2.0)?, &[1, 4, 2], D::Minus1)?;
        let [a, b, c] = &parts[..] else { unreachable!("three") };
        Tensor::cat(&[&c.sqr()?, &b.tanh()?, &a.sqr()?], 2)
    };
    gradcheck(all, &xs, EPS, TOL)?;
    let some = |t: &[Tensor]| Ok(split(&scale(&t[0], 2.0)?, &[1, 4, 2], 2)?.remove(1));
    gradcheck(some, &xs, EPS, TOL)?;
    let twice = |t: &[Tensor]| {
        let parts = split(&scale(&t[0], 2.0)?, &[4, 3], 2)?;
        cat(&[&parts[1], &relu(&parts[1])?, &parts[0].sqr()?], 2)
    };
    gradcheck(twice, &xs, EPS, TOL)?;
    // Parts that meet, parts along other dimensions, and the whole beside its parts.
    let tangled = |t: &[Tensor]| {
        let xs = scale(&t[0], 2.0)?;
        let sums = [
            narrow(&xs, 2, 0, 4)?.sqr()?.sum_all()?,
            narrow(&xs, 2, 2, 3)?.sum_all()?,
            narrow(&xs, 0, 1, 2)?.sqr()?.sum_all()?,
            narrow(&xs, 1, 0, 0)?.sum_all()?,
            relu(&xs)?.sum_all()?,
            xs.tanh()?.sum_all()?,
            narrow(&xs, 2, 6, 1)?.sqr()?.sum_all()?,
        ];
        Tensor::stack(&sums, 0)
    };
    gradcheck(tangled, &xs, EPS, TOL)
}

#[test]
fn an_unused_part_has_the_gradient_zero() -> Result<()> {
    let var = Var::from_tensor(&random((2, 5), 1)?)?;
    for _ in 0..2 {
        let parts = split(&scale(&var, 3.0)?, &[2, 1, 2], 1)?;
        let grads = (parts[0].sum_all()? + parts[2].sum_all()?)?.backward()?;
        let gradient = grads.get(&var).expect("a gradient").to_vec2::<f64>()?;
        assert_eq!(gradient, [[3.0, 3.0, 0.0, 3.0, 3.0]; 2]);
    }
    Ok(())
}

#[test]
fn cat_of_variables_results_and_views() -> Result<()> {
    for dim in 0..3 {
        let mut inputs = Vec::new();
        for (seed, len) in [(1, 2), (2, 1), (3, 4)] {
            let mut shape = [3, 2, 5];
            shape[dim] = len;
            inputs.push(random(&shape[..], seed)?);
        }
        gradcheck(|t| cat(t, dim), &inputs, EPS, TOL)?;
        let of_results = |t: &[Tensor]| {
            let scaled = scale(&t[0], 2.0)?;
            let view = permute(&t[1], (2, 1, 0))?.permute((2, 1, 0))?;
            cat(&[&scaled, &view, &scaled, &t[2], &t[2].tanh()?], dim)
        };
        gradcheck(of_results, &inputs, EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn cat_of_many_tensors() -> Result<()> {
    let inputs = (0..40).map(|i| random((2, 1 + i % 3), i as u64)).collect::<Result<Vec<_>>>()?;
    gradcheck(|t| cat(t, 1), &inputs, EPS, TOL)
}

/// What attention makes of the result of one linear layer, by our operations and by candle's views.
#[test]
fn heads_of_attention_by_our_operations_and_by_candles_views() -> Result<()> {
    let inputs = [random((2, 3, 4), 1)?, random((12, 4), 2)?];
    let heads = |t: &[Tensor], ours: bool| -> Result<Tensor> {
        let qkv = linear(&t[0], &t[1], None, None)?; // (2, 3, 3 * 4)
        let parts = match ours {
            true => split(&qkv, &[4, 4, 4], D::Minus1)?,
            false => qkv.chunk(3, D::Minus1)?,
        };
        let of_heads = |part: &Tensor| {
            let part = part.reshape((2, 3, 2, 2))?;
            if ours { transpose(&part, 1, 2) } else { part.transpose(1, 2) }
        };
        let [q, k, v] = &parts[..] else { unreachable!("three") };
        let (q, k, v) = (relu(&of_heads(q)?)?, scale(&of_heads(k)?, 0.5)?, of_heads(v)?);
        let scores = q.matmul(&k.t()?)?; // (2, 2, 3, 3)
        let ys = scores.matmul(&v.contiguous()?)?; // (2, 2, 3, 2)
        let ys = if ours { transpose(&ys, 1, 2)? } else { ys.transpose(1, 2)?.contiguous()? };
        relu(&ys.reshape((2, 3, 4))?)
    };
    for ours in [true, false] {
        gradcheck(|t| heads(t, ours), &inputs, EPS, TOL)?;
    }
    Ok(())
}

#[test]
fn candles_views_between_ours() -> Result<()> {
    let f = |t: &[Tensor]| {
        let xs = scale(&t[0], 2.0)?; // (2, 3, 5, 4)
        let views = [
            xs.narrow(2, 1, 3)?.transpose(1, 3)?,
            xs.permute((3, 1, 0, 2))?.narrow(0, 0, 2)?.narrow(3, 2, 2)?,
            xs.get(1)?.unsqueeze(2)?,
            xs.narrow(3, 3, 1)?.squeeze(3)?.t()?,
            xs.narrow(0, 1, 1)?.broadcast_as((2, 3, 5, 4))?, // not a view of ours
            xs.flatten_all()?.narrow(0, 7, 50)?,
            xs.reshape((6, 20))?.t()?.reshape((4, 30))?, // a copy of candle's
        ];
        let sums = views.iter().map(|view| relu(view)?.sqr()?.sum_all());
        Tensor::stack(&sums.collect::<Result<Vec<_>>>()?, 0)
    };
    gradcheck(f, &[random((2, 3, 5, 4), 1)?], EPS, TOL)
}

#[test]
fn a_view_of_a_detached_result_passes_no_gradient() -> Result<()> {
    let var = Var::from_tensor(&random((3, 4), 1)?)?;
    let (ys, head) = (scale(&var, 2.0)?, Var::from_tensor(&random((3, 2), 2)?)?);
    let xs = ys.detach().t()?.narrow(0, 1, 2)?; // (2, 3)
    let grads = linear(&xs, &head.t()?, None, None)?.sum_all()?.backward()?;
    assert!(grads.get(&var).is_none());
    assert!(grads.get(&head).is_some());
    Ok(())
}

#[test]
fn parts_of_a_parameter_report_its_gradient() -> Result<()> {
    let params = Params::new(1);
    let weight = params.root().param("weight", (6, 2), Init::Normal { std: 1.0 })?;
    let bias = params.root().param("bias", (1, 2), Init::Normal { std: 1.0 })?;
    let mut gradients = crate::hooks::each_its_own_unit(&params)?;
    let forward = || {
        let parts = split(weight.tensor(), &[2, 4], 0)?;
        let rows = [&transpose(&parts[1], 0, 1)?, &transpose(&parts[1], 0, 1)?];
        let rows = transpose(&cat(&rows, 1)?, 0, 1)?; // (8, 2)
        cat(&[&rows, &parts[0], bias.tensor()], 0)?.sqr()?.sum_all()
    };
    let expected = forward()?.backward()?;
    for _ in 0..2 {
        gradients.clear();
        gradients.backward(&forward()?)?;
        for (number, param) in params.list().iter().enumerate() {
            let gradient = gradients.bucket(number)?.to_vec::<f32>()?;
            let gradient = Tensor::from_vec(gradient, param.var().shape(), &Device::Cpu)?;
            let expected = expected.get(param.tensor()).expect("a gradient");
            assert_close(&gradient, expected, 1e-6, 1e-6);
        }
        assert_eq!(gradients.ready_order().len(), 2);
    }
    // Both gradients were complete in the middle of the pass, so both buckets have left.
    gradients.clear();
    let mut left = Vec::new();
    let mut keep = |unit, _| {
        left.push(unit);
        Ok(())
    };
    gradients.observed_backward(&forward()?, Some(&mut keep))?;
    assert_eq!(left.len(), 2);
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let xs = random((2, 5), 1)?;
    assert_eq!(
        message(narrow(&xs, 1, 3, 3)),
        "narrow: 3 positions from 3 on, in dimension 1 of [2, 5]"
    );
    assert!(narrow(&xs, 1, usize::MAX, 2).is_err());
    assert!(narrow(&xs, 2, 0, 1).is_err());
    assert_eq!(
        message(split(&xs, &[2, 2], 1)),
        "split: parts of [2, 2], but dimension 1 of [2, 5]"
    );
    assert_eq!(message(permute(&xs, [0])), "permute: dimensions [0] of a tensor of shape [2, 5]");
    assert!(permute(&xs, [0, 0]).is_err());
    assert_eq!(
        message(cat(&[&xs, &random((3, 5), 1)?], 1)),
        "cat: [3, 5] beside [2, 5] along dimension 1"
    );
    assert_eq!(message(cat::<&Tensor, _>(&[], 0)), "cat: no tensors");
    assert!(cat(&[&xs, &random(5, 1)?], 0).is_err());
    let integers = Tensor::zeros((2, 3), DType::U32, &Device::Cpu)?;
    assert_eq!(message(permute(&integers, (1, 0))), "unsupported dtype U32 for op permute");
    Ok(())
}

/// A shape, an order of its dimensions, and a cut of one of them in two.
fn rearrangements() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, usize, usize)> {
    prop::collection::vec(1..6_usize, 1..5).prop_flat_map(|shape| {
        let order = Just((0..shape.len()).collect::<Vec<_>>()).prop_shuffle();
        let dim = 0..shape.len();
        (Just(shape), order, dim, 0..6_usize)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Values and gradients are exactly candle's: nothing is rounded.
    #[test]
    fn rearrangements_are_candles((shape, order, dim, cut) in rearrangements()) {
        let run = |ours: bool| -> Result<[Vec<f64>; 2]> {
            let var = Var::from_tensor(&uniform(&shape[..], 1, -1.0, 1.0, DType::F64)?)?;
            let cut = cut.min(shape[dim] - 1);
            let lens = [cut, shape[dim] - cut];
            let ys = if ours {
                let parts = split(&scale(&var, 1.0)?, &lens, dim)?;
                let whole = cat(&[&parts[1], &parts[0], &parts[1]], dim)?;
                permute(&whole, order.clone())?
            } else {
                let xs = (var.as_tensor() * 1.0)?;
                let second = xs.narrow(dim, cut, lens[1])?;
                let whole = match cut {
                    0 => Tensor::cat(&[&second, &second], dim)?,
                    _ => Tensor::cat(&[&second, &xs.narrow(dim, 0, cut)?, &second], dim)?,
                };
                whole.permute(order.clone())?
            };
            let weights = uniform(ys.shape(), 2, -1.0, 1.0, DType::F64)?;
            let grads = (&ys * weights)?.sum_all()?.backward()?;
            let gradient = grads.get(&var).expect("a gradient");
            Ok([ys.flatten_all()?.to_vec1()?, gradient.flatten_all()?.to_vec1()?])
        };
        let fail = |error: candle_core::Error| TestCaseError::fail(error.to_string());
        prop_assert_eq!(run(true).map_err(fail)?, run(false).map_err(fail)?);
    }
}
