//! The networks: one entry has all that this program and `cargo xtask bench` must know of a network.
//!
//! `bench-player networks` prints the entries as JSON, so they are nowhere a second time. PyTorch's class stands with
//! the same name in scripts/networks.py.

use std::rc::Rc;

use candelabrum::models::{
    self, AlexNetConfig, CharCell, CharRnnConfig, GptConfig, HanConfig, Stem, TextGruConfig,
    VggConfig, VggDepth, VitConfig,
};
use candelabrum::nn::{Model, Scope};
use candle_core::{Result, Tensor};
use candle_nn::{Func, VarBuilder};
use serde::Serialize;

use crate::candle::small::{cnn, gru, lstm, mlp};
use crate::candle::{gpt, mobilenet_v2, resnet};
use crate::sizes::{GRU, LSTM, NetworkSizes, TEXT};

/// A network, and how it is measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Network {
    pub(crate) name: &'static str,
    /// What it is.
    label: &'static str,
    /// The items of a batch.
    unit: &'static str,
    has_convolutions: bool,
    /// The batches of `bench step`, if the user names none.
    batch_sizes: &'static [usize],
    /// About the seconds of candle for one example of a batch on one thread.
    candle_seconds: Option<f64>,
    /// The steps before the first sample.
    warm_up_steps: usize,
    /// The warm-up step, counted from 1, in which two contenders' losses differ by at most the tolerance.
    loss_step: usize,
    loss_tolerance: f64,
    #[serde(flatten)]
    pub(crate) zoo: ZooTraining,
    /// The elements of all parameters, `sum(p.numel() for p in network.parameters())`; 0 if nobody asked PyTorch.
    pub(crate) elements: usize,
    /// PyTorch's first losses, and how far ours may be from them: scripts/bench_step.py --contender pytorch
    /// --batch-size 4 --threads 1 --warm-up 3. Batch norms amplify the rounding of this small batch from step to step.
    pub(crate) first_losses: (&'static [f64], f64),
    #[serde(skip)]
    pub(crate) inputs: InputKind,
    #[serde(skip)]
    pub(crate) model: MakeModel,
    /// The network as a candle user writes it, if there is a program of it.
    #[serde(skip)]
    pub(crate) candle: Option<CandleProgram>,
}

/// A training of `bench zoo`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ZooTraining {
    #[serde(rename = "zoo_batch_size")]
    batch_size: usize,
    /// Between two evaluations.
    #[serde(rename = "zoo_steps")]
    steps: usize,
    /// The folder of its data below that of `--data`. Without a folder there are made-up examples.
    #[serde(rename = "zoo_data")]
    pub(crate) data: Option<&'static str>,
    /// The rate of AdamW, or else of SGD with momentum.
    #[serde(rename = "zoo_adamw")]
    adamw: bool,
    #[serde(rename = "zoo_lr")]
    lr: f64,
}

/// The inputs and labels of its drawn batches (problem.rs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// Images with so many channels, height and width.
    Images(usize, usize),
    /// Grey images of 28 × 28 as rows.
    Rows,
    /// Sequences of tokens with a label each.
    Sequences,
    /// Texts of so many characters with a label at every position.
    Texts(usize),
    /// Padded texts of this shape with a label each.
    Padded(&'static [usize]),
}

/// What a model is made of.
pub(crate) struct ModelRecipe<'a> {
    pub(crate) root: &'a Scope,
    pub(crate) sizes: NetworkSizes,
    /// Of the network gpt.
    pub(crate) blocks: usize,
}

/// The loss of a network for a batch.
pub(crate) type LossFn = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

type MakeModel = fn(&ModelRecipe<'_>) -> ModelAndLoss;
type CandleProgram = fn(&VarBuilder<'_>) -> Result<Func<'static>>;

/// A model and its loss.
pub(crate) type ModelAndLoss = (Rc<dyn Model>, LossFn);

/// The characters in a text of gpt.
const CONTEXT: usize = 256;

const MNIST: ZooTraining =
    ZooTraining { batch_size: 64, steps: 20, data: Some("mnist"), adamw: false, lr: 0.005 };
const CIFAR: ZooTraining = ZooTraining { data: Some("cifar-10-batches-bin"), ..MNIST };
const TEXTS: ZooTraining =
    ZooTraining { batch_size: 32, steps: 80, data: Some("rt-polarity"), adamw: true, lr: 0.002 };

/// Small images.
const SMALL: Network = Network {
    name: "",
    label: "",
    unit: "images",
    has_convolutions: true,
    batch_sizes: &[64, 256],
    candle_seconds: None,
    warm_up_steps: 14,
    loss_step: 14,
    loss_tolerance: 1e-4,
    zoo: MNIST,
    elements: 0,
    first_losses: (&[], 0.0),
    inputs: InputKind::Images(1, 28),
    model: |r| parts(models::Cnn::new(r.root, r.sizes.classes)),
    candle: None,
};

/// On 32×32 images the last batch norms have one pixel per image. They amplify rounding differences, within PyTorch
/// too: after one step the losses of its two memory layouts differ in the fourth digit, after five in the second.
const RESNET_18: Network = Network {
    warm_up_steps: 6,
    loss_step: 2,
    loss_tolerance: 5e-3,
    zoo: CIFAR,
    inputs: InputKind::Images(3, 32),
    ..SMALL
};

/// A few long steps of few large images.
const LARGE: Network = Network {
    batch_sizes: &[8],
    warm_up_steps: 3,
    loss_step: 2,
    loss_tolerance: 5e-3,
    zoo: ZooTraining { batch_size: 4, steps: 1, data: None, ..MNIST },
    inputs: InputKind::Images(3, 224),
    ..SMALL
};

/// Those that take so much memory that a batch has half as many images.
const WIDE: Network = Network { batch_sizes: &[4], ..LARGE };

/// The losses of the first steps of deep networks differ by more between PyTorch's own layouts: those of resnet50-224 by
/// 0.05 after one step from 7.25 to 6.0.
const DEEP: Network = Network { loss_tolerance: 0.15, ..LARGE };
const WIDE_AND_DEEP: Network = Network { loss_tolerance: 0.15, ..WIDE };

const TOKENS: Network = Network {
    unit: "sequences",
    has_convolutions: false,
    zoo: ZooTraining { data: None, ..MNIST },
    inputs: InputKind::Sequences,
    ..SMALL
};

const WORDS: Network = Network { batch_sizes: &[32], zoo: TEXTS, ..TOKENS };

/// Its loss falls slowly, and is a mean over so many positions that it hardly depends on rounding.
const CHARACTERS: Network = Network {
    batch_sizes: &[64],
    loss_tolerance: 1e-5,
    zoo: TEXTS,
    inputs: InputKind::Texts(TEXT),
    ..TOKENS
};

/// All networks.
pub(crate) static NETWORKS: [Network; 29] = [
    SMALL
        .named("cnn", "MNIST CNN", |r| parts(models::Cnn::new(r.root, r.sizes.classes)))
        .torch(431_080, &[2.264_145_6, 2.300_574_8, 2.215_159_4], 1e-5)
        .candle(0.002, cnn),
    Network { has_convolutions: false, inputs: InputKind::Rows, ..SMALL }
        .named("mlp", "MLP 784-1024-1024-10", |r| parts(models::Mlp::new(r.root, r.sizes.classes)))
        .torch(1_863_690, &[2.296_297_3, 2.315_008_2, 2.285_880_6], 1e-5)
        .candle(0.002, mlp),
    SMALL.named("lenet", "LeNet-5", |r| parts(models::LeNet::new(r.root, r.sizes.classes))).torch(
        0,
        &[2.300_930_3, 2.272_836_7, 2.355_435_1],
        1e-5,
    ),
    RESNET_18
        .named("resnet18", "ResNet-18, 3×32×32", resnet18)
        .torch(11_181_642, &[2.344_909_4, 2.749_262_8], 1e-3)
        .candle(0.043, |vb| resnet::resnet18(vb, 10)),
    Network {
        batch_sizes: &[64],
        zoo: ZooTraining { batch_size: 16, ..CIFAR },
        inputs: InputKind::Images(3, 32),
        ..LARGE
    }
    .named("resnet18-small", "ResNet-18, 3×3 stem, 3×32×32", |r| {
        parts(models::ResNet18::with_stem(r.root, r.sizes.classes, Stem::Small))
    })
    .torch(0, &[2.390_889_6, 2.608_141_9, 1.998_791_5], 1e-3)
    .candle(0.16, |vb| resnet::resnet18_small(vb, 10)),
    LARGE
        .named("resnet18-224", "ResNet-18, 3×224×224", resnet18)
        .torch(11_689_512, &[6.853_057_9, 7.000_920_3, 6.199_173_5], 2e-3)
        .candle(0.5, |vb| resnet::resnet18(vb, 1000)),
    LARGE.named("resnet34-224", "ResNet-34, 3×224×224", |r| {
        parts(models::ResNet34::new(r.root, r.sizes.classes))
    }),
    DEEP.named("resnet50-224", "ResNet-50, 3×224×224", |r| {
        parts(models::ResNet50::new(r.root, r.sizes.classes))
    })
    .torch(25_557_032, &[7.446_572_3, 6.439_263_3], 2e-2)
    .candle(1.1, |vb| resnet::resnet50(vb, 1000)),
    WIDE_AND_DEEP.named("resnet101-224", "ResNet-101, 3×224×224", |r| {
        parts(models::ResNet101::new(r.root, r.sizes.classes))
    }),
    WIDE_AND_DEEP.named("resnet152-224", "ResNet-152, 3×224×224", |r| {
        parts(models::ResNet152::new(r.root, r.sizes.classes))
    }),
    LARGE
        .named("mobilenet-v2-224", "MobileNetV2, 3×224×224", |r| {
            parts(models::MobileNetV2::with_dropout(r.root, r.sizes.classes, 0.0))
        })
        .torch(3_504_872, &[7.013_580_3, 6.959_855_1], 2e-3)
        .candle(0.9, |vb| mobilenet_v2::mobilenet_v2(vb, 1000)),
    LARGE
        .named("alexnet-224", "AlexNet, 3×224×224", |r| {
            let config = AlexNetConfig { dropout: 0.0, ..Default::default() };
            parts(models::AlexNet::with_config(r.root, r.sizes.classes, config))
        })
        .torch(61_100_840, &[6.918_333_1, 6.902_621_3, 6.908_049_6], 1e-4),
    WIDE.named("vgg11-224", "VGG-11, 3×224×224", |r| vgg(r, VggDepth::Vgg11, false)),
    WIDE.named("vgg13-224", "VGG-13, 3×224×224", |r| vgg(r, VggDepth::Vgg13, false)),
    WIDE.named("vgg16-224", "VGG-16, 3×224×224", |r| vgg(r, VggDepth::Vgg16, false)),
    WIDE.named("vgg19-224", "VGG-19, 3×224×224", |r| vgg(r, VggDepth::Vgg19, false)),
    WIDE.named("vgg11-bn-224", "VGG-11, batch norm", |r| vgg(r, VggDepth::Vgg11, true)).torch(
        132_868_840,
        &[6.875_530_7, 6.841_308_1],
        2e-3,
    ),
    WIDE.named("vgg13-bn-224", "VGG-13, batch norm", |r| vgg(r, VggDepth::Vgg13, true)),
    WIDE.named("vgg16-bn-224", "VGG-16, batch norm", |r| vgg(r, VggDepth::Vgg16, true)),
    WIDE.named("vgg19-bn-224", "VGG-19, batch norm", |r| vgg(r, VggDepth::Vgg19, true)),
    Network { inputs: InputKind::Images(3, 299), ..WIDE_AND_DEEP }
        .named("xception-299", "Xception, 3×299×299", |r| {
            parts(models::Xception::new(r.root, r.sizes.classes))
        })
        .torch(22_855_952, &[6.910_451_9, 6.838_429_0], 2e-3),
    Network {
        batch_sizes: &[64],
        has_convolutions: false,
        zoo: ZooTraining { batch_size: 32, adamw: true, lr: 0.001, ..CIFAR },
        inputs: InputKind::Images(3, 32),
        ..LARGE
    }
    .named("vit-tiny", "Vision transformer, 6 layers, 192 wide, 3×32×32", |r| {
        parts(models::Vit::new(r.root, r.sizes.classes, VitConfig::tiny_4()))
    })
    .torch(0, &[2.523_591_3, 3.050_253_4, 2.061_913_5], 1e-5),
    Network { has_convolutions: false, ..WIDE }
        .named("vit-b16-224", "Vision transformer B/16, 3×224×224", |r| {
            parts(models::Vit::new(r.root, r.sizes.classes, VitConfig::base_16()))
        })
        .torch(86_567_656, &[7.041_553_0, 6.551_970_0], 1e-4),
    TOKENS
        .named("gru", "GRU classifier", |r| parts(models::GruClassifier::new(r.root, GRU)))
        .torch(79_882, &[2.304_638_6, 2.332_710_3, 2.302_423_5], 1e-5)
        .candle(0.002, gru),
    Network { zoo: ZooTraining { data: None, ..TEXTS }, ..CHARACTERS }
        .named("lstm", "LSTM of characters, 256 units", |r| {
            parts(models::CharLstm::new(r.root, LSTM))
        })
        .torch(360_544, &[4.563_466_1, 4.571_622_4, 4.561_214_9], 1e-5)
        .candle(0.017, lstm),
    Network {
        unit: "sequences",
        has_convolutions: false,
        batch_sizes: &[16],
        loss_step: 3,
        loss_tolerance: 1e-5,
        zoo: ZooTraining { batch_size: 16, steps: 1, data: None, adamw: true, lr: 0.001 },
        inputs: InputKind::Texts(CONTEXT),
        ..LARGE
    }
    .named("gpt", "GPT, 6 layers, 384 wide, 256 characters", |r| {
        let config = GptConfig { layers: r.blocks, ..GptConfig::default() };
        let model = Rc::new(models::Gpt::new(r.root, config));
        // The loss of its `train_one_batch`, which never has all logits at once.
        let own = Rc::clone(&model);
        (model, Box::new(move |xs, ys| own.loss_of(&own.states(xs)?, ys)))
    })
    .torch(10_782_720, &[4.687_432_8, 4.681_680_2, 4.672_752_9], 1e-5)
    .candle(0.28, |vb| gpt::gpt(vb, GptConfig::default())),
    CHARACTERS
        .named("char-rnn", "LSTM on one-hot characters, 128 units", |r| {
            let (vocabulary, cell) = (r.sizes.vocabulary, CharCell::Lstm);
            let config = CharRnnConfig { vocabulary, hidden: 128, layers: 1, cell };
            parts(models::CharRnn::new(r.root, config))
        })
        .torch(0, &[4.565_531_3, 4.564_024_4, 4.561_764_7], 1e-5),
    Network { inputs: InputKind::Padded(&[40]), ..WORDS }
        .named("text-gru", "GRU on texts of up to 40 words", |r| {
            let NetworkSizes { vocabulary, classes } = r.sizes;
            let config = TextGruConfig { vocabulary, embedding: 64, hidden: 64, classes };
            parts(models::TextGru::new(r.root, config))
        })
        .torch(0, &[0.672_371_0, 0.708_761_1, 0.721_237_5], 1e-5),
    Network { inputs: InputKind::Padded(&[8, 20]), ..WORDS }
        .named("han", "Hierarchical attention on 8 sentences of up to 20 words", |r| {
            let NetworkSizes { vocabulary, classes } = r.sizes;
            let config = HanConfig { vocabulary, embedding: 64, classes, ..HanConfig::default() };
            parts(models::Han::new(r.root, config))
        })
        .torch(0, &[0.687_150_0, 0.691_147_1, 0.696_926_8], 1e-5),
];

impl Network {
    /// A network that is measured as this one is.
    const fn named(self, name: &'static str, label: &'static str, model: MakeModel) -> Self {
        Self { name, label, model, ..self }
    }

    /// With the elements and the first losses that PyTorch has.
    const fn torch(self, elements: usize, losses: &'static [f64], rounding: f64) -> Self {
        Self { elements, first_losses: (losses, rounding), ..self }
    }

    /// With a program of candle, and its seconds.
    const fn candle(self, seconds: f64, program: CandleProgram) -> Self {
        Self { candle_seconds: Some(seconds), candle: Some(program), ..self }
    }

    /// Whether a test takes long with it. `vit-tiny` does not.
    #[cfg(test)]
    pub(crate) fn is_large(&self) -> bool {
        self.warm_up_steps < 4 && self.name != "vit-tiny"
    }

    /// The sizes of batches from the hash. The labels of images are the first ten classes of any number.
    pub(crate) fn drawn_sizes(&self) -> NetworkSizes {
        let (vocabulary, classes) = match self.inputs {
            InputKind::Padded(_) => (10_000, 2),
            InputKind::Images(_, side) if side > 32 => (0, 1000),
            _ => (LSTM.vocabulary, 10),
        };
        NetworkSizes { vocabulary, classes }
    }
}

/// The network of a name.
pub(crate) fn find(name: &str) -> std::result::Result<&'static Network, String> {
    let names = || NETWORKS.iter().map(|network| network.name).collect::<Vec<_>>().join(", ");
    let known = NETWORKS.iter().find(|network| network.name == name);
    known.ok_or_else(|| format!("there is {}", names()))
}

/// A model with its usual loss.
fn parts<M: Model + 'static>(model: M) -> ModelAndLoss {
    let model = Rc::new(model);
    let own = Rc::clone(&model);
    (model, Box::new(move |xs, ys| own.loss(&own.forward(xs)?, ys)))
}

fn resnet18(recipe: &ModelRecipe<'_>) -> ModelAndLoss {
    parts(models::ResNet18::new(recipe.root, recipe.sizes.classes))
}

fn vgg(recipe: &ModelRecipe<'_>, depth: VggDepth, batch_norm: bool) -> ModelAndLoss {
    let config = VggConfig { batch_norm, dropout: 0.0, ..VggConfig::new(depth) };
    parts(models::Vgg::new(recipe.root, recipe.sizes.classes, config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_a_name_of_its_own_and_a_loss_to_compare() {
        for (index, network) in NETWORKS.iter().enumerate() {
            assert_eq!(NETWORKS.iter().position(|other| other.name == network.name), Some(index));
            assert!(network.loss_step <= network.warm_up_steps);
            assert_eq!(network.candle.is_some(), network.candle_seconds.is_some());
        }
    }
}
