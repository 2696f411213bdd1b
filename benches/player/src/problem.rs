//! The common training problem of all contenders: batches from an integer hash, or from a file.
//!
//! scripts/bench_step.py computes the same hash, number for number, and reads the same files, so PyTorch's losses
//! can be compared with ours to the last digits.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, ensure};
use candle_core::{Device, Result, Tensor};

use crate::hash::{LABELS, NOISE, PATTERNS, TOKENS, hash, uniform};
use crate::networks::{InputKind, Network};
use crate::sizes::{GRU, LSTM, NetworkSizes};

/// InputKind and labels, `(size,)` or one at every position.
pub(crate) type ProblemBatches = Vec<(Tensor, Tensor)>;

/// The batches of a file.
pub(crate) struct TrainingProblem {
    /// Used in turn.
    pub(crate) train: ProblemBatches,
    /// Never trained on.
    pub(crate) test: ProblemBatches,
    pub(crate) sizes: NetworkSizes,
}

/// Batches of `size` from the hash, which the rank uses in turn. Those of the ranks differ.
pub(crate) fn drawn(network: &Network, size: usize, rank: usize) -> Result<ProblemBatches> {
    (rank * BATCHES..(rank + 1) * BATCHES).map(|index| batch(network, index, size)).collect()
}

/// Batches of `size` from the hash that no rank trains on.
pub(crate) fn drawn_tests(network: &Network, size: usize) -> Result<ProblemBatches> {
    let first = MOST_RANKS * BATCHES;
    (first..first + TESTS).map(|index| batch(network, index, size)).collect()
}

impl TrainingProblem {
    /// The batches of `size` of a file that `bench-player problem` wrote.
    pub(crate) fn read(path: &Path, size: usize) -> anyhow::Result<Self> {
        let file = candle_core::safetensors::load(path, &Device::Cpu)
            .with_context(|| path.display().to_string())?;
        let named = |name: &str| {
            file.get(name).with_context(|| format!("{}: there is no {name}", path.display()))
        };
        let number =
            |name: &str| -> anyhow::Result<usize> { Ok(named(name)?.to_scalar::<u32>()? as usize) };
        let batches = |part: &str| -> anyhow::Result<ProblemBatches> {
            let [xs, ys] = ["xs", "ys"].map(|name| named(&format!("{part}.{name}")));
            let (xs, ys) = (xs?, ys?);
            let count = xs.dim(0)?;
            ensure!(count > 0 && ys.dim(0)? == count, "{}: {part} has no examples", path.display());
            let batch = |first: usize| {
                let size = size.min(count - first);
                Ok((xs.narrow(0, first, size)?, ys.narrow(0, first, size)?))
            };
            (0..count).step_by(size).map(batch).collect()
        };
        let sizes = NetworkSizes { vocabulary: number("vocabulary")?, classes: number("classes")? };
        Ok(Self { train: batches("train")?, test: batches("test")?, sizes })
    }

    /// Writes the batches to a file, for [`Self::read`] and for the Python script.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = HashMap::new();
        for (part, batches) in [("train", &self.train), ("test", &self.test)] {
            let (xs, ys): (Vec<_>, Vec<_>) = batches.iter().cloned().unzip();
            file.insert(format!("{part}.xs"), Tensor::cat(&xs, 0)?);
            file.insert(format!("{part}.ys"), Tensor::cat(&ys, 0)?);
        }
        let NetworkSizes { vocabulary, classes } = self.sizes;
        for (name, number) in [("vocabulary", vocabulary), ("classes", classes)] {
            file.insert(name.to_owned(), Tensor::new(number as u32, &Device::Cpu)?);
        }
        candle_core::safetensors::save(&file, path).with_context(|| path.display().to_string())
    }
}

/// The numbers of batches that a rank uses in turn, and of those for an evaluation.
pub(crate) const BATCHES: usize = 8;
const TESTS: usize = 4;
const MOST_RANKS: usize = 12;

/// The number of tokens in a sequence of the network `gru`.
const SEQUENCE: usize = 32;

/// The inputs and labels of one of all ranks' batches.
pub(crate) fn batch(network: &Network, index: usize, size: usize) -> Result<(Tensor, Tensor)> {
    match network.inputs {
        InputKind::Images(channels, side) => images(index, size, channels, side),
        InputKind::Rows => {
            let (xs, ys) = images(index, size, 1, 28)?;
            Ok((xs.flatten_from(1)?, ys))
        }
        InputKind::Sequences => sequences(index, size),
        InputKind::Texts(length) => texts(index, size, length, LSTM.vocabulary as u32),
        InputKind::Padded(shape) => padded(network, index, &[&[size], shape].concat()),
    }
}

/// Images `(size, channels, side, side)` of ten coarse patterns with noise, and the number of each
/// image's pattern.
fn images(index: usize, size: usize, channels: usize, side: usize) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..size).map(|n| hash(LABELS + index, n) % 10).collect();
    let (pixels, blocks) = (channels * side * side, side.div_ceil(4));
    let mut images = Vec::with_capacity(size * pixels);
    for (n, &label) in labels.iter().enumerate() {
        for pixel in 0..pixels {
            let (row, column) = (pixel / side, pixel % side); // rows of all channels
            let (channel, row) = (row / side, row % side);
            let place = (label as usize * channels + channel) * blocks + row / 4;
            let block = place * blocks + column / 4;
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

/// Texts `(size, ..., words)` of a tenth or more of the words that have room, and for each of the `size` rows whether most
/// words are of the vocabulary's first half. Behind a text are zeros.
fn padded(network: &Network, index: usize, shape: &[usize]) -> Result<(Tensor, Tensor)> {
    let vocabulary = network.drawn_sizes().vocabulary as u32;
    let (size, room) = (shape[0], shape[shape.len() - 1]);
    let least = room.div_ceil(10);
    let mut tokens = Vec::with_capacity(shape.iter().product());
    for row in 0..shape.iter().product::<usize>() / room {
        let length = least + hash(NOISE + index, row) as usize % (room - least + 1);
        tokens.extend((0..room).map(|place| match place < length {
            true => 1 + hash(TOKENS + index, row * room + place) % (vocabulary - 1),
            false => 0,
        }));
    }
    let label = |row: &[u32]| {
        let words = row.iter().filter(|&&token| token > 0);
        let low = words.clone().filter(|&&token| token < vocabulary / 2).count();
        u32::from(2 * low > words.count())
    };
    let labels: Vec<u32> = tokens.chunks_exact(tokens.len() / size).map(label).collect();
    let tokens = Tensor::from_vec(tokens, shape, &Device::Cpu)?;
    Ok((tokens, Tensor::from_vec(labels, size, &Device::Cpu)?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
