//! Linear layers, of which one has a weight that is trained, or that has the values of a file and an adapter. The
//! backward pass may compute the layers again.

use std::sync::Arc;

use candelabrum::candle::quantized::{GgmlDType, QTensor};
use candelabrum::candle::{Result, Shape, Var};
use candelabrum::nn::layers::Blocks;
use candelabrum::nn::{InitialValues, LoraConfig, LoraLayers, QuantizedMatrix, Recompute};
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

    /// Lets the weight of the layer `name` have the values of a file, before the layer has its parameters.
    fn prepare(self, params: &Params, name: &'static str, shape: (usize, usize)) {
        if self != Self::Weight {
            let is_quantized = self == Self::LoraOfQuantized;
            params.set_initial_values(Some(Arc::new(File { name, shape, is_quantized })));
        }
    }

    /// Gives the layer `name` its adapter, with this dropout. `others` are the names of the other layers.
    fn attach(
        self,
        params: &Params,
        name: &str,
        others: Vec<String>,
        dropout: f32,
    ) -> Option<LoraLayers> {
        (self != Self::Weight).then(|| {
            let dora = self == Self::Dora;
            // DoRA refuses dropout.
            let dropout = if dora { 0.0 } else { dropout };
            let targets = vec![name.to_owned()];
            // The other layers are not in the file.
            let config =
                LoraConfig { rank: 2, alpha: 3.0, dora, dropout, targets, trained: others };
            let adapters = LoraLayers::attach(params, &config).unwrap();
            // All but the weight is trained beside the adapter.
            let weight = format!("{name}.weight");
            let others = params.list().into_iter().filter(|param| param.name() != weight);
            others.for_each(|param| param.unfreeze());
            adapters
        })
    }
}

/// The sum of the results of linear layers, of which each is a block: the first one with what is drawn, and enough others
/// that buckets are lent where gradients are shared out.
pub(crate) struct SumOfLayers {
    blocks: Blocks<Linear>,
    adapters: Option<LoraLayers>,
    features: usize,
    classes: usize,
}

impl SumOfLayers {
    /// The layer `name`, which has what is `trained`, and `more` others. Those that `recompute` chooses are computed again
    /// in the backward pass.
    pub(crate) fn new(
        params: &Params,
        (trained, dropout): (Trained, f32),
        name: &'static str,
        more: usize,
        [classes, features]: [usize; 2],
        recompute: Recompute,
    ) -> Self {
        trained.prepare(params, name, (classes, features));
        let scope = params.root();
        let first = Linear::new(&scope.pp(name), classes);
        let names: Vec<String> = (0..more).map(|number| format!("more{number}")).collect();
        let others = names.iter().map(|name| Linear::new(&scope.pp(name), classes));
        let blocks = Blocks::new(&scope, [first].into_iter().chain(others));
        let mut sum = Self { blocks, adapters: None, features, classes };
        sum.forward(&Tensor::zeros((1, features), params.dtype(), &Device::Cpu).unwrap()).unwrap();
        sum.adapters = trained.attach(params, name, names, dropout);
        params.set_recompute(recompute);
        sum
    }

    /// Merges the adapters and undoes that, which must leave no trace.
    pub(crate) fn merge_and_unmerge(&self) {
        // What is quantised refuses a merge.
        if let Some(adapters) = &self.adapters
            && adapters.merge().is_ok()
        {
            adapters.unmerge().unwrap();
        }
    }

    pub(crate) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let &Self { features, classes, .. } = self;
        let zeros = Tensor::zeros((xs.dim(0)?, classes), xs.dtype(), xs.device())?;
        // The features and the sum so far.
        let state = Tensor::cat(&[xs, &zeros], 1)?;
        let state = self.blocks.forward_by(&state, move |layer, state| {
            let xs = state.narrow(1, 0, features)?.contiguous()?;
            let sum = (state.narrow(1, features, classes)? + layer.forward(&xs)?)?;
            Tensor::cat(&[xs, sum], 1)
        })?;
        state.narrow(1, features, classes)?.contiguous()
    }
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
