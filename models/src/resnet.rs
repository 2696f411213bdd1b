//! ResNet-18, 34, 50, 101 and 152 (He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition*,
//! arXiv:1512.03385, table 1), with torchvision's structure and names, which SINGA's have, too. A block of ResNet-50
//! and deeper that halves the size does so in its 3×3 convolution, as torchvision's, and not in its first one, as the
//! paper's.
//! Convolutions have torchvision's initial values, [`he_normal`](candelabrum_nn::Init::he_normal) over their outputs. The last layer
//! starts Glorot-normal, as every [`Linear`] here.

use candelabrum_nn::layers::{BatchNorm2d, Blocks, Conv2d, GlobalAvgPool, Linear, MaxPool2d};
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

use crate::conv::conv;

/// The layers that bring an image to the size and the 64 channels of the first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stem {
    /// The paper's stem: 7×7 convolution with stride 2, 3×3 max-pool with stride 2.
    #[default]
    ImageNet,
    /// A 3×3 convolution that keeps the size, for images of 32×32 (section 4.2 of the paper).
    Small,
}

/// The networks: the number of blocks of each stage, and the convolutions of a block.
macro_rules! networks {
    ($($(#[$doc:meta])* $Name:ident: $counts:expr, $plan:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $Name(ResNet);

        impl $Name {
            /// The network with the paper's stem and `classes` outputs.
            pub fn new(scope: &Scope, classes: usize) -> Self {
                Self::with_stem(scope, classes, Stem::ImageNet)
            }

            /// The network with another stem.
            pub fn with_stem(scope: &Scope, classes: usize, stem: Stem) -> Self {
                Self(ResNet::new(scope, classes, stem, $counts, $plan))
            }
        }

        impl Model for $Name {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                self.0.forward(xs)
            }
        }
    )*};
}

networks! {
    /// `(N, C, H, W) -> (N, classes)`. 11,181,642 parameters for ten classes of colour images.
    ResNet18: [2, 2, 2, 2], BASIC;
    /// `(N, C, H, W) -> (N, classes)`. 21,797,672 parameters for 1000 classes of colour images.
    ResNet34: [3, 4, 6, 3], BASIC;
    /// `(N, C, H, W) -> (N, classes)`. 25,557,032 parameters for 1000 classes of colour images.
    ResNet50: [3, 4, 6, 3], BOTTLENECK;
    /// `(N, C, H, W) -> (N, classes)`. 44,549,160 parameters for 1000 classes of colour images.
    ResNet101: [3, 4, 23, 3], BOTTLENECK;
    /// `(N, C, H, W) -> (N, classes)`. 60,192,808 parameters for 1000 classes of colour images.
    ResNet152: [3, 8, 36, 3], BOTTLENECK;
}

/// The convolutions of a block: the size of each kernel, and by how many times the convolution has the
/// channels of the block's stage. The first kernel of 3×3 has the block's stride.
type ResidualPlan = &'static [[usize; 2]];

/// The block on the left of the paper's figure 5.
const BASIC: ResidualPlan = &[[3, 1], [3, 1]];

/// The block on the right of the paper's figure 5.
const BOTTLENECK: ResidualPlan = &[[1, 1], [3, 1], [1, 4]];

/// A network of four stages.
#[derive(Debug)]
struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    pool: Option<MaxPool2d>,
    blocks: Blocks<ResidualBlock>,
    average: GlobalAvgPool,
    fc: Linear,
}

/// Convolutions whose result is added to their input.
#[derive(Debug)]
struct ResidualBlock {
    first: Conv2d,
    /// Each convolution with the normalisation of its input.
    others: Vec<(BatchNorm2d, Conv2d)>,
    /// The normalisation of the last convolution's result.
    last: BatchNorm2d,
    /// If the block changes the shape, a 1×1 convolution changes its input in the same way.
    downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl ResNet {
    /// A network with so many blocks in each stage.
    fn new(
        scope: &Scope,
        classes: usize,
        stem: Stem,
        counts: [usize; 4],
        plan: ResidualPlan,
    ) -> Self {
        let conv1 = match stem {
            Stem::ImageNet => conv(&scope.pp("conv1"), 64, 7).stride(2),
            Stem::Small => conv(&scope.pp("conv1"), 64, 3),
        };
        let pool = match stem {
            Stem::ImageNet => {
                Some(MaxPool2d::new(3).stride(2).padding(1).named(&scope.pp("maxpool")))
            }
            Stem::Small => None,
        };
        let mut blocks = Vec::new();
        let mut inputs = 64;
        for (stage, count) in counts.into_iter().enumerate() {
            let (scope, channels) = (scope.pp(format!("layer{}", stage + 1)), 64 << stage);
            for index in 0..count {
                // Every stage but the first halves the size of its images.
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                blocks.push(ResidualBlock::new(
                    &scope.pp(index),
                    plan,
                    &mut inputs,
                    channels,
                    stride,
                ));
            }
        }
        Self {
            conv1,
            bn1: BatchNorm2d::new(&scope.pp("bn1")).activation(Activation::Relu),
            pool,
            blocks: Blocks::new(scope, blocks),
            average: GlobalAvgPool,
            fc: Linear::new(&scope.pp("fc"), classes),
        }
    }
}

impl Module for ResNet {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.bn1.forward(&self.conv1.forward(xs)?)?;
        if let Some(pool) = &self.pool {
            ys = pool.forward(&ys)?;
        }
        self.fc.forward(&self.average.forward(&self.blocks.forward(&ys)?)?)
    }
}

impl ResidualBlock {
    /// A block for inputs of so many channels, which become the block's outputs.
    fn new(
        scope: &Scope,
        plan: ResidualPlan,
        inputs: &mut usize,
        channels: usize,
        stride: usize,
    ) -> Self {
        let wide = plan.iter().position(|[kernel, _]| *kernel == 3);
        let convolution = |index: usize| {
            let [kernel, times] = plan[index];
            let stride = if Some(index) == wide { stride } else { 1 };
            conv(&scope.pp(format!("conv{}", index + 1)), times * channels, kernel).stride(stride)
        };
        let norm = |index: usize| BatchNorm2d::new(&scope.pp(format!("bn{}", index + 1)));
        let others = (1..plan.len())
            .map(|index| (norm(index - 1).activation(Activation::Relu), convolution(index)));
        let outputs = channels * plan.last().map_or(1, |[_, times]| *times);
        let downsample = (stride != 1 || *inputs != outputs).then(|| {
            let scope = scope.pp("downsample");
            let norm = BatchNorm2d::new(&scope.pp(1)).activation(Activation::Relu);
            (conv(&scope.pp(0), outputs, 1).stride(stride), norm)
        });
        let last = norm(plan.len() - 1);
        // The activation comes after the sum, which the later of the two normalisations computes.
        let last = if downsample.is_some() { last } else { last.activation(Activation::Relu) };
        *inputs = outputs;
        Self { first: convolution(0), others: others.collect(), last, downsample }
    }
}

impl Module for ResidualBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let layer = |ys: Tensor, (norm, conv): &(BatchNorm2d, Conv2d)| norm.forward_conv(&ys, conv);
        let ys = self.others.iter().try_fold(self.first.forward(xs)?, layer)?;
        match &self.downsample {
            None => self.last.forward_add(&ys, xs),
            Some((conv, norm)) => {
                let ys = self.last.forward(&ys)?;
                norm.forward_add(&conv.forward(xs)?, &ys)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;
    use candle_core::{DType, Device};

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
        // sum(p.numel() for p in torchvision.models.resnet34().parameters()), and so on
        let count = |model: &dyn Model, params: &Params| -> Result<usize> {
            model
                .compile_with(params, &Tensor::zeros((1, 3, 32, 32), DType::F32, &Device::Cpu)?)?;
            Ok(params.element_count())
        };
        let params = Params::new(0);
        assert_eq!(count(&ResNet34::new(&params.root(), 1000), &params)?, 21_797_672);
        let params = Params::new(0);
        assert_eq!(count(&ResNet101::new(&params.root(), 1000), &params)?, 44_549_160);
        let params = Params::new(0);
        assert_eq!(count(&ResNet152::new(&params.root(), 1000), &params)?, 60_192_808);
        // sum(p.numel() for p in torchvision.models.resnet50(num_classes=..).parameters())
        for (classes, parameters) in [(1000, 25_557_032), (10, 23_528_522)] {
            let params = Params::new(0);
            let model = ResNet50::new(&params.root(), classes);
            let summary = model.compile(&params, (1, 3, 64, 96))?;
            assert_eq!(summary.parameter_count(), parameters);
            let last = summary.layers().iter().rfind(|layer| layer.output.len() == 4);
            assert_eq!(last.map(|layer| &layer.output[..]), Some(&[1, 2048, 2, 3][..]));
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
        let params = Params::new(0);
        ResNet50::new(&params.root(), 10).compile(&params, (1, 3, 32, 32))?;
        for (name, shape) in [
            ("layer1.0.conv1.weight", &[64, 64, 1, 1][..]),
            ("layer1.0.conv3.weight", &[256, 64, 1, 1]),
            ("layer1.0.downsample.0.weight", &[256, 64, 1, 1]),
            ("layer1.1.conv1.weight", &[64, 256, 1, 1]),
            ("layer4.0.conv2.weight", &[512, 512, 3, 3]),
            ("layer4.2.bn3.bias", &[2048]),
            ("fc.weight", &[10, 2048]),
        ] {
            assert_eq!(params.get(name).expect(name).var().dims(), shape, "{name}");
        }
        assert_eq!(params.list().len(), 161);
        Ok(())
    }

    #[test]
    fn the_3_by_3_convolution_of_a_bottleneck_halves_the_size() -> Result<()> {
        let params = Params::new(0);
        let model = ResNet50::new(&params.root(), 10);
        let summary = model.compile(&params, (1, 3, 64, 64))?;
        let output = |name: &str| {
            let layer = summary.layers().iter().find(|layer| layer.name == name);
            layer.expect(name).output.clone()
        };
        assert_eq!(output("layer2.0.conv1"), [1, 128, 16, 16]);
        assert_eq!(output("layer2.0.conv2"), [1, 128, 8, 8]);
        Ok(())
    }
}
