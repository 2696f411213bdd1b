//! A linear layer whose weight is trained, or has the values of a file and an adapter. The backward pass may compute the
//! layer again.

use std::sync::Arc;

use candelabrum::candle::quantized::{GgmlDType, QTensor};
use candelabrum::candle::{Result, Shape, Var};
use candelabrum::nn::{InitialValues, LoraConfig, LoraLayers, QuantizedMatrix, recompute};
use candelabrum::prelude::*;
use candelabrum_testkit::uniform;

use crate::draw::Draw;

/// What is trained beside the bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trained {
    /// The weight.
    Weight,
    /// An adapter of the weight, which has the values of a file and is frozen.
    Lora,
    Dora,
    /// An adapter of a quantised weight.
    LoraOfQuantized,
}

impl Trained {
    pub(crate) fn drawn(draw: &mut Draw) -> Self {
        let adapters = [Self::Lora, Self::Dora, Self::LoraOfQuantized];
        if draw.chance(50) { Self::Weight } else { draw.one_of(&adapters) }
    }

    /// The layer `name`, from inputs of `features`. `dropout` is that of an adapter.
    pub(crate) fn layer(
        self,
        params: &Params,
        name: &'static str,
        [classes, features]: [usize; 2],
        dropout: f32,
    ) -> Linear {
        if self != Self::Weight {
            let is_quantized = self == Self::LoraOfQuantized;
            let file = File { name, shape: (classes, features), is_quantized };
            params.set_initial_values(Some(Arc::new(file)));
        }
        let layer = Linear::new(&params.root().pp(name), classes);
        let row = Tensor::zeros((1, features), DType::F32, &Device::Cpu).unwrap();
        layer.forward(&row).unwrap();
        if self != Self::Weight {
            let dora = self == Self::Dora;
            // DoRA refuses dropout.
            let dropout = if dora { 0.0 } else { dropout };
            let config = LoraConfig { rank: 2, alpha: 3.0, dora, dropout, ..LoraConfig::default() };
            LoraLayers::attach(params, &config).unwrap();
            // The bias is trained beside the adapter.
            params.get(&format!("{name}.bias")).unwrap().unfreeze();
        }
        layer
    }
}

/// The result of a layer, which the backward pass computes again if it `is_recomputed`.
pub(crate) fn forward(
    params: &Params,
    layer: &Arc<Linear>,
    xs: &Tensor,
    is_recomputed: bool,
) -> Result<Tensor> {
    if !is_recomputed {
        return layer.forward(xs);
    }
    let layer = Arc::clone(layer);
    recompute(params, &[xs], move |inputs| layer.forward(&inputs[0]))
}

/// The values of a file that has the weight of a layer.
struct File {
    name: &'static str,
    shape: (usize, usize),
    is_quantized: bool,
}

impl File {
    fn weight(&self) -> Result<Tensor> {
        uniform(self.shape, 77, -0.5, 0.5, DType::F32)
    }
}

impl InitialValues for File {
    fn variable(&self, name: &str, _: &Shape, _: DType, _: &Device) -> Result<Option<Var>> {
        let is_weight = name.strip_suffix(".weight") == Some(self.name);
        is_weight.then(|| Var::from_tensor(&self.weight()?)).transpose()
    }

    fn quantized(
        &self,
        name: &str,
        _: (usize, usize),
        _: &Device,
    ) -> Result<Option<QuantizedMatrix>> {
        let is_weight = name.strip_suffix(".weight") == Some(self.name);
        let matrix = || QuantizedMatrix::new(QTensor::quantize(&self.weight()?, GgmlDType::F16)?);
        (self.is_quantized && is_weight).then(matrix).transpose()
    }
}
