//! ResNet-18 (He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition*,
//! arXiv:1512.03385, table 1), with torchvision's structure and names. Convolutions have
//! torchvision's initial values, [`Init::he_normal`] over their outputs. The last layer starts
//! Glorot-normal, as every [`Linear`] here.

use candelabrum_nn::layers::{BatchNorm2d, Conv2d, GlobalAvgPool, Linear, MaxPool2d};
use candelabrum_nn::{Activation, Init, Model, Scope, ops};
use candle_core::{Module, Result, Tensor};

/// The layers that bring an image to the size and the 64 channels of the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stem {
    /// The paper's stem: 7×7 convolution with stride 2, 3×3 max-pool with stride 2.
    #[default]
    ImageNet,
    /// A 3×3 convolution that keeps the size, for images of 32×32 (section 4.2 of the paper).
    Small,
}

/// `(N, C, H, W) -> (N, classes)`. 11,181,642 parameters for ten classes of colour images.
#[derive(Debug)]
pub struct ResNet18 {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    pool: Option<MaxPool2d>,
    blocks: Vec<Block>,
    average: GlobalAvgPool,
    fc: Linear,
}

/// Two 3×3 convolutions whose result is added to their input: the paper's figure 2.
#[derive(Debug)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    /// If the block changes the size, a 1×1 convolution changes its input in the same way.
    downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl ResNet18 {
    /// The network with the paper's stem and `classes` outputs.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        Self::with_stem(scope, classes, Stem::ImageNet)
    }

    /// The network with another stem.
    pub fn with_stem(scope: &Scope, classes: usize, stem: Stem) -> Self {
        let conv1 = match stem {
            Stem::ImageNet => conv(&scope.pp("conv1"), 64, 7).stride(2).padding(3),
            Stem::Small => conv(&scope.pp("conv1"), 64, 3).padding(1),
        };
        let pool = match stem {
            Stem::ImageNet => {
                Some(MaxPool2d::new(3).stride(2).padding(1).named(&scope.pp("maxpool")))
            }
            Stem::Small => None,
        };
        let mut blocks = Vec::new();
        for (stage, channels) in [(1, 64), (2, 128), (3, 256), (4, 512)] {
            let scope = scope.pp(format!("layer{stage}"));
            // Every stage but the first halves the size of its images.
            let stride = if stage == 1 { 1 } else { 2 };
            blocks.push(Block::new(&scope.pp(0), channels, stride));
            blocks.push(Block::new(&scope.pp(1), channels, 1));
        }
        Self {
            conv1,
            bn1: BatchNorm2d::new(&scope.pp("bn1")).activation(Activation::Relu),
            pool,
            blocks,
            average: GlobalAvgPool,
            fc: Linear::new(&scope.pp("fc"), classes),
        }
    }
}

impl Model for ResNet18 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.bn1.forward(&self.conv1.forward(xs)?)?;
        if let Some(pool) = &self.pool {
            ys = pool.forward(&ys)?;
        }
        for block in &self.blocks {
            ys = block.forward(&ys)?;
        }
        self.fc.forward(&self.average.forward(&ys)?)
    }
}

impl Block {
    fn new(scope: &Scope, channels: usize, stride: usize) -> Self {
        let conv3 = |name: &str| conv(&scope.pp(name), channels, 3).padding(1);
        let downsample = (stride != 1).then(|| {
            let scope = scope.pp("downsample");
            (conv(&scope.pp(0), channels, 1).stride(stride), BatchNorm2d::new(&scope.pp(1)))
        });
        Self {
            conv1: conv3("conv1").stride(stride),
            bn1: BatchNorm2d::new(&scope.pp("bn1")).activation(Activation::Relu),
            conv2: conv3("conv2"),
            bn2: BatchNorm2d::new(&scope.pp("bn2")),
            downsample,
        }
    }
}

/// A convolution without bias, because a normalisation follows.
fn conv(scope: &Scope, channels: usize, kernel: usize) -> Conv2d {
    Conv2d::new(scope, channels, kernel).no_bias().init(Init::he_normal(channels * kernel * kernel))
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.bn1.forward(&self.conv1.forward(xs)?)?;
        let ys = self.bn2.forward(&self.conv2.forward(&ys)?)?;
        let shortcut = match &self.downsample {
            Some((conv, norm)) => &norm.forward(&conv.forward(xs)?)?,
            None => xs,
        };
        ops::add(&ys, shortcut, Some(Activation::Relu))
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_as_many_parameters_as_torchvision() -> Result<()> {
        for (stem, parameters, first) in
            [(Stem::ImageNet, 11_181_642, 16), (Stem::Small, 11_173_962, 32)]
        {
            let params = Params::new(0);
            let model = ResNet18::with_stem(&params.root(), 10, stem);
            let summary = model.compile(&params, (1, 3, 32, 32))?;
            assert_eq!(summary.parameter_count(), parameters, "{stem:?}");
            let layers = summary.layers();
            assert_eq!(layers[0].output, [1, 64, first, first], "{stem:?}");
            assert_eq!(layers[layers.len() - 1].output, [1, 10]);
        }
        Ok(())
    }

    #[test]
    fn convolutions_start_with_torchvisions_deviations() -> Result<()> {
        let params = Params::new(0);
        ResNet18::new(&params.root(), 10).compile(&params, (1, 3, 32, 32))?;
        // sqrt(2 / (out_channels · KH · KW)), as in `kaiming_normal_(mode="fan_out")`.
        for (name, expected) in [
            ("conv1.weight", (2.0 / (64.0 * 49.0_f64)).sqrt()),
            ("layer1.1.conv2.weight", (2.0 / (64.0 * 9.0_f64)).sqrt()),
            ("layer4.0.conv1.weight", (2.0 / (512.0 * 9.0_f64)).sqrt()),
            ("layer4.0.downsample.0.weight", (2.0 / 512.0_f64).sqrt()),
        ] {
            let values = params.get(name).expect(name).tensor().flatten_all()?.to_vec1::<f32>()?;
            let squares = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            let std = (squares / values.len() as f64).sqrt();
            assert!((std / expected - 1.0).abs() < 0.03, "{name}: {std}, expected {expected}");
        }
        Ok(())
    }

    #[test]
    fn parameters_have_torchvisions_names() -> Result<()> {
        let params = Params::new(0);
        ResNet18::new(&params.root(), 10).compile(&params, (1, 3, 32, 32))?;
        for (name, shape) in [
            ("conv1.weight", &[64, 3, 7, 7][..]),
            ("bn1.bias", &[64]),
            ("layer1.1.conv2.weight", &[64, 64, 3, 3]),
            ("layer4.0.downsample.0.weight", &[512, 256, 1, 1]),
            ("layer4.0.downsample.1.weight", &[512]),
            ("fc.bias", &[10]),
        ] {
            assert_eq!(params.get(name).expect(name).var().dims(), shape, "{name}");
        }
        Ok(())
    }
}
