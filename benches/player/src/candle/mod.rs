//! A network as a candle user trains it today: candle-nn's layers, candle's autograd.
//!
//! candle-nn's SGD has no momentum, so the update is written with tensor operations.

mod conv_norm;
pub(crate) mod gpt;
pub(crate) mod mobilenet_v2;
pub(crate) mod resnet;
pub(crate) mod small;

use anyhow::{bail, ensure};
use candelabrum::nn::Params;
use candelabrum::train::cli::Precision;
use candle_core::{D, DType, Device, Module, Tensor, Var};
use candle_nn::{Func, VarBuilder, VarMap, loss};

use crate::contender::TrainableNetwork;
use crate::network::build;
use crate::settings::TrainingSettings;

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
    pub(crate) fn new(settings: &TrainingSettings, xs: &Tensor) -> anyhow::Result<Self> {
        ensure!(settings.precision == Precision::F32, "candle's networks are in f32");
        let params = Params::new(0);
        let sizes = settings.network.drawn_sizes();
        drop(build(settings.network, settings.blocks, sizes, &params, xs)?);
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let Some(module) = settings.network.candle else {
            bail!("candle's program has no {}", settings.network.name)
        };
        let module = module(&vb)?;
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

impl TrainableNetwork for Candle {
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
