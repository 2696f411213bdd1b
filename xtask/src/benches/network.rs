//! The networks that `benches/player` and `scripts/bench_step.py` train.

use clap::ValueEnum;
use serde::Serialize;

use crate::bench::Row;

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

/// What tables, pictures and checks must know of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// The items of a batch.
    pub(crate) unit: &'static str,
    pub(crate) has_convolutions: bool,
    /// The number of steps before the first sample.
    pub(crate) warm_up_steps: usize,
    /// The warm-up step, counted from 1, in which two contenders' losses differ by at most the
    /// tolerance.
    pub(crate) loss_step: usize,
    pub(crate) loss_tolerance: f64,
}

impl Network {
    pub(crate) fn about(self) -> About {
        let about = About {
            name: "cnn",
            label: "MNIST CNN",
            unit: "images",
            has_convolutions: true,
            warm_up_steps: 14,
            loss_step: 14,
            loss_tolerance: 1e-4,
        };
        match self {
            Self::Cnn => about,
            Self::Mlp => About {
                name: "mlp",
                label: "MLP 784-1024-1024-10",
                has_convolutions: false,
                ..about
            },
            // On 32×32 images the last batch norms have one pixel per image. They amplify rounding
            // differences, within PyTorch too: after one step the losses of its two memory layouts
            // differ in the fourth digit, after five in the second.
            Self::Resnet18 => About {
                name: "resnet18",
                label: "ResNet-18, 3×32×32",
                warm_up_steps: 6,
                loss_step: 2,
                loss_tolerance: 5e-3,
                ..about
            },
            Self::Gru => About {
                name: "gru",
                label: "GRU classifier",
                unit: "sequences",
                has_convolutions: false,
                ..about
            },
        }
    }

    /// The network of a row.
    pub(crate) fn of(row: &Row) -> About {
        Self::from_str(row.text("network"), false).unwrap_or(Self::Cnn).about()
    }
}

/// The loss of the warm-up step by which contenders are compared.
pub(crate) fn compared_loss(row: &Row) -> Option<f64> {
    row.facts.get("warm_up_losses")?.get(Network::of(row).loss_step - 1)?.as_f64()
}

/// Whether two contenders had the same loss. A contender without a loss agrees with all others, and
/// a loss that is not a number with none.
pub(crate) fn losses_agree(row: &Row, other: &Row) -> bool {
    match (compared_loss(row), compared_loss(other)) {
        (Some(a), Some(b)) => (a - b).abs() <= Network::of(row).loss_tolerance,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_name_of_its_option() {
        for network in Network::value_variants() {
            assert_eq!(network.to_possible_value().unwrap().get_name(), network.about().name);
            assert!(network.about().loss_step <= network.about().warm_up_steps);
        }
    }
}
