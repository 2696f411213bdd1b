//! The common training problem of all contenders: initial weights and batches from an integer hash.
//!
//! scripts/bench_step.py computes the same hash, number for number, so PyTorch's losses can be
//! compared with ours to the last digits.

use candelabrum::models::{CharLstmConfig, GptConfig, GruClassifierConfig};
use candelabrum::nn::Params;
use candle_core::{Device, Result, Tensor};
use clap::ValueEnum;

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
    /// Embedding, GRU, linear layer
    Gru,
    /// Embedding, LSTM, linear layer at every position
    Lstm,
    /// A transformer with the sizes of `GptConfig::default()`
    Gpt,
}

impl Network {
    /// The outputs. The labels of images are the first ten classes of any number.
    pub(crate) fn classes(self) -> usize {
        match self {
            Self::Resnet18At224 | Self::Resnet50At224 | Self::MobileNetV2At224 => 1000,
            _ => 10,
        }
    }
}

/// The sizes of the network `gru`.
pub(crate) const GRU: GruClassifierConfig =
    GruClassifierConfig { vocabulary: 64, embedding: 64, hidden: 128, classes: 10 };

/// The sizes of the network `lstm`.
pub(crate) const LSTM: CharLstmConfig =
    CharLstmConfig { vocabulary: 96, embedding: 64, hidden: 256 };

/// The number of batches that a rank uses in turn.
const BATCHES: usize = 8;

/// The number of tokens in a sequence of the network `gru`.
const SEQUENCE: usize = 32;

/// The number of characters in a text of the network `lstm`.
const TEXT: usize = 64;

/// Streams of the hash: one for each batch of each of up to 12 ranks. The first
/// hundred parameters have the lower streams, the others those from [`MORE_PARAMETERS`] on.
const NOISE: usize = 100;
const LABELS: usize = 200;
const PATTERNS: usize = 300;
const TOKENS: usize = 400;
const MORE_PARAMETERS: usize = 1000;

/// Inputs and labels, `(size,)` or one at every position: all batches of a rank. They differ from those of every other rank.
pub(crate) fn batches(network: Network, size: usize, rank: usize) -> Result<Vec<(Tensor, Tensor)>> {
    (rank * BATCHES..(rank + 1) * BATCHES).map(|index| batch(network, index, size)).collect()
}

/// The inputs and labels of one of all ranks' batches.
pub(crate) fn batch(network: Network, index: usize, size: usize) -> Result<(Tensor, Tensor)> {
    match network {
        Network::Cnn => images(index, size, 1, 28),
        Network::Mlp => {
            let (xs, ys) = images(index, size, 1, 28)?;
            Ok((xs.flatten_from(1)?, ys))
        }
        Network::Resnet18 | Network::Resnet18Small => images(index, size, 3, 32),
        Network::Resnet18At224 | Network::Resnet50At224 | Network::MobileNetV2At224 => {
            images(index, size, 3, 224)
        }
        Network::Gru => sequences(index, size),
        Network::Lstm => texts(index, size, TEXT, LSTM.vocabulary as u32),
        Network::Gpt => {
            let GptConfig { vocabulary, context, .. } = GptConfig::default();
            texts(index, size, context, vocabulary as u32)
        }
    }
}

/// Sets every parameter to its initial value: uniform in ±1/√fan-in. A normalisation keeps its 1 and
/// 0. The fan-in of the network `gpt`'s tables is the length of a row, because the table of the tokens is
/// also the weight of the last layer. The stream of the hash follows the parameter's index in the list,
/// which has PyTorch's order.
pub(crate) fn initialise(params: &Params) -> Result<()> {
    let streams = (0..NOISE).chain(MORE_PARAMETERS..);
    for (stream, param) in streams.zip(params.list()) {
        let module = param.name().rsplit_once('.').map_or("", |(module, _)| module);
        let fan_in = match module {
            "embedding" => 1,
            "gru" => GRU.hidden,
            "lstm" => LSTM.hidden,
            "" => GptConfig::default().width,
            _ => match params.get(&format!("{module}.weight"))?.var().dims() {
                [_] => continue,
                weight => weight[1..].iter().product(),
            },
        };
        let bound = (fan_in as f64).powf(-0.5) as f32;
        let value = |i| (2.0 * uniform(stream, i) - 1.0) * bound;
        let values: Vec<f32> = (0..param.var().elem_count()).map(value).collect();
        let values = Tensor::from_vec(values, param.var().shape(), params.device())?;
        param.set(&values.to_dtype(param.var().dtype())?)?;
    }
    Ok(())
}

/// Images `(size, channels, side, side)` of ten coarse patterns with noise, and the number of each
/// image's pattern.
fn images(index: usize, size: usize, channels: usize, side: usize) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..size).map(|n| hash(LABELS + index, n) % 10).collect();
    let (pixels, blocks) = (channels * side * side, side / 4);
    let mut images = Vec::with_capacity(size * pixels);
    for (n, &label) in labels.iter().enumerate() {
        for pixel in 0..pixels {
            let (row, column) = (pixel / side, pixel % side); // rows of all channels
            let block = (label as usize * channels * blocks + row / 4) * blocks + column / 4;
            let pattern = (hash(PATTERNS, block) & 1) as f32;
            images.push(0.5 * uniform(NOISE + index, n * pixels + pixel) + 0.5 * pattern);
        }
    }
    let images = Tensor::from_vec(images, (size, channels, side, side), &Device::Cpu)?;
    Ok((images, Tensor::from_vec(labels, size, &Device::Cpu)?))
}

/// Token sequences `(size, SEQUENCE)`. The label is the number of tokens from the vocabulary's
/// first half: 11 or fewer are class 0, 20 or more are class 9.
fn sequences(index: usize, size: usize) -> Result<(Tensor, Tensor)> {
    let vocabulary = GRU.vocabulary as u32;
    let token = |i| hash(TOKENS + index, i) % vocabulary;
    let tokens: Vec<u32> = (0..size * SEQUENCE).map(token).collect();
    let label = |sequence: &[u32]| {
        let low = sequence.iter().filter(|&&token| token < vocabulary / 2).count();
        low.clamp(11, 20) as u32 - 11
    };
    let labels: Vec<u32> = tokens.chunks_exact(SEQUENCE).map(label).collect();
    let tokens = Tensor::from_vec(tokens, (size, SEQUENCE), &Device::Cpu)?;
    Ok((tokens, Tensor::from_vec(labels, size, &Device::Cpu)?))
}

/// Texts `(size, length)`, and at each position the character that follows. It is one of four, which
/// depend on the character before.
fn texts(index: usize, size: usize, length: usize, vocabulary: u32) -> Result<(Tensor, Tensor)> {
    let mut texts = Vec::with_capacity(size * (length + 1));
    for i in 0..size * (length + 1) {
        let drawn = hash(TOKENS + index, i);
        texts.push(match texts.last() {
            Some(before) if i % (length + 1) != 0 => (5 * before + drawn % 4) % vocabulary,
            _ => drawn % vocabulary,
        });
    }
    let texts = Tensor::from_vec(texts, (size, length + 1), &Device::Cpu)?;
    Ok((texts.narrow(1, 0, length)?.contiguous()?, texts.narrow(1, 1, length)?.contiguous()?))
}

/// A number in [0, 1), exact in f32.
fn uniform(stream: usize, index: usize) -> f32 {
    (hash(stream, index) >> 8) as f32 / (1 << 24) as f32
}

/// MurmurHash3's finalizer over a counter that starts at the stream.
fn hash(stream: usize, index: usize) -> u32 {
    let mut h = (index as u32).wrapping_add((stream as u32).wrapping_mul(0x9E37_79B9));
    h = (h ^ (h >> 16)).wrapping_mul(0x85EB_CA6B);
    h = (h ^ (h >> 13)).wrapping_mul(0xC2B2_AE35);
    h ^ (h >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_the_python_script() {
        // hashes(stream, 2) of scripts/bench_step.py
        let expected = [
            [0, 0x514E_28B7],
            [0x1B14_7DCC, 0x971E_9964],
            [0xCBAD_538B, 0xE37A_AB19],
            [0x7AB1_197E, 0x6359_8FD3],
            [0x0038_5B85, 0x08BE_C8E4],
        ];
        let got = [0, 3, PATTERNS, TOKENS, TOKENS + 7].map(|s| [hash(s, 0), hash(s, 1)]);
        assert_eq!(got, expected);
    }

    #[test]
    fn texts_are_those_of_the_python_script() -> Result<()> {
        // texts(1, 2, 4) of scripts/bench_step.py
        let (xs, ys) = texts(1, 2, 4, LSTM.vocabulary as u32)?;
        assert_eq!(xs.to_vec2::<u32>()?, [[7, 38, 95, 93], [5, 25, 30, 55]]);
        assert_eq!(ys.narrow(1, 0, 3)?.to_vec2::<u32>()?, xs.narrow(1, 1, 3)?.to_vec2::<u32>()?);
        assert_eq!(ys.narrow(1, 3, 1)?.to_vec2::<u32>()?, [[81], [84]]);
        Ok(())
    }
}
