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
    /// The same with a 3x3 stem, which keeps the size
    Resnet18Small,
    /// torchvision's resnet18 on 3x224x224 images
    #[value(name = "resnet18-224")]
    #[serde(rename = "resnet18-224")]
    Resnet18At224,
    /// torchvision's resnet50 on 3x224x224 images
    #[value(name = "resnet50-224")]
    #[serde(rename = "resnet50-224")]
    Resnet50At224,
    /// torchvision's mobilenet_v2 on 3x224x224 images, without dropout
    #[value(name = "mobilenet-v2-224")]
    #[serde(rename = "mobilenet-v2-224")]
    MobileNetV2At224,
    /// Token sequences of length 32: embedding 64, GRU 128, a linear layer
    Gru,
    /// Texts of 64 characters: embedding 64, LSTM 256, a linear layer at every position
    Lstm,
    /// Texts of 256 characters: a transformer of 6 layers, 384 wide, with 6 heads
    Gpt,
}

/// What tables, pictures and checks must know of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    /// The items of a batch.
    pub(crate) unit: &'static str,
    pub(crate) has_convolutions: bool,
    /// The batches of `bench-step`, if the user names none.
    pub(crate) batch_sizes: &'static [usize],
    /// About the seconds of candle for one example of a batch on one thread.
    pub(crate) candle_seconds: f64,
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
            batch_sizes: &[64, 256],
            candle_seconds: 0.002,
            warm_up_steps: 14,
            loss_step: 14,
            loss_tolerance: 1e-4,
        };
        // A few long steps of few large images.
        let large = About {
            batch_sizes: &[8],
            warm_up_steps: 3,
            loss_step: 2,
            loss_tolerance: 5e-3,
            ..about
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
                candle_seconds: 0.043,
                warm_up_steps: 6,
                loss_step: 2,
                loss_tolerance: 5e-3,
                ..about
            },
            Self::Resnet18Small => About {
                name: "resnet18-small",
                label: "ResNet-18, 3×3 stem, 3×32×32",
                batch_sizes: &[64],
                candle_seconds: 0.16,
                ..large
            },
            Self::Resnet18At224 => About {
                name: "resnet18-224",
                label: "ResNet-18, 3×224×224",
                candle_seconds: 0.5,
                ..large
            },
            // After one step from 7.25 to 6.0, the losses of PyTorch's layouts differ by 0.05 already.
            Self::Resnet50At224 => About {
                name: "resnet50-224",
                label: "ResNet-50, 3×224×224",
                candle_seconds: 1.1,
                loss_tolerance: 0.15,
                ..large
            },
            Self::MobileNetV2At224 => About {
                name: "mobilenet-v2-224",
                label: "MobileNetV2, 3×224×224",
                candle_seconds: 0.9,
                ..large
            },
            Self::Gru => About {
                name: "gru",
                label: "GRU classifier",
                unit: "sequences",
                has_convolutions: false,
                ..about
            },
            // Its loss falls slowly, and is a mean over so many positions that it hardly depends on rounding.
            Self::Lstm => About {
                name: "lstm",
                label: "LSTM of characters",
                unit: "sequences",
                has_convolutions: false,
                batch_sizes: &[64],
                candle_seconds: 0.017,
                loss_tolerance: 1e-5,
                ..about
            },
            Self::Gpt => About {
                name: "gpt",
                label: "GPT, 6 layers, 384 wide, 256 characters",
                unit: "sequences",
                has_convolutions: false,
                batch_sizes: &[16],
                candle_seconds: 0.28,
                loss_step: 3,
                loss_tolerance: 1e-5,
                ..large
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

/// Whether two contenders had the same loss, up to the network's tolerance and another one. A contender
/// without a loss agrees with all others, and a loss that is not a number with none.
pub(crate) fn losses_agree(row: &Row, other: &Row, tolerance: f64) -> bool {
    match (compared_loss(row), compared_loss(other)) {
        (Some(a), Some(b)) => (a - b).abs() <= Network::of(row).loss_tolerance + tolerance,
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
