//! Who competes, and in what.

use clap::ValueEnum;
use serde::Serialize;

/// A network to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Network {
    /// SINGA's MNIST network: two 5x5 convolutions with pooling, two linear layers
    Cnn,
    /// A perceptron on the same images: 784-1024-1024-10
    Mlp,
    /// torchvision's resnet18 on 3x32x32 images, batch norm in training mode
    Resnet18,
    /// Token sequences of length 32: embedding 64, GRU 128, a linear layer
    Gru,
}

/// A library that trains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contender {
    /// This project
    Ours,
    /// candle-nn as it comes
    Candle,
    /// PyTorch, eager, images in its default NCHW layout
    #[value(name = "pytorch")]
    #[serde(rename = "pytorch")]
    PyTorch,
    /// PyTorch, eager, in the memory layout that is faster for convolutions
    #[value(name = "pytorch-channels-last")]
    #[serde(rename = "pytorch-channels-last")]
    PyTorchChannelsLast,
    /// PyTorch with torch.compile, which needs a C++ compiler
    #[value(name = "pytorch-compile")]
    #[serde(rename = "pytorch-compile")]
    PyTorchCompile,
}

/// How far two contenders' losses of the same warm-up step may lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LossCheck {
    /// Counted from 1.
    pub(super) step: usize,
    pub(super) tolerance: f64,
}

impl Network {
    pub(super) fn name(self) -> &'static str {
        match self {
            Network::Cnn => "cnn",
            Network::Mlp => "mlp",
            Network::Resnet18 => "resnet18",
            Network::Gru => "gru",
        }
    }

    /// As in a chart.
    pub(super) fn label(self) -> &'static str {
        match self {
            Network::Cnn => "MNIST CNN",
            Network::Mlp => "MLP 784-1024-1024-10",
            Network::Resnet18 => "ResNet-18, 3×32×32",
            Network::Gru => "GRU classifier",
        }
    }

    /// What a batch consists of.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Network::Gru => "sequences",
            _ => "images",
        }
    }

    fn has_convolutions(self) -> bool {
        matches!(self, Network::Cnn | Network::Resnet18)
    }

    /// Steps before the first sample.
    pub(super) fn warm_up_steps(self) -> usize {
        match self {
            Network::Resnet18 => 6,
            _ => 14,
        }
    }

    /// On 32×32 images the last batch norms of ResNet-18 see one pixel per image. They blow up what
    /// rounding differs by, within PyTorch too: after one step the losses of its two memory layouts
    /// differ in the fourth digit, after five in the second.
    pub(super) fn loss_check(self) -> LossCheck {
        match self {
            Network::Resnet18 => LossCheck { step: 2, tolerance: 5e-3 },
            _ => LossCheck { step: self.warm_up_steps(), tolerance: 1e-4 },
        }
    }
}

impl Contender {
    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Ours => "ours",
            Contender::Candle => "candle",
            Contender::PyTorch => "pytorch",
            Contender::PyTorchChannelsLast => "pytorch-channels-last",
            Contender::PyTorchCompile => "pytorch-compile",
        }
    }

    /// As in a chart.
    pub(super) fn label(self) -> &'static str {
        match self {
            Contender::Ours => "Candelabrum",
            Contender::Candle => "candle",
            Contender::PyTorch => "PyTorch",
            Contender::PyTorchChannelsLast => "PyTorch, channels last",
            Contender::PyTorchCompile => "PyTorch, compiled",
        }
    }

    pub(super) fn is_pytorch(&self) -> bool {
        use Contender::{PyTorch, PyTorchChannelsLast, PyTorchCompile};
        matches!(self, PyTorch | PyTorchChannelsLast | PyTorchCompile)
    }

    /// Whether there is such a thing: a memory layout of images needs images.
    pub(super) fn can_train(self, network: Network) -> bool {
        self != Contender::PyTorchChannelsLast || network.has_convolutions()
    }
}
