//! VGG (Simonyan and Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*,
//! arXiv:1409.1556, table 1, columns A, B, D and E), with torchvision's structure, names and initial values: also
//! with a batch normalisation behind each convolution, and for images of any size.

use candelabrum_nn::layers::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, MaxPool2d};
use candelabrum_nn::{Activation, Init, Model, Scope};
use candle_core::{Module, Result, Tensor};

use crate::classifier::{ClassifierConfig, ClassifierLayers};

/// How many layers with weights a [`Vgg`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VggDepth {
    /// The paper's column A: 132,863,336 parameters for 1000 classes of colour images.
    Vgg11,
    /// The paper's column B: 133,047,848 parameters.
    Vgg13,
    /// The paper's column D: 138,357,544 parameters.
    Vgg16,
    /// The paper's column E: 143,667,240 parameters.
    Vgg19,
}

impl VggDepth {
    /// The number of convolutions of each stage.
    fn convolutions(self) -> [usize; 5] {
        match self {
            Self::Vgg11 => [1, 1, 2, 2, 2],
            Self::Vgg13 => [2, 2, 2, 2, 2],
            Self::Vgg16 => [2, 2, 3, 3, 3],
            Self::Vgg19 => [2, 2, 4, 4, 4],
        }
    }
}

/// The channels of each stage.
const CHANNELS: [usize; 5] = [64, 128, 256, 512, 512];

/// The sizes and variants of a [`Vgg`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VggConfig {
    /// The number of layers.
    pub depth: VggDepth,
    /// Whether a batch normalisation follows each convolution.
    pub batch_norm: bool,
    /// The number of units of both hidden linear layers.
    pub units: usize,
    /// The probability of dropout behind both hidden linear layers.
    pub dropout: f32,
}

impl VggConfig {
    /// The paper's network: no batch normalisation, hidden layers of 4096 units, dropout 0.5.
    #[must_use]
    pub fn new(depth: VggDepth) -> Self {
        Self { depth, batch_norm: false, units: 4096, dropout: 0.5 }
    }
}

/// `(N, C, H, W) -> (N, classes)`, with `H` and `W` from 32 on.
#[derive(Debug)]
pub struct Vgg {
    stages: Vec<(VggStage, MaxPool2d)>,
    average: AdaptiveAvgPool2d,
    classifier: ClassifierLayers,
}

/// Convolutions of 3×3 that keep the size.
#[derive(Debug)]
struct VggStage {
    first: Conv2d,
    /// Each convolution with the normalisation of its input, if there is one.
    others: Vec<(Option<BatchNorm2d>, Conv2d)>,
    /// The normalisation of the last convolution's result.
    last: Option<BatchNorm2d>,
}

impl Vgg {
    /// The network with the sizes of `config` and `classes` outputs.
    pub fn new(scope: &Scope, classes: usize, config: VggConfig) -> Self {
        let VggConfig { depth, batch_norm, units, dropout } = config;
        let features = scope.pp("features");
        // torchvision counts the activations, too.
        let layers = if batch_norm { 3 } else { 2 };
        let mut number = 0;
        let stages = depth.convolutions().into_iter().zip(CHANNELS).map(|(count, channels)| {
            let first = number;
            let scope = |index: usize, layer: usize| features.pp(first + layers * index + layer);
            number += layers * count + 1;
            let pool = MaxPool2d::new(2).named(&scope(count, 0));
            (VggStage::new(scope, count, channels, batch_norm), pool)
        });
        Self {
            stages: stages.collect(),
            average: AdaptiveAvgPool2d::new(7).named(&scope.pp("avgpool")),
            classifier: ClassifierLayers::new(
                &scope.pp("classifier"),
                ClassifierConfig {
                    classes,
                    units,
                    dropout,
                    linear: [0, 3, 6],
                    drops: [2, 5],
                    init: Some(Init::Normal { std: 0.01 }),
                },
            ),
        }
    }
}

impl VggStage {
    /// A stage of `count` convolutions. `scope` is that of each of them (layer 0) and of its normalisation (layer 1).
    fn new(
        scope: impl Fn(usize, usize) -> Scope,
        count: usize,
        channels: usize,
        batch_norm: bool,
    ) -> Self {
        let conv = |index: usize| {
            let conv = Conv2d::new(&scope(index, 0), channels, 3).padding(1);
            let conv = conv.init(Init::he_normal(channels * 9));
            if batch_norm { conv } else { conv.activation(Activation::Relu) }
        };
        let norm = |index: usize| {
            let norm = || BatchNorm2d::new(&scope(index, 1)).activation(Activation::Relu);
            batch_norm.then(norm)
        };
        let others = (1..count).map(|index| (norm(index - 1), conv(index))).collect();
        Self { first: conv(0), others, last: norm(count - 1) }
    }
}

impl Module for VggStage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.first.forward(xs)?;
        for (norm, conv) in &self.others {
            ys = match norm {
                Some(norm) => norm.forward_conv(&ys, conv)?,
                None => conv.forward(&ys)?,
            };
        }
        if let Some(norm) = &self.last { norm.forward(&ys) } else { Ok(ys) }
    }
}

impl Model for Vgg {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.clone();
        for (stage, pool) in &self.stages {
            ys = pool.forward(&stage.forward(&ys)?)?;
        }
        self.classifier.forward(&self.average.forward(&ys)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    const DEPTHS: [VggDepth; 4] =
        [VggDepth::Vgg11, VggDepth::Vgg13, VggDepth::Vgg16, VggDepth::Vgg19];

    /// Small hidden layers, because the others have 100 million parameters.
    fn compiled(config: VggConfig, classes: usize) -> Result<Params> {
        let params = Params::new(0);
        let model = Vgg::new(&params.root(), classes, VggConfig { units: 2, ..config });
        model.compile(&params, (1, 3, 32, 32))?;
        Ok(params)
    }

    #[test]
    fn there_are_as_many_parameters_as_in_torchvision() -> Result<()> {
        // sum(p.numel() for p in torchvision.models.vgg11().parameters()), and so on
        let expected = [
            [132_863_336, 132_868_840],
            [133_047_848, 133_053_736],
            [138_357_544, 138_365_992],
            [143_667_240, 143_678_248],
        ];
        for (depth, expected) in DEPTHS.into_iter().zip(expected) {
            for (batch_norm, expected) in [false, true].into_iter().zip(expected) {
                let config = VggConfig { batch_norm, ..VggConfig::new(depth) };
                let params = compiled(config, 1000)?;
                let linear =
                    |units: usize| (25_088 + 1) * units + (units + 1) * units + (units + 1) * 1000;
                let count = params.element_count() - linear(2) + linear(config.units);
                assert_eq!(count, expected, "{config:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn parameters_have_torchvisions_names() -> Result<()> {
        let config = VggConfig { batch_norm: true, ..VggConfig::new(VggDepth::Vgg16) };
        for (config, names) in [
            (VggConfig::new(VggDepth::Vgg11), &["features.0.weight", "features.18.bias"][..]),
            (VggConfig::new(VggDepth::Vgg19), &["features.2.weight", "features.34.bias"]),
            (config, &["features.3.weight", "features.4.weight", "features.41.bias"]),
        ] {
            let params = compiled(config, 10)?;
            for name in names.iter().chain(&["classifier.0.weight", "classifier.6.bias"]) {
                assert!(params.get(name).is_ok(), "{name} of {config:?}");
            }
            assert_eq!(params.get("classifier.0.weight")?.var().dims(), [2, 25_088]);
            assert_eq!(params.get("classifier.3.weight")?.var().dims(), [2, 2]);
        }
        Ok(())
    }

    #[test]
    fn each_stage_halves_the_size() -> Result<()> {
        let params = Params::new(0);
        let config = VggConfig { units: 2, ..VggConfig::new(VggDepth::Vgg11) };
        let summary = Vgg::new(&params.root(), 10, config).compile(&params, (1, 3, 64, 96))?;
        let pools = summary.layers().iter().filter(|layer| layer.kind.starts_with("MaxPool2d"));
        let sizes: Vec<&[usize]> = pools.map(|layer| &layer.output[1..]).collect();
        let expected: [&[usize]; 5] =
            [&[64, 32, 48], &[128, 16, 24], &[256, 8, 12], &[512, 4, 6], &[512, 2, 3]];
        assert_eq!(sizes, expected);
        Ok(())
    }
}
