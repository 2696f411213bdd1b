//! RNN, GRU and LSTM over whole sequences, with lengths and in both directions.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{self, RecurrentWeights, Steps};
use candelabrum_testkit::assert_close;
use candle_core::{Device, Result, Tensor};

use super::case::{Arguments, Cases, GoldenCase, Operation};

const INPUTS: [&str; 7] = ["xs", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h0", "c0"];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Rnn(Activation),
    Gru,
    Lstm,
}

/// All hidden states, and the final cell state of an LSTM.
fn run(kind: Kind, t: &Arguments, steps: &Steps) -> Result<(Tensor, Option<Tensor>)> {
    let (weight_ih, weight_hh, xs, h0) = (&t[1], &t[2], &t[0], t.get(5));
    let weights = RecurrentWeights { weight_ih, weight_hh, bias_ih: t.get(3), bias_hh: t.get(4) };
    Ok(match kind {
        Kind::Rnn(activation) => (ops::rnn(xs, weights, h0, activation, steps)?, None),
        Kind::Gru => (ops::gru_with(xs, weights, h0, steps)?, None),
        Kind::Lstm => {
            let (ys, c) = ops::lstm_with(xs, weights, h0.zip(t.get(6)), steps)?;
            (ys, Some(c))
        }
    })
}

fn golden(kind: Kind, case: &GoldenCase) -> impl Operation + use<> {
    let (last, wants_both) = (case.tensors.get("final").cloned(), case.name == "both");
    move |t: &Arguments| {
        let (ys, c) = run(kind, t, &Steps::default())?;
        let Some(c) = c else { return Ok(ys) };
        if let Some(last) = &last {
            assert_close(&c.to_device(&Device::Cpu)?, last, 2e-6, 2e-6);
        }
        if wants_both { Tensor::cat(&[ys.flatten_all()?, c.flatten_all()?], 0) } else { Ok(ys) }
    }
}

/// Adds cases of all sizes. The states are the last inputs, `states` of them.
fn add_sizes(cases: &mut Cases, kind: Kind, gates: usize, states: usize) -> Result<()> {
    let some = |lengths: &[u32]| Steps::of_lengths(&Tensor::new(lengths, &Device::Cpu)?);
    let few = some(&[3, 6, 0, 1, 6])?;
    let many = some(&(0..33).map(|n| n % 8).collect::<Vec<_>>())?;
    for ([batch, steps, width, hidden], order) in [
        ([2, 3, 2, 5], Steps::default()),
        ([3, 1, 4, 2], Steps::default()),
        ([1, 7, 1, 1], Steps::default()),
        ([0, 3, 2, 4], Steps::default()),
        ([5, 6, 2, 3], Steps::default().reversed()),
        ([5, 6, 2, 3], few.clone()),
        ([5, 6, 2, 3], few.reversed()),
        ([33, 7, 130, 65], Steps::default()),
        ([33, 7, 30, 65], many.clone()),
        ([33, 7, 30, 65], many.reversed()),
    ] {
        let (rows, state) = (gates * hidden, [batch, hidden]);
        let (ih, hh) = ([rows, width], [rows, hidden]);
        let shapes: [&[usize]; 7] =
            [&[batch, steps, width], &ih, &hh, &ih[..1], &hh[..1], &state, &state];
        // All results in one tensor, the final hidden state among them.
        let case = cases.add((kind, order.clone()), &shapes[..5 + states], move |t| {
            let (ys, c) = run(kind, t, &order)?;
            let end = ops::final_state(&ys, t.get(5), &order)?;
            let all = [Some(ys), Some(end), c].into_iter().flatten();
            let all = all.map(|tensor| tensor.flatten_all()).collect::<Result<Vec<_>>>()?;
            Tensor::cat(&all, 0)
        });
        case.optional(&[&[3, 4], &[5, 6][..states]]);
    }
    Ok(())
}

#[test]
fn rnn() -> Result<()> {
    let mut cases = Cases::new("rnn", &INPUTS, &[]);
    cases.golden("rnn", |case| {
        let name = case.name.split('_').next().unwrap_or_default();
        Ok(golden(Kind::Rnn(name.parse().expect("an activation")), case))
    })?;
    for activation in [Activation::Tanh, Activation::Relu] {
        add_sizes(&mut cases, Kind::Rnn(activation), 1, 1)?;
    }
    cases.check()
}

#[test]
fn gru() -> Result<()> {
    let mut cases = Cases::new("gru", &INPUTS, &[]);
    cases.golden("gru", |case| Ok(golden(Kind::Gru, case)))?;
    add_sizes(&mut cases, Kind::Gru, 3, 1)?;
    cases.check()
}

#[test]
fn lstm() -> Result<()> {
    let mut cases = Cases::new("lstm", &INPUTS, &[]);
    for file in ["lstm", "lstm_cell_state"] {
        cases.golden(file, |case| Ok(golden(Kind::Lstm, case)))?;
    }
    add_sizes(&mut cases, Kind::Lstm, 4, 2)?;
    let shapes: [&[usize]; 7] = [&[2, 3, 2], &[20, 2], &[20, 5], &[20], &[20], &[2, 5], &[2, 5]];
    // The state is the start of the next piece of the sequence.
    cases.add("two pieces", &shapes, |t| {
        let piece = |start: usize, len: usize, state: [Tensor; 2]| {
            let mut t = Arguments(t.0.clone());
            t.0[0] = Some(t[0].narrow(1, start, len)?);
            t.0[5..].clone_from_slice(&state.map(Some));
            run(Kind::Lstm, &t, &Steps::default())
        };
        let (ys, c) = piece(0, 1, [t[5].clone(), t[6].clone()])?;
        Ok(piece(1, 2, [ops::last_step(&ys)?, c.expect("an LSTM has a cell state")])?.0)
    });
    cases.add("cell state alone", &shapes[..5], |t| {
        run(Kind::Lstm, t, &Steps::default())?.1.expect("an LSTM has a cell state").t()
    });
    cases.check()
}
