//! The contenders of the benchmark.

use clap::ValueEnum;
use serde::Serialize;

use crate::network::Network;

/// A library that trains the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contender {
    /// This project
    Ours,
    /// candle-nn without changes
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

impl Contender {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Ours => "ours",
            Contender::Candle => "candle",
            Contender::PyTorch => "pytorch",
            Contender::PyTorchChannelsLast => "pytorch-channels-last",
            Contender::PyTorchCompile => "pytorch-compile",
        }
    }

    /// The name in a chart.
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

    /// Whether the contender exists for this network: a memory layout of images needs images.
    pub(super) fn can_train(self, network: Network) -> bool {
        self != Contender::PyTorchChannelsLast || network.has_convolutions()
    }
}
