//! What every contender trains: the same initial weights and batches, from an integer hash.
//!
//! scripts/bench_step.py has the same hash, number for number, so that PyTorch's losses can be
//! compared with ours to the last digits.

use candle_core::{Device, Result, Tensor};

/// How many batches are trained on in turn.
pub(crate) const BATCHES: usize = 8;

/// The parameters of the CNN: name, shape, fan-in.
pub(crate) const CNN: [(&str, &[usize], usize); 8] = [
    ("conv1.weight", &[20, 1, 5, 5], 25),
    ("conv1.bias", &[20], 25),
    ("conv2.weight", &[50, 20, 5, 5], 500),
    ("conv2.bias", &[50], 500),
    ("linear1.weight", &[500, 800], 800),
    ("linear1.bias", &[500], 800),
    ("linear2.weight", &[10, 500], 500),
    ("linear2.bias", &[10], 500),
];

/// The initial values of the CNN's parameters: uniform in ±1/√fan-in.
pub(crate) fn cnn_parameters() -> Result<Vec<(&'static str, Tensor)>> {
    let parameter = |(stream, &(name, shape, fan_in)): (usize, &(_, &[usize], usize))| {
        let count = shape.iter().product();
        let bound = (fan_in as f64).powf(-0.5) as f32;
        let values: Vec<f32> =
            (0..count).map(|i| (2.0 * uniform(stream, i) - 1.0) * bound).collect();
        Ok((name, Tensor::from_vec(values, shape, &Device::Cpu)?))
    };
    CNN.iter().enumerate().map(parameter).collect()
}

/// Images `(size, 1, 28, 28)` of ten coarse patterns under noise, and the number of each one's
/// pattern `(size,)`.
pub(crate) fn batch(index: usize, size: usize) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..size).map(|n| hash(200 + index, n) % 10).collect();
    let mut images = Vec::with_capacity(size * 784);
    for (n, &label) in labels.iter().enumerate() {
        for pixel in 0..784 {
            let (row, column) = (pixel / 28, pixel % 28);
            let block = label as usize * 49 + row / 4 * 7 + column / 4;
            let pattern = (hash(300, block) & 1) as f32;
            images.push(0.5 * uniform(100 + index, n * 784 + pixel) + 0.5 * pattern);
        }
    }
    let images = Tensor::from_vec(images, (size, 1, 28, 28), &Device::Cpu)?;
    Ok((images, Tensor::from_vec(labels, size, &Device::Cpu)?))
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
        // hashes(0, 2), hashes(3, 2) and hashes(300, 2) of scripts/bench_step.py
        let expected = [[0, 0x514E_28B7], [0x1B14_7DCC, 0x971E_9964], [0xCBAD_538B, 0xE37A_AB19]];
        let got = [0, 3, 300].map(|stream| [hash(stream, 0), hash(stream, 1)]);
        assert_eq!(got, expected);
    }

    #[test]
    fn every_label_has_its_pattern() -> Result<()> {
        let (images, labels) = batch(0, 16)?;
        assert_eq!(images.dims(), [16, 1, 28, 28]);
        assert!(labels.to_vec1::<u32>()?.iter().all(|&label| label < 10));
        let pixels = images.flatten_all()?.to_vec1::<f32>()?;
        assert!(pixels.iter().all(|pixel| (0.0..1.0).contains(pixel)));
        Ok(())
    }
}
