//! MobileNetV2 (Sandler, Howard, Zhu, Zhmoginov and Chen, *MobileNetV2: Inverted Residuals and Linear
//! Bottlenecks*, arXiv:1801.04381, table 2), with torchvision's structure and names. Convolutions have
//! torchvision's initial values, [`he_normal`](candelabrum_nn::Init::he_normal) over their outputs. The last layer starts
//! Glorot-normal, as every [`Linear`] here.

use candelabrum_nn::layers::{BatchNorm2d, Blocks, Conv2d, Dropout, GlobalAvgPool, Linear};
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

use crate::conv::conv;

/// The blocks of the paper's table 2: by how many times a block widens its input, the channels of its
/// result, the number of such blocks, and the stride of the first of them.
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];

/// The channels before the first block and after the last one.
const FIRST: usize = 32;
const LAST: usize = 1280;

/// `(N, 3, H, W) -> (N, classes)`. 3,504,872 parameters for 1000 classes.
#[derive(Debug)]
pub struct MobileNetV2 {
    first: ConvNorm,
    blocks: Blocks<InvertedResidual>,
    last: ConvNorm,
    average: GlobalAvgPool,
    dropout: Dropout,
    linear: Linear,
}

/// A convolution without bias, and its normalisation.
#[derive(Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

/// The inverted residual of the paper's figure 4: a 1×1 convolution widens, a 3×3 convolution looks at
/// each channel alone, a 1×1 convolution narrows. The last one has no activation.
#[derive(Debug)]
struct InvertedResidual {
    first: Conv2d,
    /// Each convolution with the normalisation of its input.
    others: Vec<(BatchNorm2d, Conv2d)>,
    last: BatchNorm2d,
    /// Whether the result has the shape of the input, which is then added.
    is_residual: bool,
}

impl MobileNetV2 {
    /// The network with `classes` outputs. In training it sets the last layer's inputs to zero with
    /// probability 0.2, as torchvision does.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        Self::with_dropout(scope, classes, 0.2)
    }

    /// The network with another probability, from 0 to below 1, of zeros before the last layer.
    pub fn with_dropout(scope: &Scope, classes: usize, probability: f32) -> Self {
        let (features, classifier) = (scope.pp("features"), scope.pp("classifier"));
        let mut blocks = Vec::new();
        let mut inputs = FIRST;
        for [expansion, outputs, count, stride] in STAGES {
            for index in 0..count {
                let scope = features.pp(blocks.len() + 1).pp("conv");
                let stride = if index == 0 { stride } else { 1 };
                blocks.push(InvertedResidual::new(&scope, expansion, [inputs, outputs], stride));
                inputs = outputs;
            }
        }
        let last = features.pp(blocks.len() + 1);
        Self {
            first: ConvNorm::rectified(&features.pp(0), FIRST, 3, |conv| conv.stride(2)),
            blocks: Blocks::new(scope, blocks),
            last: ConvNorm::rectified(&last, LAST, 1, |conv| conv),
            average: GlobalAvgPool,
            dropout: Dropout::new(&classifier.pp(0), probability),
            linear: Linear::new(&classifier.pp(1), classes),
        }
    }
}

impl Model for MobileNetV2 {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.first.forward(xs)?; // (N, 32, H/2, W/2)
        let ys = self.blocks.forward(&ys)?;
        let ys = self.average.forward(&self.last.forward(&ys)?)?; // (N, 1280)
        self.linear.forward(&self.dropout.forward(&ys)?)
    }
}

impl InvertedResidual {
    fn new(scope: &Scope, expansion: usize, [inputs, outputs]: [usize; 2], stride: usize) -> Self {
        let wide = expansion * inputs;
        let norm = |scope: Scope| BatchNorm2d::new(&scope).activation(Activation::Relu6);
        let each_alone = |scope: &Scope| conv(&scope.pp(0), wide, 3).stride(stride).groups(wide);
        let narrow = |number: usize| conv(&scope.pp(number), outputs, 1);
        let (first, others, last) = if expansion == 1 {
            let inner = scope.pp(0);
            (each_alone(&inner), vec![(norm(inner.pp(1)), narrow(1))], 2)
        } else {
            let (wider, inner) = (scope.pp(0), scope.pp(1));
            let others =
                vec![(norm(wider.pp(1)), each_alone(&inner)), (norm(inner.pp(1)), narrow(2))];
            (conv(&wider.pp(0), wide, 1), others, 3)
        };
        let last = BatchNorm2d::new(&scope.pp(last));
        Self { first, others, last, is_residual: stride == 1 && inputs == outputs }
    }
}

impl Module for InvertedResidual {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let layer = |ys: Tensor, (norm, conv): &(BatchNorm2d, Conv2d)| norm.forward_conv(&ys, conv);
        let ys = self.others.iter().try_fold(self.first.forward(xs)?, layer)?;
        if self.is_residual { self.last.forward_add(&ys, xs) } else { self.last.forward(&ys) }
    }
}

impl ConvNorm {
    /// A convolution of `channels` kernels of `kernel` × `kernel`, changed by `with`, its normalisation,
    /// and ReLU6.
    fn rectified(
        scope: &Scope,
        channels: usize,
        kernel: usize,
        with: impl FnOnce(Conv2d) -> Conv2d,
    ) -> Self {
        Self {
            conv: with(conv(&scope.pp(0), channels, kernel)),
            norm: BatchNorm2d::new(&scope.pp(1)).activation(Activation::Relu6),
        }
    }
}

impl Module for ConvNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(xs)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_as_many_parameters_as_torchvision() -> Result<()> {
        // sum(p.numel() for p in torchvision.models.mobilenet_v2(num_classes=..).parameters())
        for (classes, parameters) in [(1000, 3_504_872), (10, 2_236_682)] {
            let params = Params::new(0);
            let model = MobileNetV2::new(&params.root(), classes);
            let summary = model.compile(&params, (1, 3, 64, 96))?;
            assert_eq!(summary.parameter_count(), parameters);
            let layers = summary.layers();
            assert_eq!(layers[0].output, [1, 32, 32, 48]);
            let last = layers.iter().rfind(|layer| layer.output.len() == 4);
            assert_eq!(last.map(|layer| &layer.output[..]), Some(&[1, 1280, 2, 3][..]));
            assert_eq!(layers[layers.len() - 1].output, [1, classes]);
        }
        Ok(())
    }

    #[test]
    fn parameters_have_torchvisions_names() -> Result<()> {
        let params = Params::new(0);
        MobileNetV2::new(&params.root(), 10).compile(&params, (1, 3, 32, 32))?;
        for (name, shape) in [
            ("features.0.0.weight", &[32, 3, 3, 3][..]),
            ("features.0.1.bias", &[32]),
            ("features.1.conv.0.0.weight", &[32, 1, 3, 3]),
            ("features.1.conv.1.weight", &[16, 32, 1, 1]),
            ("features.1.conv.2.weight", &[16]),
            ("features.2.conv.0.0.weight", &[96, 16, 1, 1]),
            ("features.2.conv.1.0.weight", &[96, 1, 3, 3]),
            ("features.2.conv.1.1.weight", &[96]),
            ("features.17.conv.2.weight", &[320, 960, 1, 1]),
            ("features.17.conv.3.bias", &[320]),
            ("features.18.0.weight", &[1280, 320, 1, 1]),
            ("classifier.1.weight", &[10, 1280]),
        ] {
            assert_eq!(params.get(name).expect(name).var().dims(), shape, "{name}");
        }
        assert_eq!(params.list().len(), 158);
        Ok(())
    }

    #[test]
    fn blocks_of_one_shape_add_their_input() {
        let model = MobileNetV2::new(&Params::new(0).root(), 10);
        let added: Vec<usize> = (0..17)
            .filter(|&index| model.blocks[index].is_residual)
            .map(|index| index + 1)
            .collect();
        // [i for i, m in enumerate(mobilenet_v2().features) if getattr(m, "use_res_connect", False)]
        assert_eq!(added, [3, 5, 6, 8, 9, 10, 12, 13, 15, 16]);
    }
}
