//! MNIST's structure: a training and a test set of labelled images of 28 x 28, ten classes.
//!
//! LeCun, Cortes, Burges: 60,000 training and 10,000 test images of handwritten digits. Two modules
//! make the sets: `mnist_files` reads them from IDX files, `synthetic` draws them.

use crate::{error::Result, image_dataset::ImageDataset, partition::Remainder};

/// Height and width of an image.
pub const SIDE: usize = 28;

/// The number of digits.
pub const CLASSES: usize = 10;

/// A training and a test set of digits.
#[derive(Debug, Clone)]
pub struct Mnist {
    /// The training set, images of shape (1, 28, 28).
    pub train: ImageDataset,
    /// The test set, images of shape (1, 28, 28).
    pub test: ImageDataset,
}

impl Mnist {
    /// One rank's contiguous share of both sets.
    ///
    /// # Errors
    /// Those of [`partition`](crate::partition()).
    pub fn partition(
        &self,
        global_rank: usize,
        world_size: usize,
        remainder: Remainder,
    ) -> Result<Self> {
        Ok(Self {
            train: self.train.partition(global_rank, world_size, remainder)?,
            test: self.test.partition(global_rank, world_size, remainder)?,
        })
    }
}
