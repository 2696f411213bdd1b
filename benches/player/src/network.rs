//! The networks: their sizes, their models and their initial values.

use std::num::NonZeroUsize;
use std::rc::Rc;

use candelabrum::models::{
    self, CharCell, CharLstmConfig, CharRnnConfig, GptConfig, GruClassifierConfig, HanConfig, Stem,
    TextGruConfig, VggConfig, VggDepth, VitConfig,
};
use candelabrum::nn::{Model, Params, Summary};
use candle_core::{Result, Tensor};
use clap::ValueEnum;

use crate::hash::{MORE_PARAMETERS, NOISE, uniform};

/// The trained network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// SINGA's network for MNIST
    Cnn,
    /// 784-1024-1024-10
    Mlp,
    /// torchvision's `resnet18`, on 32x32 images
    Resnet18,
    /// The same with a 3x3 stem, which keeps the size
    Resnet18Small,
    /// torchvision's `resnet18`, on 224x224 images
    #[value(name = "resnet18-224")]
    Resnet18At224,
    /// torchvision's `resnet50`, on 224x224 images
    #[value(name = "resnet50-224")]
    Resnet50At224,
    /// torchvision's `mobilenet_v2`, on 224x224 images
    #[value(name = "mobilenet-v2-224")]
    MobileNetV2At224,
    /// LeNet-5
    Lenet,
    /// torchvision's networks, on 224x224 images
    #[value(name = "alexnet-224")]
    AlexNet,
    #[value(name = "vgg11-224")]
    Vgg11,
    #[value(name = "vgg13-224")]
    Vgg13,
    #[value(name = "vgg16-224")]
    Vgg16,
    #[value(name = "vgg19-224")]
    Vgg19,
    #[value(name = "vgg11-bn-224")]
    Vgg11Bn,
    #[value(name = "vgg13-bn-224")]
    Vgg13Bn,
    #[value(name = "vgg16-bn-224")]
    Vgg16Bn,
    #[value(name = "vgg19-bn-224")]
    Vgg19Bn,
    #[value(name = "resnet34-224")]
    Resnet34At224,
    #[value(name = "resnet101-224")]
    Resnet101At224,
    #[value(name = "resnet152-224")]
    Resnet152At224,
    #[value(name = "vit-b16-224")]
    VitB16,
    /// A small vision transformer, on 32x32 images
    VitTiny,
    /// Xception, on 299x299 images
    #[value(name = "xception-299")]
    Xception,
    /// Embedding, GRU, linear layer
    Gru,
    /// Embedding, LSTM, linear layer at every position
    Lstm,
    /// A transformer with the sizes of `GptConfig::default()`
    Gpt,
    /// LSTM on one-hot characters, linear layer at every position
    CharRnn,
    /// Embedding, GRU up to the last word, linear layer
    TextGru,
    /// The hierarchical attention network
    Han,
}

/// The sizes of the network `gru`.
pub(crate) const GRU: GruClassifierConfig =
    GruClassifierConfig { vocabulary: 64, embedding: 64, hidden: 128, classes: 10 };

/// The sizes of the network `lstm`.
pub(crate) const LSTM: CharLstmConfig =
    CharLstmConfig { vocabulary: 96, embedding: 64, hidden: 256 };

/// The sizes of a network that depend on its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) vocabulary: usize,
    pub(crate) classes: usize,
}

impl Sizes {
    /// Those of batches from the hash. The labels of images are the first ten classes of any number.
    pub(crate) fn of_drawn(network: Network) -> Self {
        let classes = match network {
            Network::TextGru | Network::Han => 2,
            _ if network.image()[1] > 32 => 1000,
            _ => 10,
        };
        let words = matches!(network, Network::TextGru | Network::Han);
        let vocabulary = if words { 10_000 } else { LSTM.vocabulary };
        Self { vocabulary, classes }
    }
}

impl Network {
    /// The channels of its images, and their height and width.
    pub(crate) fn image(self) -> [usize; 2] {
        match self {
            Self::Cnn | Self::Mlp | Self::Lenet => [1, 28],
            Self::Xception => [3, 299],
            Self::Resnet18 | Self::Resnet18Small | Self::VitTiny => [3, 32],
            Self::Gru | Self::Lstm | Self::Gpt | Self::CharRnn | Self::TextGru | Self::Han => {
                [0, 0]
            }
            _ => [3, 224],
        }
    }
}

/// The loss of a network for a batch.
type Loss = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor>>;

/// A network with its initial values.
pub(crate) struct Built {
    pub(crate) model: Rc<dyn Model>,
    pub(crate) loss: Loss,
    pub(crate) summary: Summary,
}

/// The network, which infers the sizes of its layers from a batch of inputs. Dropout is 0, because the masks of other
/// libraries are others. `gpt` has so many `blocks`.
pub(crate) fn build(
    network: Network,
    blocks: NonZeroUsize,
    sizes: Sizes,
    params: &Params,
    xs: &Tensor,
) -> anyhow::Result<Built> {
    let root = &params.root();
    let Sizes { vocabulary, classes } = sizes;
    let model: Rc<dyn Model> = match network {
        Network::Cnn => Rc::new(models::Cnn::new(root, classes)),
        Network::Mlp => Rc::new(models::Mlp::new(root, classes)),
        Network::Lenet => Rc::new(models::LeNet::new(root, classes)),
        Network::AlexNet => {
            let config = models::AlexNetConfig { dropout: 0.0, ..Default::default() };
            Rc::new(models::AlexNet::with_config(root, classes, config))
        }
        Network::Vgg11 => vgg(VggDepth::Vgg11, false, params, classes),
        Network::Vgg13 => vgg(VggDepth::Vgg13, false, params, classes),
        Network::Vgg16 => vgg(VggDepth::Vgg16, false, params, classes),
        Network::Vgg19 => vgg(VggDepth::Vgg19, false, params, classes),
        Network::Vgg11Bn => vgg(VggDepth::Vgg11, true, params, classes),
        Network::Vgg13Bn => vgg(VggDepth::Vgg13, true, params, classes),
        Network::Vgg16Bn => vgg(VggDepth::Vgg16, true, params, classes),
        Network::Vgg19Bn => vgg(VggDepth::Vgg19, true, params, classes),
        Network::Resnet18 | Network::Resnet18At224 => Rc::new(models::ResNet18::new(root, classes)),
        Network::Resnet18Small => Rc::new(models::ResNet18::with_stem(root, classes, Stem::Small)),
        Network::Resnet34At224 => Rc::new(models::ResNet34::new(root, classes)),
        Network::Resnet50At224 => Rc::new(models::ResNet50::new(root, classes)),
        Network::Resnet101At224 => Rc::new(models::ResNet101::new(root, classes)),
        Network::Resnet152At224 => Rc::new(models::ResNet152::new(root, classes)),
        Network::MobileNetV2At224 => Rc::new(models::MobileNetV2::with_dropout(root, classes, 0.0)),
        Network::Xception => Rc::new(models::Xception::new(root, classes)),
        Network::VitTiny => Rc::new(models::Vit::new(root, classes, VitConfig::tiny_4())),
        Network::VitB16 => Rc::new(models::Vit::new(root, classes, VitConfig::base_16())),
        Network::Gru => Rc::new(models::GruClassifier::new(root, GRU)),
        Network::Lstm => Rc::new(models::CharLstm::new(root, LSTM)),
        Network::Gpt => return gpt(blocks.get(), params, xs),
        Network::CharRnn => {
            let config = CharRnnConfig { vocabulary, hidden: 128, layers: 1, cell: CharCell::Lstm };
            Rc::new(models::CharRnn::new(root, config))
        }
        Network::TextGru => {
            let config = TextGruConfig { vocabulary, embedding: 64, hidden: 64, classes };
            Rc::new(models::TextGru::new(root, config))
        }
        Network::Han => {
            let config = HanConfig { vocabulary, embedding: 64, classes, ..HanConfig::default() };
            Rc::new(models::Han::new(root, config))
        }
    };
    let of = Rc::clone(&model);
    let loss = move |xs: &Tensor, ys: &Tensor| of.loss(&of.forward(xs)?, ys);
    built(model, Box::new(loss), params, xs)
}

fn vgg(depth: VggDepth, batch_norm: bool, params: &Params, classes: usize) -> Rc<dyn Model> {
    let config = VggConfig { batch_norm, dropout: 0.0, ..VggConfig::new(depth) };
    Rc::new(models::Vgg::new(&params.root(), classes, config))
}

/// The loss of its `train_one_batch`, which never has all logits at once.
fn gpt(layers: usize, params: &Params, xs: &Tensor) -> anyhow::Result<Built> {
    let config = GptConfig { layers, ..GptConfig::default() };
    let model = Rc::new(models::Gpt::new(&params.root(), config));
    let of = Rc::clone(&model);
    let loss = move |xs: &Tensor, ys: &Tensor| of.loss_of(&of.states(xs)?, ys);
    built(model, Box::new(loss), params, xs)
}

fn built(model: Rc<dyn Model>, loss: Loss, params: &Params, xs: &Tensor) -> anyhow::Result<Built> {
    let summary = model.compile_with(params, xs)?;
    initialise(params)?;
    Ok(Built { model, loss, summary })
}

/// Sets every parameter to its initial value: uniform in ±1/√fan-in. A normalisation keeps its 1 and
/// 0. The stream of the hash follows the parameter's index in the list, which has PyTorch's order.
fn initialise(params: &Params) -> Result<()> {
    let streams = (0..NOISE).chain(MORE_PARAMETERS..);
    for (stream, param) in streams.zip(params.list()) {
        let Some(fan_in) = fan_in(params, param.name(), param.var().dims())? else { continue };
        let bound = (fan_in as f64).powf(-0.5) as f32;
        let value = |i| (2.0 * uniform(stream, i) - 1.0) * bound;
        let values: Vec<f32> = (0..param.var().elem_count()).map(value).collect();
        let values = Tensor::from_vec(values, param.var().shape(), params.device())?;
        param.set(&values.to_dtype(param.var().dtype())?)?;
    }
    Ok(())
}

/// The inputs of an output of a parameter's layer. Those of a recurrent layer are its hidden state, that of an embedding
/// is one token, and those of a transformer's tables are the numbers of a row, because the table of the tokens is also the
/// weight of the last layer.
fn fan_in(params: &Params, name: &str, shape: &[usize]) -> Result<Option<usize>> {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    if !own.starts_with("weight") && !own.starts_with("bias") {
        return Ok(shape.last().copied());
    }
    if module.ends_with("embedding") {
        return Ok(Some(1));
    }
    if let Ok(hidden) = params.get(&format!("{module}.weight_hh")) {
        return Ok(Some(hidden.var().dims()[1]));
    }
    Ok(match params.get(&format!("{module}.weight"))?.var().dims() {
        [_] => None,
        weight => Some(weight[1..].iter().product()),
    })
}
