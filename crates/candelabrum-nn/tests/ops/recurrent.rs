//! GRU and LSTM over whole sequences, and the last step of one.

use std::collections::BTreeMap;

use candelabrum_nn::Params;
use candelabrum_nn::layers::{Gru, Lstm};
use candelabrum_nn::ops::{RecurrentWeights, gru, last_step, lstm};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::{Module, Result, Tensor};

use crate::behaviour::message;
use crate::golden::{cases, check};
use crate::random;

const INPUTS: [&str; 7] = ["xs", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h0", "c0"];

fn weights<'a>(t: &'a BTreeMap<&str, Tensor>) -> RecurrentWeights<'a> {
    RecurrentWeights {
        weight_ih: &t["weight_ih"],
        weight_hh: &t["weight_hh"],
        bias_ih: t.get("bias_ih"),
        bias_hh: t.get("bias_hh"),
    }
}

#[test]
fn gru_is_pytorchs() -> Result<()> {
    for case in cases("gru.safetensors") {
        check(&case, &INPUTS, |t| gru(&t["xs"], weights(t), t.get("h0")))?;
    }
    Ok(())
}

#[test]
fn lstm_is_pytorchs() -> Result<()> {
    for case in cases("lstm.safetensors") {
        check(&case, &INPUTS, |t| {
            let (ys, c) = lstm(&t["xs"], weights(t), t.get("h0").zip(t.get("c0")))?;
            assert_close(&c, &case.tensors["final"], 2e-6, 2e-6);
            Ok(ys)
        })?;
    }
    Ok(())
}

#[test]
fn both_results_of_an_lstm_have_pytorchs_gradients() -> Result<()> {
    for case in cases("lstm_cell_state.safetensors") {
        check(&case, &INPUTS, |t| both(lstm(&t["xs"], weights(t), t.get("h0").zip(t.get("c0")))?))?;
    }
    Ok(())
}

/// Hidden states and final cell state in one tensor.
fn both((ys, c): (Tensor, Tensor)) -> Result<Tensor> {
    Tensor::cat(&[ys.flatten_all()?, c.flatten_all()?], 0)
}

/// xs, the four parameters, h0 and c0, for 2 sequences of 3 steps of 2 inputs.
fn inputs(gates: usize, hidden: usize) -> Result<Vec<Tensor>> {
    Ok(vec![
        random((2, 3, 2), 1)?,
        random((gates * hidden, 2), 2)?,
        random((gates * hidden, hidden), 3)?,
        random(gates * hidden, 4)?,
        random(gates * hidden, 5)?,
        random((2, hidden), 6)?,
        random((2, hidden), 7)?,
    ])
}

fn from_slice(t: &[Tensor]) -> RecurrentWeights<'_> {
    RecurrentWeights {
        weight_ih: &t[1],
        weight_hh: &t[2],
        bias_ih: Some(&t[3]),
        bias_hh: Some(&t[4]),
    }
}

#[test]
fn gradients_of_everything_with_and_without_a_state() -> Result<()> {
    let t = inputs(3, 5)?;
    gradcheck(|t| gru(&t[0], from_slice(t), Some(&t[5])), &t[..6], 1e-5, 1e-7)?;
    gradcheck(|t| gru(&t[0], from_slice(t), None), &t[..5], 1e-5, 1e-7)?;
    let t = inputs(4, 5)?;
    let with_state = |t: &[Tensor]| Ok(lstm(&t[0], from_slice(t), Some((&t[5], &t[6])))?.0);
    gradcheck(with_state, &t, 1e-5, 1e-7)?;
    gradcheck(|t| Ok(lstm(&t[0], from_slice(t), None)?.0), &t[..5], 1e-5, 1e-7)
}

#[test]
fn the_final_cell_state_passes_gradients_on() -> Result<()> {
    let t = inputs(4, 5)?;
    let of_both = |t: &[Tensor]| both(lstm(&t[0], from_slice(t), Some((&t[5], &t[6])))?);
    gradcheck(of_both, &t, 1e-5, 1e-7)?;
    let cell_alone = |t: &[Tensor]| lstm(&t[0], from_slice(t), None)?.1.t();
    gradcheck(cell_alone, &t[..5], 1e-5, 1e-7)?;
    // The state is the start of the next piece of the sequence, which is also fused.
    let pieces = |t: &[Tensor]| {
        let (first, rest) = (t[0].narrow(1, 0, 1)?, t[0].narrow(1, 1, 2)?);
        let (ys, c) = lstm(&first, from_slice(t), Some((&t[5], &t[6])))?;
        Ok(lstm(&rest, from_slice(t), Some((&last_step(&ys)?, &c)))?.0)
    };
    gradcheck(pieces, &t, 1e-5, 1e-7)
}

#[test]
fn gradients_of_views() -> Result<()> {
    let xs = random((3, 4, 2), 1)?;
    for gates in [3, 4] {
        let f = |t: &[Tensor]| {
            let xs = t[0].transpose(0, 2)?.narrow(1, 1, 2)?; // (2, 2, 3)
            let (weight_ih, weight_hh) = (t[1].t()?, t[2].t()?);
            let weights = RecurrentWeights {
                weight_ih: &weight_ih,
                weight_hh: &weight_hh,
                bias_ih: None,
                bias_hh: None,
            };
            let ys = match gates {
                3 => gru(&xs, weights, None)?,
                _ => lstm(&xs, weights, None)?.0,
            };
            last_step(&ys)?.t()
        };
        let (rows, hidden) = (gates * 3, 3);
        let t = [xs.clone(), random((3, rows), 2)?, random((hidden, rows), 3)?];
        gradcheck(f, &t, 1e-5, 1e-7)?;
    }
    Ok(())
}

#[test]
fn two_pieces_of_a_sequence_are_the_whole() -> Result<()> {
    let params = Params::new(1);
    let xs = random((2, 6, 3), 1)?.to_dtype(candle_core::DType::F32)?;
    let (first, rest) = (xs.narrow(1, 0, 2)?, xs.narrow(1, 2, 4)?);
    let layer = Gru::new(&params.root().pp("gru"), 5);
    let zeros = Tensor::zeros((2, 5), xs.dtype(), xs.device())?;
    let whole = layer.forward(&xs)?;
    let (a, state) = layer.forward_with(&first, &zeros)?;
    let (b, state) = layer.forward_with(&rest, &state)?;
    assert_close(&Tensor::cat(&[a, b], 1)?, &whole, 1e-6, 1e-6);
    assert_close(&state, &last_step(&whole)?, 1e-6, 1e-6);

    let layer = Lstm::new(&params.root().pp("lstm"), 5);
    let whole = layer.forward(&xs)?;
    let (a, (h, c)) = layer.forward_with(&first, (&zeros, &zeros))?;
    let (b, (h, _)) = layer.forward_with(&rest, (&h, &c))?;
    assert_close(&Tensor::cat(&[a, b], 1)?, &whole, 1e-6, 1e-6);
    assert_close(&h, &last_step(&whole)?, 1e-6, 1e-6);

    let shapes: Vec<_> =
        params.list().iter().map(|p| (p.name().to_owned(), p.var().dims().to_vec())).collect();
    assert_eq!(shapes[0], ("gru.weight_ih".to_owned(), vec![15, 3]));
    assert_eq!(shapes[7], ("lstm.bias_hh".to_owned(), vec![20]));
    let bound = 1.0 / 5f32.sqrt();
    for param in params.list() {
        let largest = param.tensor().abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(largest <= bound && largest > 0.6 * bound, "{}: {largest}", param.name());
    }
    Ok(())
}

#[test]
fn shapes_that_do_not_fit_are_named() -> Result<()> {
    let t = inputs(3, 5)?;
    let xs = random((2, 3, 4), 1)?;
    let error = message(gru(&xs, from_slice(&t), None));
    assert_eq!(error, "gru: weight_ih of shape [15, 2], expected [15, 4]");
    let error = message(lstm(&t[0], from_slice(&t), None));
    assert_eq!(error, "lstm: weight_hh of shape [15, 5], expected 20 rows");
    let error = message(gru(&t[0], from_slice(&t), Some(&t[5].narrow(0, 0, 1)?)));
    assert_eq!(error, "gru: initial hidden state of shape [1, 5], expected [2, 5]");
    let error = message(gru(&t[0].narrow(1, 0, 0)?, from_slice(&t), None));
    assert!(error.starts_with("gru: nothing to do"), "{error}");
    let error = message(last_step(&t[0].narrow(1, 0, 0)?));
    assert_eq!(error, "last_step: no step in an input of shape [2, 0, 2]");
    Ok(())
}

#[test]
fn an_empty_batch_has_an_empty_result() -> Result<()> {
    let t = inputs(4, 5)?;
    let (ys, c) = lstm(&t[0].narrow(0, 0, 0)?, from_slice(&t), None)?;
    assert_eq!((ys.dims(), c.dims()), (&[0, 3, 5][..], &[0, 5][..]));
    Ok(())
}
