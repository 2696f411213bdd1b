//! The CNN as a candle user writes it today: candle-nn's layers, candle's autograd.
//!
//! candle-nn's SGD has no momentum, so the update is written with tensor operations.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Conv2d, Linear, Module, VarBuilder, VarMap, loss};

use crate::{Train, problem};

const LR: f64 = 0.005;
const MOMENTUM: f64 = 0.9;
const WEIGHT_DECAY: f64 = 1e-5;

/// The network and what its optimizer remembers.
pub(crate) struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    linear1: Linear,
    linear2: Linear,
    /// Every variable and its momentum.
    state: Vec<(Var, Option<Tensor>)>,
}

impl Cnn {
    pub(crate) fn new() -> Result<Self> {
        let mut varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let conv1 = candle_nn::conv2d(1, 20, 5, Default::default(), vb.pp("conv1"))?;
        let conv2 = candle_nn::conv2d(20, 50, 5, Default::default(), vb.pp("conv2"))?;
        let linear1 = candle_nn::linear(800, 500, vb.pp("linear1"))?;
        let linear2 = candle_nn::linear(500, 10, vb.pp("linear2"))?;
        varmap.set(problem::cnn_parameters()?.into_iter())?;
        let state = {
            let vars = varmap.data().lock().expect("no other thread has the map");
            problem::CNN.iter().map(|(name, ..)| (vars[*name].clone(), None)).collect()
        };
        Ok(Self { conv1, conv2, linear1, linear2, state })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.conv1.forward(xs)?.relu()?.max_pool2d(2)?;
        let ys = self.conv2.forward(&ys)?.relu()?.max_pool2d(2)?;
        self.linear2.forward(&self.linear1.forward(&ys.flatten_from(1)?)?.relu()?)
    }
}

impl Train for Cnn {
    fn step(&mut self, images: &Tensor, labels: &Tensor) -> anyhow::Result<Tensor> {
        let loss = loss::cross_entropy(&self.forward(images)?, labels)?;
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
