//! The networks as a candle user writes them today: candle-nn's layers, candle's autograd.
//!
//! candle-nn's SGD has no momentum, so the update is written with tensor operations.

mod conv_norm;
mod gpt;
mod mobilenet_v2;
mod resnet;

use anyhow::{bail, ensure};
use candelabrum::models::GptConfig;
use candelabrum::nn::Params;
use candelabrum::train::cli::Precision;
use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Func, RNN, VarBuilder, VarMap, conv2d, embedding, func, linear, loss};

use crate::contender::Train;
use crate::network::{GRU, LSTM, Network, Sizes, build};
use crate::settings::Settings;

const LR: f64 = 0.005;
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 1e-5;

/// A network and the state of its optimizer.
pub(crate) struct Candle {
    network: Func<'static>,
    /// Every variable and its momentum.
    state: Vec<(Var, Option<Tensor>)>,
}

impl Candle {
    /// The network with the initial values of this project's.
    pub(crate) fn new(settings: &Settings, xs: &Tensor) -> anyhow::Result<Self> {
        ensure!(settings.precision == Precision::F32, "candle's networks are in f32");
        let params = Params::new(0);
        let sizes = Sizes::of_drawn(settings.network);
        drop(build(settings.network, settings.blocks, sizes, &params, xs)?);
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let module = match settings.network {
            Network::Cnn => cnn(&vb),
            Network::Mlp => mlp(&vb),
            Network::Resnet18 => resnet::resnet18(&vb, 10),
            Network::Resnet18Small => resnet::resnet18_small(&vb, 10),
            Network::Resnet18At224 => resnet::resnet18(&vb, 1000),
            Network::Resnet50At224 => resnet::resnet50(&vb, 1000),
            Network::MobileNetV2At224 => mobilenet_v2::mobilenet_v2(&vb, 1000),
            Network::Gru => gru(&vb),
            Network::Lstm => lstm(&vb),
            Network::Gpt => gpt::gpt(&vb, GptConfig::default()),
            other => bail!("candle's program has no {other:?}"),
        }?;
        let vars = varmap.data().lock().expect("no other thread has the map");
        let mut state = Vec::new();
        for param in params.list() {
            // candle numbers the layers of a recurrent network as PyTorch does.
            let is_numbered = ["gru.", "lstm."].iter().any(|path| param.name().starts_with(path));
            let name = format!("{}{}", param.name(), if is_numbered { "_l0" } else { "" });
            let var = vars[&name].clone();
            var.set(param.tensor())?;
            state.push((var, None));
        }
        drop(vars);
        Ok(Self { network: module, state })
    }
}

impl Train for Candle {
    fn elements(&self) -> usize {
        self.state.iter().map(|(var, _)| var.elem_count()).sum()
    }

    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        // With labels at every position, each position is a row.
        let scores = self.network.forward(xs)?.flatten_to(D::Minus2)?;
        let loss = loss::cross_entropy(&scores, &ys.flatten_all()?)?;
        let grads = loss.backward()?;
        for (var, momentum) in &mut self.state {
            let Some(grad) = grads.get(var) else { continue };
            let grad = (grad + (var.as_tensor() * WEIGHT_DECAY)?)?;
            let velocity = match momentum.take() {
                Some(momentum) => ((momentum * MOMENTUM)? + grad)?,
                None => grad,
            };
            var.set(&(var.as_tensor() - (&velocity * LR)?)?)?;
            *momentum = Some(velocity.detach());
        }
        Ok(loss.detach())
    }
}

/// SINGA's network for MNIST.
fn cnn(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
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
fn mlp(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let linear1 = linear(784, 1024, vb.pp("linear1"))?;
    let linear2 = linear(1024, 1024, vb.pp("linear2"))?;
    let linear3 = linear(1024, 10, vb.pp("linear3"))?;
    Ok(func(move |xs| {
        let ys = linear1.forward(xs)?.relu()?;
        linear3.forward(&linear2.forward(&ys)?.relu()?)
    }))
}

/// The sequence classifier.
fn gru(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let embedding = embedding(GRU.vocabulary, GRU.embedding, vb.pp("embedding"))?;
    let gru = candle_nn::gru(GRU.embedding, GRU.hidden, Default::default(), vb.pp("gru"))?;
    let linear = linear(GRU.hidden, GRU.classes, vb.pp("linear"))?;
    Ok(func(move |xs| {
        let states = gru.seq(&embedding.forward(xs)?)?;
        linear.forward(states.last().expect("a sequence has tokens").h())
    }))
}

/// The language model of characters.
fn lstm(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let embedding = embedding(LSTM.vocabulary, LSTM.embedding, vb.pp("embedding"))?;
    let lstm = candle_nn::lstm(LSTM.embedding, LSTM.hidden, Default::default(), vb.pp("lstm"))?;
    let linear = linear(LSTM.hidden, LSTM.vocabulary, vb.pp("linear"))?;
    Ok(func(move |xs| {
        let states = lstm.seq(&embedding.forward(xs)?)?;
        linear.forward(&lstm.states_to_tensor(&states)?)
    }))
}
