//! The networks that `benches/player` and `scripts/bench_step.py` train.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Serialize, Serializer};

use crate::bench::Row;

/// What tables, pictures and checks must know of a network.
#[derive(Debug, PartialEq)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    /// What it is, in the help and in pictures.
    pub(crate) label: &'static str,
    /// The items of a batch.
    pub(crate) unit: &'static str,
    pub(crate) has_convolutions: bool,
    /// The batches of `bench-step`, if the user names none.
    pub(crate) batch_sizes: &'static [usize],
    /// About the seconds of candle for one example of a batch on one thread. None where no program of candle has
    /// the network.
    pub(crate) candle_seconds: Option<f64>,
    /// The number of steps before the first sample.
    pub(crate) warm_up_steps: usize,
    /// The warm-up step, counted from 1, in which two contenders' losses differ by at most the
    /// tolerance.
    pub(crate) loss_step: usize,
    pub(crate) loss_tolerance: f64,
    /// How `zoo` trains it.
    pub(crate) zoo: Zoo,
}

/// A training of `zoo`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Zoo {
    pub(crate) batch_size: usize,
    /// Between two evaluations.
    pub(crate) steps: usize,
    /// The folder of its data below that of `--data`. Without a folder there are made-up examples.
    pub(crate) data: Option<&'static str>,
    /// The rate of AdamW, or else of SGD with momentum.
    pub(crate) adamw: bool,
    pub(crate) lr: f64,
}

/// A network to train.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network(&'static About);

const MNIST: Zoo = Zoo { batch_size: 64, steps: 20, data: Some("mnist"), adamw: false, lr: 0.005 };

const CNN: About = About {
    name: "cnn",
    label: "MNIST CNN",
    unit: "images",
    has_convolutions: true,
    batch_sizes: &[64, 256],
    candle_seconds: Some(0.002),
    warm_up_steps: 14,
    loss_step: 14,
    loss_tolerance: 1e-4,
    zoo: MNIST,
};

/// A few long steps of few large images.
const LARGE: About = About {
    batch_sizes: &[8],
    candle_seconds: None,
    warm_up_steps: 3,
    loss_step: 2,
    loss_tolerance: 5e-3,
    zoo: Zoo { batch_size: 4, steps: 1, data: None, ..MNIST },
    ..CNN
};

/// On 32×32 images the last batch norms have one pixel per image. They amplify rounding differences, within PyTorch
/// too: after one step the losses of its two memory layouts differ in the fourth digit, after five in the second.
const RESNET_18: About = About {
    name: "resnet18",
    label: "ResNet-18, 3×32×32",
    candle_seconds: Some(0.043),
    warm_up_steps: 6,
    loss_step: 2,
    loss_tolerance: 5e-3,
    zoo: CIFAR,
    ..CNN
};

const CIFAR: Zoo = Zoo { data: Some("cifar-10-batches-bin"), ..MNIST };

/// The losses of the first steps of deep networks differ by more between PyTorch's own layouts: those of resnet50-224 by
/// 0.05 after one step from 7.25 to 6.0.
const DEEP: About = About { loss_tolerance: 0.15, ..LARGE };

const TOKENS: About =
    About { unit: "sequences", has_convolutions: false, zoo: Zoo { data: None, ..MNIST }, ..CNN };

/// Its loss falls slowly, and is a mean over so many positions that it hardly depends on rounding.
const LSTM: About = About {
    name: "lstm",
    label: "LSTM of characters, 256 units",
    batch_sizes: &[64],
    candle_seconds: Some(0.017),
    loss_tolerance: 1e-5,
    zoo: Zoo { data: None, ..TEXTS },
    ..TOKENS
};

const TEXTS: Zoo =
    Zoo { batch_size: 32, steps: 80, data: Some("rt-polarity"), adamw: true, lr: 0.002 };

/// All networks, in the order of the help.
static NETWORKS: [Network; 29] = [
    Network(&CNN),
    Network(&About { name: "mlp", label: "MLP 784-1024-1024-10", has_convolutions: false, ..CNN }),
    Network(&About { name: "lenet", label: "LeNet-5", candle_seconds: None, ..CNN }),
    Network(&RESNET_18),
    Network(&About {
        name: "resnet18-small",
        label: "ResNet-18, 3×3 stem, 3×32×32",
        batch_sizes: &[64],
        candle_seconds: Some(0.16),
        zoo: Zoo { batch_size: 16, ..CIFAR },
        ..LARGE
    }),
    Network(&About {
        name: "resnet18-224",
        label: "ResNet-18, 3×224×224",
        candle_seconds: Some(0.5),
        ..LARGE
    }),
    Network(&About { name: "resnet34-224", label: "ResNet-34, 3×224×224", ..LARGE }),
    Network(&About {
        name: "resnet50-224",
        label: "ResNet-50, 3×224×224",
        candle_seconds: Some(1.1),
        ..DEEP
    }),
    Network(&About {
        name: "resnet101-224",
        label: "ResNet-101, 3×224×224",
        batch_sizes: &[4],
        ..DEEP
    }),
    Network(&About {
        name: "resnet152-224",
        label: "ResNet-152, 3×224×224",
        batch_sizes: &[4],
        ..DEEP
    }),
    Network(&About {
        name: "mobilenet-v2-224",
        label: "MobileNetV2, 3×224×224",
        candle_seconds: Some(0.9),
        ..LARGE
    }),
    Network(&About { name: "alexnet-224", label: "AlexNet, 3×224×224", ..LARGE }),
    Network(&About { name: "vgg11-224", label: "VGG-11, 3×224×224", batch_sizes: &[4], ..LARGE }),
    Network(&About { name: "vgg13-224", label: "VGG-13, 3×224×224", batch_sizes: &[4], ..LARGE }),
    Network(&About { name: "vgg16-224", label: "VGG-16, 3×224×224", batch_sizes: &[4], ..LARGE }),
    Network(&About { name: "vgg19-224", label: "VGG-19, 3×224×224", batch_sizes: &[4], ..LARGE }),
    Network(&About {
        name: "vgg11-bn-224",
        label: "VGG-11, batch norm, 3×224×224",
        batch_sizes: &[4],
        ..LARGE
    }),
    Network(&About {
        name: "vgg13-bn-224",
        label: "VGG-13, batch norm, 3×224×224",
        batch_sizes: &[4],
        ..LARGE
    }),
    Network(&About {
        name: "vgg16-bn-224",
        label: "VGG-16, batch norm, 3×224×224",
        batch_sizes: &[4],
        ..LARGE
    }),
    Network(&About {
        name: "vgg19-bn-224",
        label: "VGG-19, batch norm, 3×224×224",
        batch_sizes: &[4],
        ..LARGE
    }),
    Network(&About {
        name: "xception-299",
        label: "Xception, 3×299×299",
        batch_sizes: &[4],
        ..DEEP
    }),
    Network(&About {
        name: "vit-tiny",
        label: "Vision transformer, 6 layers, 192 wide, 3×32×32",
        batch_sizes: &[64],
        has_convolutions: false,
        zoo: Zoo { batch_size: 32, adamw: true, lr: 0.001, ..CIFAR },
        ..LARGE
    }),
    Network(&About {
        name: "vit-b16-224",
        label: "Vision transformer B/16, 3×224×224",
        batch_sizes: &[4],
        has_convolutions: false,
        ..LARGE
    }),
    Network(&About { name: "gru", label: "GRU classifier", ..TOKENS }),
    Network(&LSTM),
    Network(&About {
        name: "gpt",
        label: "GPT, 6 layers, 384 wide, 256 characters",
        unit: "sequences",
        has_convolutions: false,
        batch_sizes: &[16],
        candle_seconds: Some(0.28),
        loss_step: 3,
        loss_tolerance: 1e-5,
        zoo: Zoo { batch_size: 16, steps: 1, data: None, adamw: true, lr: 0.001 },
        ..LARGE
    }),
    Network(&About {
        name: "char-rnn",
        label: "LSTM on one-hot characters, 128 units",
        candle_seconds: None,
        zoo: TEXTS,
        ..LSTM
    }),
    Network(&About {
        name: "text-gru",
        label: "GRU on texts of up to 40 words",
        batch_sizes: &[32],
        candle_seconds: None,
        zoo: TEXTS,
        ..TOKENS
    }),
    Network(&About {
        name: "han",
        label: "Hierarchical attention on 8 sentences of up to 20 words",
        batch_sizes: &[32],
        candle_seconds: None,
        zoo: TEXTS,
        ..TOKENS
    }),
];

impl Network {
    pub(crate) fn about(self) -> &'static About {
        self.0
    }

    /// The network of a row.
    pub(crate) fn of(row: &Row) -> &'static About {
        let named = NETWORKS.iter().find(|network| network.0.name == row.text("network"));
        named.unwrap_or(&NETWORKS[0]).0
    }
}

impl PartialEq for Network {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

impl ValueEnum for Network {
    fn value_variants<'a>() -> &'a [Self] {
        &NETWORKS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name).help(self.0.label))
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
    fn each_network_has_a_name_of_its_own_and_a_loss_to_compare() {
        for (index, network) in NETWORKS.iter().enumerate() {
            assert_eq!(NETWORKS.iter().position(|other| other == network), Some(index));
            assert!(network.about().loss_step <= network.about().warm_up_steps);
        }
    }
}
