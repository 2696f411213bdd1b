//! The common training problem of all contenders: initial weights and batches from an integer hash.
//!
//! scripts/bench_step.py computes the same hash, number for number, so PyTorch's losses can be
//! compared with ours to the last digits.

use candle_core::{Device, Result, Tensor};

use crate::network::{Network, Parameter, Start, VOCABULARY};

/// The number of batches that a rank uses in turn.
pub(crate) const BATCHES: usize = 8;

/// The number of tokens in a sequence.
pub(crate) const SEQUENCE: usize = 32;

/// Streams of the hash: one for each batch of each of up to 12 ranks. Lower streams are those of
/// the parameters, by their index in the network's list.
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

/// The initial value of each parameter: uniform in ±1/√fan-in, or one value.
pub(crate) fn parameters(network: Network) -> Result<Vec<(String, Tensor)>> {
    let parameter = |(stream, Parameter { name, shape, start }): (usize, Parameter)| {
        let value = match start {
            Start::Const(value) => Tensor::full(value, shape, &Device::Cpu)?,
            Start::Uniform { fan_in } => {
                let bound = (fan_in as f64).powf(-0.5) as f32;
                let count = shape.iter().product();
                let values: Vec<f32> =
                    (0..count).map(|i| (2.0 * uniform(stream, i) - 1.0) * bound).collect();
                Tensor::from_vec(values, shape, &Device::Cpu)?
            }
        };
        Ok((name, value))
    };
    network.parameters().into_iter().enumerate().map(parameter).collect()
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

    #[test]
    fn sequences_are_those_of_the_python_script() -> Result<()> {
        // sequences(1, 8) of scripts/bench_step.py: the first tokens and the labels
        let (tokens, labels) = sequences(1, 8)?;
        assert_eq!(tokens.dims(), [8, SEQUENCE]);
        assert_eq!(tokens.to_vec2::<u32>()?[0][..8], [39, 55, 57, 58, 60, 5, 32, 25]);
        assert_eq!(labels.to_vec1::<u32>()?, [0, 4, 4, 0, 6, 8, 4, 1]);
        Ok(())
    }

    #[test]
    fn images_are_those_of_the_python_script() -> Result<()> {
        // images(1, 2, 3, 32)[0][1, 2, 31, 24:] of scripts/bench_step.py
        let (images, _) = images(1, 2, 3, 32)?;
        let corner = images.get(1)?.get(2)?.get(31)?.narrow(0, 24, 8)?;
        let expected: [f32; 8] = [
            0.439_804_67,
            0.418_507_28,
            0.397_905_4,
            0.049_492_15,
            0.798_273_56,
            0.890_548_35,
            0.863_308_3,
            0.976_704_24,
        ];
        assert_eq!(corner.to_vec1::<f32>()?, expected);
        Ok(())
    }

    #[test]
    fn every_label_has_its_pattern() -> Result<()> {
        let (images, labels) = images(0, 16, 1, 28)?;
        assert_eq!(images.dims(), [16, 1, 28, 28]);
        assert!(labels.to_vec1::<u32>()?.iter().all(|&label| label < 10));
        let pixels = images.flatten_all()?.to_vec1::<f32>()?;
        assert!(pixels.iter().all(|pixel| (0.0..1.0).contains(pixel)));
        Ok(())
    }

    #[test]
    fn every_class_of_sequences_occurs() -> Result<()> {
        let labels = sequences(0, 256)?.1.to_vec1::<u32>()?;
        assert!((0..10).all(|class| labels.contains(&class)), "{labels:?}");
        Ok(())
    }
}
