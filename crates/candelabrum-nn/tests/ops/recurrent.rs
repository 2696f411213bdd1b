//! RNN, GRU and LSTM over whole sequences, and the last step of one.

use std::collections::BTreeMap;

use candelabrum_nn::layers::{Gru, Lstm, Rnn};
use candelabrum_nn::ops::{
    RecurrentWeights, SequenceSteps, final_state, gru, gru_with, last_step, lstm, lstm_with, rnn,
    sequence_lengths, with_composites,
};
use candelabrum_nn::{Activation, Params};
use candelabrum_testkit::{assert_close, gradcheck};
use candle_core::{DType, Device, Module, Result, Tensor};

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
fn rnn_is_pytorchs() -> Result<()> {
    for case in cases("rnn.safetensors") {
        let is_tanh = case.name.starts_with("tanh");
        let activation = if is_tanh { Activation::Tanh } else { Activation::Relu };
        let all = SequenceSteps::default();
        check(&case, &INPUTS, |t| rnn(&t["xs"], weights(t), t.get("h0"), activation, &all))?;
    }
    Ok(())
}

/// Layers above each other, in one direction or both, with lengths as PyTorch's packed sequences.
#[test]
fn stacked_layers_are_pytorchs() -> Result<()> {
    for case in cases("stacked_recurrent.safetensors") {
        let mut parts = case.name.split('_');
        let kind = parts.next().expect("a kind");
        let flags: Vec<usize> = parts.map(|part| part.parse().expect("a number")).collect();
        for (dtype, composite, tolerance) in
            [(DType::F64, false, 1e-12), (DType::F64, true, 1e-12), (DType::F32, false, 4e-6)]
        {
            println!("{} in {dtype:?}, composite: {composite}", case.name);
            let input = |name: &str| {
                let tensor = case.tensors.get(name).map(|tensor| tensor.to_dtype(dtype));
                tensor.transpose()?.map(|tensor| candle_core::Var::from_tensor(&tensor)).transpose()
            };
            let xs = input("xs")?.expect("an input");
            let (h0, c0) = (input("h0")?, input("c0")?);
            // A single layer in one direction takes a state without the dimension of layers.
            let squeezed = |state: &candle_core::Var| match state.dim(0)? {
                1 => state.squeeze(0),
                _ => Ok(state.as_tensor().clone()),
            };
            let states = [&h0, &c0].map(|state| state.as_ref().map(squeezed).transpose());
            let [h, c] = states;
            let (h, c) = (h?, c?);
            let params = Params::on(1, dtype, &Device::Cpu);
            let lengths = match case.tensors.get("lengths") {
                Some(lengths) => lengths.clone(),
                None => Tensor::new(&[6u32; 4], &Device::Cpu)?,
            };
            let layer = stacked(kind, &flags, &params);
            let run = || {
                let results = layer(&xs, &lengths, [h.as_ref(), c.as_ref()])?;
                let flat = results.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?;
                Tensor::cat(&flat, 0)
            };
            run()?; // creates the parameters
            for param in params.list() {
                param.set(&case.tensors[&pytorchs_name(param.name())].to_dtype(dtype)?)?;
            }
            let ys = if composite { with_composites(run) } else { run() }?;
            assert_close(&ys, &case.tensors["ys"], tolerance, tolerance);
            let dys = case.tensors["dys"].to_dtype(dtype)?;
            let grads = (&ys * &dys)?.sum_all()?.backward()?;
            let of_param = |param: &candelabrum_nn::Param| {
                (pytorchs_name(param.name()), param.tensor().clone())
            };
            let mut leaves: Vec<(String, Tensor)> = params.list().iter().map(of_param).collect();
            for (name, input) in [("xs", Some(&xs)), ("h0", h0.as_ref()), ("c0", c0.as_ref())] {
                leaves.extend(input.map(|input| (name.to_owned(), input.as_tensor().clone())));
            }
            for (name, leaf) in leaves {
                println!("gradient of {name}");
                let gradient = grads.get(&leaf).expect("every input has a gradient");
                assert_close(gradient, &case.tensors[&format!("d{name}")], tolerance, tolerance);
            }
        }
    }
    Ok(())
}

/// `weight_ih_l0` for `layer.weight_ih`, `weight_ih_l0_reverse` for `layer.weight_ih_reverse`.
fn pytorchs_name(name: &str) -> String {
    let name = name.strip_prefix("layer.").expect("the scope's name");
    match (name.contains("_l"), name.strip_suffix("_reverse")) {
        (true, _) => name.to_owned(),
        (false, Some(name)) => format!("{name}_l0_reverse"),
        (false, None) => format!("{name}_l0"),
    }
}

type Layer = Box<dyn Fn(&Tensor, &Tensor, [Option<&Tensor>; 2]) -> Result<Vec<Tensor>>>;

/// A layer of 4 units that gives all hidden states, then the final hidden and cell states.
fn stacked(kind: &str, flags: &[usize], params: &Params) -> Layer {
    macro_rules! layer {
        ($Layer:ident) => {{
            let layer = $Layer::new(&params.root().pp("layer"), 4).layers(flags[0]);
            if flags[1] == 1 { layer.bidirectional() } else { layer }
        }};
    }
    match kind {
        "RNN" => {
            let layer = layer!(Rnn);
            Box::new(move |xs, lengths, [h, _]| {
                layer.forward_lengths(xs, lengths, h).map(|(ys, h)| vec![ys, h])
            })
        }
        "GRU" => {
            let layer = layer!(Gru);
            Box::new(move |xs, lengths, [h, _]| {
                layer.forward_lengths(xs, lengths, h).map(|(ys, h)| vec![ys, h])
            })
        }
        _ => {
            let layer = layer!(Lstm);
            Box::new(move |xs, lengths, [h, c]| {
                let results = layer.forward_lengths(xs, lengths, h.zip(c));
                results.map(|(ys, (h, c))| vec![ys, h, c])
            })
        }
    }
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

/// A batch of sequences gives what each of them gives alone, and what is behind the lengths is not read.
#[test]
fn padding_is_not_read_and_sequences_do_not_mix() -> Result<()> {
    let (batch, steps, hidden) = (13, 9, 5);
    let lengths: Vec<usize> = (0..batch).map(|n| n * 7 % (steps + 1)).collect();
    let clean = random((batch, steps, 2), 1)?;
    let mut values = clean.flatten_all()?.to_vec1::<f64>()?;
    for (n, length) in lengths.iter().enumerate() {
        values[(n * steps + length) * 2..(n + 1) * steps * 2].fill(f64::NAN);
    }
    let xs = Tensor::from_vec(values, clean.shape(), &Device::Cpu)?;
    let t = inputs(4, hidden)?;
    let wide: Vec<u32> = lengths.iter().map(|&length| length as u32).collect();
    let forwards = SequenceSteps::of_lengths(&Tensor::new(wide, &Device::Cpu)?)?;
    for (order, reverse) in [(forwards.clone(), false), (forwards.reversed(), true)] {
        let run = || lstm_with(&xs, from_slice(&t), None, &order);
        for (ys, c) in [run()?, with_composites(run)?] {
            let h = final_state(&ys, None, &order)?;
            for (n, &length) in lengths.iter().enumerate() {
                let ys = ys.get(n)?;
                let behind = ys.narrow(0, length, steps - length)?.to_vec2::<f64>()?;
                assert!(behind.concat().iter().all(|&y| y == 0.0), "sequence {n}");
                if length == 0 {
                    assert_eq!(h.get(n)?.to_vec1::<f64>()?, [0.0; 5]);
                    continue;
                }
                let alone = clean.narrow(0, n, 1)?.narrow(1, 0, length)?;
                let alone = if reverse { alone.flip(&[1])? } else { alone };
                let (expected, end) = lstm(&alone, from_slice(&t), None)?;
                assert_close(&h.get(n)?, &last_step(&expected)?.get(0)?, 1e-13, 1e-13);
                assert_close(&c.get(n)?, &end.get(0)?, 1e-13, 1e-13);
                let expected = if reverse { expected.flip(&[1])? } else { expected };
                assert_close(&ys.narrow(0, 0, length)?, &expected.get(0)?, 1e-13, 1e-13);
            }
        }
    }
    Ok(())
}

#[test]
fn dropout_between_layers_is_for_training_only() -> Result<()> {
    let params = Params::new(1);
    let xs = random((2, 6, 3), 1)?.to_dtype(DType::F32)?;
    let layer = Gru::new(&params.root().pp("gru"), 5).layers(3).bidirectional().dropout(0.5);
    params.eval();
    let calm = layer.forward(&xs)?;
    assert_eq!(calm.dims(), [2, 6, 10]);
    assert_eq!(params.list().len(), 24);
    let plain = layer.forward(&xs)?;
    assert_close(&calm, &plain, 0.0, 0.0);
    params.train();
    let difference = (layer.forward(&xs)? - calm)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(difference > 1e-3, "{difference}");
    Ok(())
}

#[test]
fn lengths_of_tokens_end_at_the_last_word() -> Result<()> {
    let tokens = [[[3u32, 0, 4, 0], [0, 0, 0, 0]], [[1, 1, 1, 1], [0, 0, 0, 2]]];
    let lengths = sequence_lengths(&Tensor::new(&tokens, &Device::Cpu)?, 0)?;
    assert_eq!(lengths.to_vec2::<u32>()?, [[3, 0], [4, 4]]);
    let nothing = Tensor::zeros((2, 0), DType::I64, &Device::Cpu)?;
    assert_eq!(sequence_lengths(&nothing, 0)?.to_vec1::<u32>()?, [0, 0]);
    assert!(sequence_lengths(&random((2, 3), 1)?, 0).is_err());
    Ok(())
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
    let xs = random((2, 6, 3), 1)?.to_dtype(DType::F32)?;
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
    let error =
        message(rnn(&t[0], from_slice(&t), None, Activation::Gelu, &SequenceSteps::default()));
    assert_eq!(error, "rnn: the activation gelu, expected tanh or relu");
    let order = SequenceSteps::of_lengths(&Tensor::new(&[1i64, 4], &Device::Cpu)?)?;
    let error = message(gru_with(&t[0], from_slice(&t), None, &order));
    assert_eq!(error, "gru: 2 lengths up to 4 for 2 sequences of 3 steps");
    let order = SequenceSteps::of_lengths(&Tensor::new(&[1i64], &Device::Cpu)?)?;
    let error = message(final_state(&t[0], None, &order));
    assert_eq!(error, "final_state: 1 lengths up to 1 for 2 sequences of 3 steps");
    let negative = SequenceSteps::of_lengths(&Tensor::new(&[-1i64], &Device::Cpu)?);
    assert!(negative.is_err());
    let layer = Gru::new(&Params::on(0, DType::F64, &Device::Cpu).root().pp("gru"), 5).layers(2);
    let error = message(layer.forward_with(&t[0], &t[5]));
    assert_eq!(error, "layer `gru`: states of shape [2, 5], expected (2, N, 5)");
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
