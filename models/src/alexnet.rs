//! AlexNet with torchvision's structure and names (Krizhevsky, *One weird trick for parallelizing convolutional
//! neural networks*, 2014, arXiv:1404.5997, the network of one tower).
//!
//! Variants: the normalisation of the first paper (Krizhevsky, Sutskever and Hinton, NeurIPS 2012) is an option.
//! SINGA's `AlexNet` has the same convolutions, but poolings of 2×2 instead of 3×3, and before the linear layers an
//! average pooling of 3×3 with stride 2 instead of one to 6×6 pixels. So its first linear layer has 1024 inputs
//! instead of 9216 for images of 224×224.

use candelabrum_nn::layers::{AdaptiveAvgPool2d, AvgPool2d, Conv2d, LocalResponseNorm, MaxPool2d};
use candelabrum_nn::ops::LocalResponseNormConfig;
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

use crate::classifier::{ClassifierConfig, ClassifierLayers};

/// The poolings of an [`AlexNet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlexNetPooling {
    /// torchvision's: windows of 3×3 that overlap, and at last means of 6×6 windows, for images of any size.
    #[default]
    Overlapping,
    /// SINGA's: windows of 2×2, and at last means of 3×3 pixels, for images of 224×224.
    Singa,
}

/// The sizes and variants of an [`AlexNet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlexNetConfig {
    /// The poolings.
    pub pooling: AlexNetPooling,
    /// A normalisation after each of the first two convolutions, before the pooling.
    pub response_norm: Option<LocalResponseNormConfig>,
    /// The number of units of both hidden linear layers.
    pub units: usize,
    /// The probability of dropout before both hidden linear layers.
    pub dropout: f32,
}

impl Default for AlexNetConfig {
    /// torchvision's network.
    fn default() -> Self {
        let pooling = AlexNetPooling::Overlapping;
        Self { pooling, response_norm: None, units: 4096, dropout: 0.5 }
    }
}

/// `(N, C, H, W) -> (N, classes)`. 61,100,840 parameters for 1000 classes of colour images.
///
/// All weights start Glorot-normal, all biases at zero.
#[derive(Debug)]
pub struct AlexNet {
    /// Each convolution with what follows it.
    features: Vec<(Conv2d, Option<LocalResponseNorm>, Option<MaxPool2d>)>,
    average: AveragePooling,
    classifier: ClassifierLayers,
}

/// The pooling before the linear layers.
#[derive(Debug)]
enum AveragePooling {
    Adaptive(AdaptiveAvgPool2d),
    Windows(AvgPool2d),
}

impl AlexNet {
    /// torchvision's network with `classes` outputs.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        Self::with_config(scope, classes, AlexNetConfig::default())
    }

    /// The network with other sizes or of another variant.
    pub fn with_config(scope: &Scope, classes: usize, config: AlexNetConfig) -> Self {
        let AlexNetConfig { pooling, response_norm, units, dropout } = config;
        let features = scope.pp("features");
        let conv = |number: usize, channels, kernel: usize| {
            Conv2d::new(&features.pp(number), channels, kernel).activation(Activation::Relu)
        };
        let pool = |number: usize| {
            let pool = match pooling {
                AlexNetPooling::Overlapping => MaxPool2d::new(3).stride(2),
                AlexNetPooling::Singa => MaxPool2d::new(2),
            };
            Some(pool.named(&features.pp(number)))
        };
        let norm = |name: &str| {
            let norm = response_norm.map(LocalResponseNorm::with);
            norm.map(|norm| norm.named(&features.pp(name)))
        };
        let scope_of_average = scope.pp("avgpool");
        Self {
            average: match pooling {
                AlexNetPooling::Overlapping => {
                    AveragePooling::Adaptive(AdaptiveAvgPool2d::new(6).named(&scope_of_average))
                }
                AlexNetPooling::Singa => {
                    AveragePooling::Windows(AvgPool2d::new(3).stride(2).named(&scope_of_average))
                }
            },
            classifier: ClassifierLayers::new(
                &scope.pp("classifier"),
                ClassifierConfig {
                    classes,
                    units,
                    dropout,
                    linear: [1, 4, 6],
                    drops: [0, 3],
                    init: None,
                },
            ),
            features: vec![
                (conv(0, 64, 11).stride(4).padding(2), norm("norm1"), pool(2)),
                (conv(3, 192, 5).padding(2), norm("norm2"), pool(5)),
                (conv(6, 384, 3).padding(1), None, None),
                (conv(8, 256, 3).padding(1), None, None),
                (conv(10, 256, 3).padding(1), None, pool(12)),
            ],
        }
    }
}

impl Model for AlexNet {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.clone();
        for (conv, norm, pool) in &self.features {
            ys = conv.forward(&ys)?;
            if let Some(norm) = norm {
                ys = norm.forward(&ys)?;
            }
            if let Some(pool) = pool {
                ys = pool.forward(&ys)?;
            }
        }
        let ys = match &self.average {
            AveragePooling::Adaptive(average) => average.forward(&ys),
            AveragePooling::Windows(average) => average.forward(&ys),
        };
        self.classifier.forward(&ys?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_as_many_parameters_as_torchvision() -> Result<()> {
        let params = Params::new(0);
        let summary = AlexNet::new(&params.root(), 1000).compile(&params, (1, 3, 64, 96))?;
        // sum(p.numel() for p in torchvision.models.alexnet().parameters())
        assert_eq!(summary.parameter_count(), 61_100_840);
        let outputs: Vec<&[usize]> = summary.layers().iter().map(|l| &l.output[..]).collect();
        let expected: [&[usize]; 9] = [
            &[1, 64, 15, 23],
            &[1, 64, 7, 11],
            &[1, 192, 7, 11],
            &[1, 192, 3, 5],
            &[1, 384, 3, 5],
            &[1, 256, 3, 5],
            &[1, 256, 3, 5],
            &[1, 256, 1, 2],
            &[1, 256, 6, 6],
        ];
        assert_eq!(outputs[..9], expected);
        Ok(())
    }

    #[test]
    fn parameters_have_torchvisions_names() -> Result<()> {
        let params = Params::new(0);
        let config = AlexNetConfig { units: 8, ..AlexNetConfig::default() };
        AlexNet::with_config(&params.root(), 10, config).compile(&params, (1, 3, 64, 64))?;
        let list = params.list();
        let names: Vec<&str> = list.iter().map(|param| param.name()).collect();
        let expected = ["features.0", "features.3", "features.6", "features.8", "features.10"]
            .into_iter()
            .chain(["classifier.1", "classifier.4", "classifier.6"]);
        let expected: Vec<String> =
            expected.flat_map(|name| [format!("{name}.weight"), format!("{name}.bias")]).collect();
        assert_eq!(names, expected);
        assert_eq!(params.get("classifier.1.weight")?.var().dims(), [8, 9216]);
        Ok(())
    }

    #[test]
    fn singas_variant_has_smaller_windows_and_a_smaller_first_linear_layer() -> Result<()> {
        let params = Params::new(0);
        let config =
            AlexNetConfig { pooling: AlexNetPooling::Singa, units: 8, ..AlexNetConfig::default() };
        let model = AlexNet::with_config(&params.root(), 10, config);
        let summary = model.compile(&params, (1, 3, 224, 224))?;
        assert_eq!(params.get("classifier.1.weight")?.var().dims(), [8, 1024]);
        let average = summary.layers().iter().find(|layer| layer.name == "avgpool");
        assert_eq!(average.map(|layer| &layer.output[..]), Some(&[1, 256, 2, 2][..]));
        Ok(())
    }

    #[test]
    fn the_papers_normalisation_follows_the_first_two_convolutions() -> Result<()> {
        let params = Params::new(0);
        let response_norm = Some(LocalResponseNormConfig::of_the_paper());
        let config = AlexNetConfig { response_norm, units: 8, ..AlexNetConfig::default() };
        let model = AlexNet::with_config(&params.root(), 10, config);
        let summary = model.compile(&params, (1, 3, 64, 64))?;
        let kinds: Vec<&str> = summary.layers().iter().map(|l| l.kind.as_str()).take(6).collect();
        let [conv1, conv2] = ["Conv2d 11×11, relu", "Conv2d 5×5, relu"];
        let [norm, pool] = ["LocalResponseNorm 5", "MaxPool2d 3×3"];
        assert_eq!(kinds, [conv1, norm, pool, conv2, norm, pool]);
        Ok(())
    }
}
