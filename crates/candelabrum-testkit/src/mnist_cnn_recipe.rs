//! Weights and batches of the golden training run of the MNIST CNN.
//!
//! `mnist_cnn_sgd` of `scripts/golden` computes the same numbers and describes the recipe: 20 steps
//! of SGD (lr 0.005, momentum 0.9, weight decay 1e-5), step `s` on batch `s % 4`.

use candle_core::{DType, Device, Result, Tensor};

use crate::random::{integers, uniform, units};

/// Images per batch.
pub const BATCH_SIZE: usize = 64;

/// Number of batches that the run rotates through.
pub const BATCHES: u64 = 4;

/// Training steps of the run.
pub const STEPS: u64 = 20;

/// The parameters and their shapes, in the order of the recipe.
pub const SHAPES: [(&str, &[usize]); 8] = [
    ("conv1.weight", &[20, 1, 5, 5]),
    ("conv1.bias", &[20]),
    ("conv2.weight", &[50, 20, 5, 5]),
    ("conv2.bias", &[50]),
    ("linear1.weight", &[500, 800]),
    ("linear1.bias", &[500]),
    ("linear2.weight", &[10, 500]),
    ("linear2.bias", &[10]),
];

/// The initial parameters by name, f32, in the order of [`SHAPES`].
///
/// # Errors
///
/// None in practice: candle makes f32 tensors.
pub fn parameters() -> Result<Vec<(&'static str, Tensor)>> {
    let parameter = |(seed, (name, shape)): (u64, (&'static str, &'static [usize]))| {
        let bound = match shape {
            [out, input, kernel @ ..] => {
                let area: usize = kernel.iter().product();
                (6.0 / ((out + input) * area) as f64).sqrt()
            }
            _ => 0.1,
        };
        Ok((name, uniform(shape, seed, -bound, bound, DType::F32)?))
    };
    (7000..).zip(SHAPES).map(parameter).collect()
}

/// Batch `index % 4`: images (64, 1, 28, 28) in f32 and labels (64) in u32.
///
/// # Errors
///
/// None in practice: the data fits the shapes.
pub fn batch(index: u64) -> Result<(Tensor, Tensor)> {
    let index = index % BATCHES;
    let labels = integers(BATCH_SIZE, 7200 + index, 10)?;
    let classes = labels.to_vec1::<u32>()?;
    let pixel = |(i, unit): (usize, f64)| {
        let (image, y, x) = (i / (28 * 28), i / 28 % 28, i % 28);
        let square = y / 7 * 4 + x / 7;
        let bright = square == classes[image] as usize;
        (0.5 * unit + if bright { 0.5 } else { 0.0 }) as f32
    };
    let pixels = units(7100 + index, BATCH_SIZE * 28 * 28).enumerate().map(pixel).collect();
    let images = Tensor::from_vec::<_, f32>(pixels, (BATCH_SIZE, 1, 28, 28), &Device::Cpu)?;
    Ok((images, labels))
}
