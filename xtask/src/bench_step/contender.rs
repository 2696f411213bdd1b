//! Who competes, and in what.

use clap::ValueEnum;
use serde::Serialize;

/// A network to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Network {
    /// SINGA's MNIST network: two 5x5 convolutions with pooling, two linear layers
    Cnn,
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
    /// PyTorch, eager, in its faster memory layout
    #[value(name = "pytorch-channels-last")]
    #[serde(rename = "pytorch-channels-last")]
    PyTorchChannelsLast,
}

impl Network {
    pub(super) fn name(self) -> &'static str {
        match self {
            Network::Cnn => "cnn",
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
        }
    }

    /// As in a chart.
    pub(super) fn label(self) -> &'static str {
        match self {
            Contender::Ours => "Candelabrum",
            Contender::Candle => "candle",
            Contender::PyTorch => "PyTorch",
            Contender::PyTorchChannelsLast => "PyTorch, channels last",
        }
    }

    pub(super) fn is_pytorch(&self) -> bool {
        matches!(self, Contender::PyTorch | Contender::PyTorchChannelsLast)
    }
}
