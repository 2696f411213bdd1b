//! Generated digits that look handwritten, for training without MNIST.
//!
//! A digit is a few strokes, each a smooth curve (Catmull-Rom) through some control points in a
//! unit box. For a sample the points are jittered. The digit is rotated, sheared, scaled and moved
//! at random, drawn with a pen of random width, blurred and covered with noise. Shapes, types and
//! label order are MNIST's: 28 x 28 bytes, ten classes, balanced and shuffled.
//!
//! The distortions make the task hard enough to be useful: a linear model stays below 92% test
//! accuracy (`tests/it/synthetic.rs` trains one), and a small convolutional network exceeds 97% within
//! a few epochs.
//!
//! Sample i depends only on (seed, set, i), for any number of samples or threads. Only
//! `+ - * / sqrt` are used, and no sine. These operations are rounded exactly on every platform, so
//! the images are the same bit for bit everywhere.

pub(crate) mod colored;
mod draw;
mod glyphs;

use std::{num::NonZero, thread};

use crate::{
    error::{Error, Result, check_count},
    image_dataset::ImageDataset,
    mnist::{CLASSES, Mnist, SIDE},
    rng::{Purpose, rng, shuffle},
};

/// The default number of training images.
pub const TRAIN_LEN: usize = 12_000;

/// The default number of test images.
pub const TEST_LEN: usize = 2_000;

const PIXELS: usize = SIDE * SIDE;

impl Mnist {
    /// Synthetic digits in the shape of MNIST: `train` and `test` images, (1, 28, 28) each.
    ///
    /// # Errors
    /// A set without images, or with more than 32 bits can count.
    ///
    /// # Cost
    /// About a second of one core for 50,000 images. All cores are used.
    pub fn synthetic(seed: u64, train: usize, test: usize) -> Result<Self> {
        Ok(Self {
            train: generate(seed, train, Purpose::SyntheticTrain, Purpose::SyntheticTrainLabels)?,
            test: generate(seed, test, Purpose::SyntheticTest, Purpose::SyntheticTestLabels)?,
        })
    }
}

fn generate(seed: u64, len: usize, images: Purpose, labels: Purpose) -> Result<ImageDataset> {
    if len == 0 {
        return Err(Error::empty_dataset());
    }
    check_count(len)?;
    let labels = balanced_labels(seed, len, labels);
    let mut pixels = vec![0; len * PIXELS];
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(16);
    let share = len.div_ceil(threads);
    thread::scope(|scope| {
        let shares = pixels.chunks_mut(share * PIXELS).zip(labels.chunks(share)).enumerate();
        for (chunk, (pixels, labels)) in shares {
            scope.spawn(move || {
                let images_and_labels = pixels.chunks_exact_mut(PIXELS).zip(labels);
                for (i, (image, &label)) in images_and_labels.enumerate() {
                    let sample = (chunk * share + i) as u64;
                    draw::draw(&mut rng(seed, images, 0, sample), label, image);
                }
            });
        }
    });
    let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
    ImageDataset::new(pixels, labels, [1, SIDE, SIDE], CLASSES)
}

/// Every block of ten samples has every label once, in random order.
fn balanced_labels(seed: u64, len: usize, purpose: Purpose) -> Vec<u8> {
    let blocks = (0..len.div_ceil(CLASSES) as u64).flat_map(|block| {
        let mut digits: [u8; CLASSES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        shuffle(&mut rng(seed, purpose, 0, block), &mut digits);
        digits
    });
    blocks.take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_balanced_and_shuffled() {
        let data = Mnist::synthetic(3, 1000, 10).unwrap().train;
        let labels: Vec<u32> = (0..1000).filter_map(|i| data.get(i)).map(|(_, l)| l).collect();
        for digit in 0..10 {
            assert_eq!(labels.iter().filter(|&&label| label == digit).count(), 100);
        }
        assert_ne!(labels[..10], labels[10..20]);
    }

    #[test]
    fn a_sample_does_not_depend_on_how_many_there_are() {
        let many = Mnist::synthetic(1, 101, 40).unwrap();
        let few = Mnist::synthetic(1, 7, 3).unwrap();
        for i in 0..7 {
            assert_eq!(many.train.get(i), few.train.get(i));
        }
        assert_eq!(many.test.get(2), few.test.get(2));
        assert_ne!(many.test.get(2), many.train.get(2));
        let other_seed = Mnist::synthetic(2, 7, 3).unwrap();
        assert_ne!(other_seed.train.get(0), few.train.get(0));
    }

    #[test]
    fn every_image_shows_something() {
        let data = Mnist::synthetic(0, 500, 1).unwrap().train;
        for (image, label) in (0..500).filter_map(|i| data.get(i)) {
            let bright = image.iter().filter(|&&pixel| pixel > 100).count();
            assert!((10..300).contains(&bright), "{bright} bright pixels in a {label}");
        }
    }

    #[test]
    fn no_images_are_an_error() {
        let message = Mnist::synthetic(0, 0, 10).unwrap_err().to_string();
        assert_eq!(message, "the dataset is empty");
    }
}
