//! The small networks in candle.

use candle_core::{Module, Result};
use candle_nn::{Func, RNN, VarBuilder, conv2d, embedding, func, linear};

use crate::sizes::{GRU, LSTM};

/// SINGA's network for MNIST.
pub(crate) fn cnn(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let conv1 = conv2d(1, 20, 5, Default::default(), vb.pp("conv1"))?;
    let conv2 = conv2d(20, 50, 5, Default::default(), vb.pp("conv2"))?;
    let linear1 = linear(800, 500, vb.pp("linear1"))?;
    let linear2 = linear(500, 10, vb.pp("linear2"))?;
    Ok(func(move |xs| {
        let ys = conv1.forward(xs)?.relu()?.max_pool2d(2)?;
        let ys = conv2.forward(&ys)?.relu()?.max_pool2d(2)?;
        linear2.forward(&linear1.forward(&ys.flatten_from(1)?)?.relu()?)
    }))
}

/// The multilayer perceptron.
pub(crate) fn mlp(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let linear1 = linear(784, 1024, vb.pp("linear1"))?;
    let linear2 = linear(1024, 1024, vb.pp("linear2"))?;
    let linear3 = linear(1024, 10, vb.pp("linear3"))?;
    Ok(func(move |xs| {
        let ys = linear1.forward(xs)?.relu()?;
        linear3.forward(&linear2.forward(&ys)?.relu()?)
    }))
}

/// The sequence classifier.
pub(crate) fn gru(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let embedding = embedding(GRU.vocabulary, GRU.embedding, vb.pp("embedding"))?;
    let gru = candle_nn::gru(GRU.embedding, GRU.hidden, Default::default(), vb.pp("gru"))?;
    let linear = linear(GRU.hidden, GRU.classes, vb.pp("linear"))?;
    Ok(func(move |xs| {
        let states = gru.seq(&embedding.forward(xs)?)?;
        linear.forward(states.last().expect("a sequence has tokens").h())
    }))
}

/// The language model of characters.
pub(crate) fn lstm(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let embedding = embedding(LSTM.vocabulary, LSTM.embedding, vb.pp("embedding"))?;
    let lstm = candle_nn::lstm(LSTM.embedding, LSTM.hidden, Default::default(), vb.pp("lstm"))?;
    let linear = linear(LSTM.hidden, LSTM.vocabulary, vb.pp("linear"))?;
    Ok(func(move |xs| {
        let states = lstm.seq(&embedding.forward(xs)?)?;
        linear.forward(&lstm.states_to_tensor(&states)?)
    }))
}
