//! The common training problem of all contenders: initial weights and batches from an integer hash.
//!
//! scripts/bench_step.py computes the same hash, number for number, so PyTorch's losses can be
//! compared with ours to the last digits.

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
    /// Embedding, GRU, linear layer
    Gru,
}

/// The sizes of the network `gru`: the number of different tokens, the numbers for a token, and the
/// numbers of the hidden state.
pub(crate) const VOCABULARY: usize = 64;
pub(crate) const EMBEDDING: usize = 64;
pub(crate) const HIDDEN: usize = 128;

/// The number of batches that a rank uses in turn.
const BATCHES: usize = 8;

/// The number of tokens in a sequence.
const SEQUENCE: usize = 32;

/// Streams of the hash: one for each batch of each of up to 12 ranks. Lower streams are those of
/// the parameters.
const NOISE: usize = 100;
const LABELS: usize = 200;
const PATTERNS: usize = 300;
const TOKENS: usize = 400;

/// Inputs and labels `(size,)`: all batches of a rank. They differ from those of every other rank.
pub(crate) fn batches(network: Network, size: usize, rank: usize) -> Result<Vec<(Tensor, Tensor)>> {
    let batch = |index| match network {
        Network::Cnn => images(index, size, 1, 28),
        Network::Mlp => {
            let (xs, ys) = images(index, size, 1, 28)?;
            Ok((xs.flatten_from(1)?, ys))
        }
        Network::Resnet18 => images(index, size, 3, 32),
        Network::Gru => sequences(index, size),
    };
    (rank * BATCHES..(rank + 1) * BATCHES).map(batch).collect()
}

/// Sets every parameter to its initial value: uniform in ±1/√fan-in. A normalisation keeps its 1 and
/// 0. The stream of the hash is the parameter's index in the list, which has PyTorch's order.
pub(crate) fn initialise(params: &Params) -> Result<()> {
    for (stream, param) in params.list().iter().enumerate() {
        let module = param.name().rsplit_once('.').map_or("", |(module, _)| module);
        let fan_in = match module {
            "embedding" => 1,
            "gru" => HIDDEN,
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
    let token = |i| hash(TOKENS + index, i) % VOCABULARY as u32;
    let tokens: Vec<u32> = (0..size * SEQUENCE).map(token).collect();
    let label = |sequence: &[u32]| {
        let low = sequence.iter().filter(|&&token| token < VOCABULARY as u32 / 2).count();
        low.clamp(11, 20) as u32 - 11
    };
    let labels: Vec<u32> = tokens.chunks_exact(SEQUENCE).map(label).collect();
    let tokens = Tensor::from_vec(tokens, (size, SEQUENCE), &Device::Cpu)?;
    Ok((tokens, Tensor::from_vec(labels, size, &Device::Cpu)?))
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
}
