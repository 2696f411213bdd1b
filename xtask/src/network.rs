//! The networks that `benches/step` and `scripts/bench_step.py` train.

use clap::ValueEnum;
use serde::Serialize;

/// A network to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Network {
    /// SINGA's MNIST network: two 5x5 convolutions with pooling, two linear layers
    Cnn,
    /// A perceptron on the same images: 784-1024-1024-10
    Mlp,
    /// torchvision's resnet18 on 3x32x32 images, batch norm in training mode
    Resnet18,
    /// Token sequences of length 32: embedding 64, GRU 128, a linear layer
    Gru,
}

/// The allowed difference of two contenders' losses in the same warm-up step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossCheck {
    /// Counted from 1.
    pub(crate) step: usize,
    pub(crate) tolerance: f64,
}

impl Network {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Network::Cnn => "cnn",
            Network::Mlp => "mlp",
            Network::Resnet18 => "resnet18",
            Network::Gru => "gru",
        }
    }

    /// The name in a chart.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Network::Cnn => "MNIST CNN",
            Network::Mlp => "MLP 784-1024-1024-10",
            Network::Resnet18 => "ResNet-18, 3×32×32",
            Network::Gru => "GRU classifier",
        }
    }

    /// The items of a batch.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Network::Gru => "sequences",
            _ => "images",
        }
    }

    pub(crate) fn has_convolutions(self) -> bool {
        matches!(self, Network::Cnn | Network::Resnet18)
    }

    /// The number of steps before the first sample.
    pub(crate) fn warm_up_steps(self) -> usize {
        match self {
            Network::Resnet18 => 6,
            _ => 14,
        }
    }

    /// On 32×32 images the last batch norms of ResNet-18 have one pixel per image. They amplify
    /// rounding differences, within PyTorch too: after one step the losses of its two memory
    /// layouts differ in the fourth digit, after five in the second.
    pub(crate) fn loss_check(self) -> LossCheck {
        match self {
            Network::Resnet18 => LossCheck { step: 2, tolerance: 5e-3 },
            _ => LossCheck { step: self.warm_up_steps(), tolerance: 1e-4 },
        }
    }
}
