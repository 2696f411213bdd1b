//! The networks as a candle user writes them today: candle-nn's layers, candle's autograd.
//!
//! candle-nn's SGD has no momentum, so the update is written with tensor operations.

mod cnn;
mod gru;
mod mlp;
mod resnet18;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap, loss};

use crate::network::Network;
use crate::{Train, problem};

const LR: f64 = 0.005;
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 1e-5;

/// A network and the state of its optimizer.
pub(crate) struct Candle {
    network: Box<dyn Module>,
    /// Every variable and its momentum.
    state: Vec<(Var, Option<Tensor>)>,
}

impl Candle {
    pub(crate) fn new(network: Network) -> Result<Self> {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let module: Box<dyn Module> = match network {
            Network::Cnn => Box::new(cnn::Cnn::new(&vb)?),
            Network::Mlp => Box::new(mlp::Mlp::new(&vb)?),
            Network::Resnet18 => Box::new(resnet18::Resnet18::new(&vb)?),
            Network::Gru => Box::new(gru::Gru::new(&vb)?),
        };
        let vars = varmap.data().lock().expect("no other thread has the map");
        let mut state = Vec::new();
        for (name, value) in problem::parameters(network)? {
            // candle numbers the layers of a GRU as PyTorch does.
            let name = if name.starts_with("gru.") { format!("{name}_l0") } else { name };
            let var = vars[&name].clone();
            var.set(&value)?;
            state.push((var, None));
        }
        drop(vars);
        Ok(Self { network: module, state })
    }
}

impl Train for Candle {
    fn step(&mut self, xs: &Tensor, ys: &Tensor) -> anyhow::Result<Tensor> {
        let loss = loss::cross_entropy(&self.network.forward(xs)?, ys)?;
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
