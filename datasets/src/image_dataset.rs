//! Labelled images in memory, stored as bytes.
//!
//! The pixels are stored as `u8`, as on disk, in one shared block. A clone or a view (a rank's
//! [partition](ImageDataset::partition)) copies no pixels. Sixty thousand MNIST images take 47 MB
//! instead of 188, and only the current batch is converted to floats.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use sha2::{Digest, Sha256};

use crate::{
    augment::Augmentation,
    digest::hexadecimal,
    error::{Error, Result, check_count},
    partition::{Remainder, partition},
    scaling::Scaling,
};

/// Images of one shape with a label each, or a view of some of them.
#[derive(Clone)]
pub struct ImageDataset {
    pixels: Arc<[u8]>,
    labels: Arc<[u32]>,
    shape: [usize; 3],
    classes: usize,
    /// The rows of the whole dataset that are in this view. `None`: all rows.
    rows: Option<Arc<[u32]>>,
    dropped: usize,
    shared_by: usize,
    scaling: Scaling,
    augmentation: Option<Augmentation>,
    /// Computed at the first request.
    sha256: Arc<OnceLock<String>>,
}

impl ImageDataset {
    /// A dataset from its parts.
    ///
    /// # Shapes
    /// `pixels` is (N, C, H, W) with the last dimension fastest, `shape` is (C, H, W), `labels`
    /// is (N,).
    ///
    /// # Errors
    /// A number of pixels that does not fit labels and shape, a label that is not below `classes`,
    /// or more samples than 32 bits can count.
    pub fn new(
        pixels: impl Into<Arc<[u8]>>,
        labels: impl Into<Arc<[u32]>>,
        shape: [usize; 3],
        classes: usize,
    ) -> Result<Self> {
        let (pixels, labels) = (pixels.into(), labels.into());
        let expected = shape
            .iter()
            .fold(labels.len() as u128, |product, &dim| product.saturating_mul(dim as u128));
        if pixels.len() as u128 != expected || shape.contains(&0) {
            return Err(Error::argument(format!(
                "a dataset of {} images of shape {shape:?} needs {expected} bytes of pixels, got {}",
                labels.len(),
                pixels.len()
            )));
        }
        check_count(labels.len())?;
        if let Some(index) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(Error::argument(wrong_label(labels[index], index, classes)));
        }
        Ok(Self {
            pixels,
            labels,
            shape,
            classes,
            rows: None,
            dropped: 0,
            shared_by: 1,
            scaling: Scaling::Unit,
            augmentation: None,
            sha256: Arc::default(),
        })
    }

    /// The same images with another conversion of bytes to floats. At first it is
    /// [`Scaling::Unit`].
    ///
    /// # Errors
    /// A scaling for another number of channels, or numbers with which pixels cannot be computed.
    pub fn scaled(self, scaling: Scaling) -> Result<Self> {
        scaling.check(self.shape[0])?;
        Ok(Self { scaling, ..self })
    }

    /// The same images, which are cropped and flipped at random when a model is trained with them.
    #[must_use]
    pub fn augmented(self, augmentation: Augmentation) -> Self {
        Self { augmentation: Some(augmentation), ..self }
    }

    /// The conversion of bytes to floats.
    pub fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// The random changes of images in training.
    pub fn augmentation(&self) -> Option<Augmentation> {
        self.augmentation
    }

    /// The number of images in this view.
    pub fn len(&self) -> usize {
        self.rows.as_ref().map_or(self.labels.len(), |rows| rows.len())
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Channels, height and width of an image.
    pub fn image_shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Bytes of an image: channels times height times width.
    pub fn image_bytes(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of classes. Every label is below it.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The number of samples that [`partition`](Self::partition) left out, over all ranks.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// The number of ranks among which [`partition`](Self::partition) divided the samples. 1 for a
    /// whole dataset.
    pub fn shared_by(&self) -> usize {
        self.shared_by
    }

    /// An image, (C, H, W), and its label. `None` after the end.
    pub fn get(&self, index: usize) -> Option<(&[u8], u32)> {
        let row = self.row(index)?;
        let bytes = self.image_bytes();
        Some((self.pixels.get(row * bytes..(row + 1) * bytes)?, *self.labels.get(row)?))
    }

    /// SHA-256, in hexadecimal, of the shape, the number of classes, and every label and pixel in
    /// order. Datasets with equal digests train the same model.
    ///
    /// # Cost
    /// The first call reads all pixels (about 50 ms for MNIST's training set on a processor with
    /// SHA instructions). Later calls on this dataset and its clones cost nothing.
    pub fn sha256(&self) -> &str {
        self.sha256.get_or_init(|| {
            let [channels, height, width] = self.shape;
            let sizes = [channels, height, width, self.classes, self.len()];
            let mut hasher = Sha256::new();
            sizes.iter().for_each(|&size| hasher.update((size as u64).to_le_bytes()));
            for (pixels, label) in (0..self.len()).filter_map(|index| self.get(index)) {
                hasher.update(label.to_le_bytes());
                hasher.update(pixels);
            }
            hexadecimal(&hasher.finalize())
        })
    }

    /// The sample's index in the whole dataset, which is the same in every view.
    pub(crate) fn row(&self, index: usize) -> Option<usize> {
        match &self.rows {
            Some(rows) => rows.get(index).map(|&row| row as usize),
            None => (index < self.labels.len()).then_some(index),
        }
    }

    /// The share of one rank, a contiguous range: see [`partition`].
    ///
    /// # Errors
    /// Those of [`partition`].
    pub fn partition(
        &self,
        global_rank: usize,
        world_size: usize,
        remainder: Remainder,
    ) -> Result<Self> {
        let part = partition(self.len(), global_rank, world_size, remainder)?;
        let shared_by = self.shared_by * world_size;
        Ok(Self { dropped: part.dropped, shared_by, ..self.view(part.indices()) })
    }

    /// A view of the first `count` samples, or of all if there are fewer.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        self.view(0..count.min(self.len()))
    }

    /// A view of chosen samples of this view. Indices after the end are skipped.
    fn view(&self, indices: impl Iterator<Item = usize>) -> Self {
        let rows = indices.filter_map(|index| self.row(index)).map(|row| row as u32).collect();
        Self { rows: Some(rows), sha256: Arc::default(), ..self.clone() }
    }
}

/// What is wrong with a label that is not the number of a class.
pub(crate) fn wrong_label(label: impl fmt::Display, index: usize, classes: usize) -> String {
    format!("label {label} at index {index}, labels must be below {classes}")
}

impl fmt::Debug for ImageDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageDataset")
            .field("len", &self.len())
            .field("image_shape", &self.shape)
            .field("classes", &self.classes)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five images of 1 x 1 x 2 pixels: image i is [i, 10 + i] with label i.
    fn five() -> ImageDataset {
        let pixels: Vec<u8> = (0..5).flat_map(|i| [i, 10 + i]).collect();
        ImageDataset::new(pixels, vec![0, 1, 2, 3, 4], [1, 1, 2], 5).unwrap()
    }

    #[test]
    fn a_sample_is_its_pixels_and_its_label() {
        let data = five();
        assert_eq!((data.len(), data.classes(), data.image_shape()), (5, 5, [1, 1, 2]));
        assert_eq!(data.get(3), Some((&[3, 13][..], 3)));
        assert_eq!(data.get(5), None);
    }

    #[test]
    fn views_share_the_pixels_and_nest() {
        let data = five();
        let second = data.partition(1, 2, Remainder::Drop).unwrap();
        assert!(Arc::ptr_eq(&data.pixels, &second.pixels));
        assert_eq!((second.len(), second.dropped()), (2, 1));
        assert_eq!(second.get(0), Some((&[2, 12][..], 2)));
        let nested = second.partition(1, 2, Remainder::Drop).unwrap();
        assert_eq!((nested.len(), nested.get(0)), (1, Some((&[3, 13][..], 3))));
        assert_eq!(nested.get(1), None);
        assert_eq!(data.first(2).len(), 2);
        assert_eq!(data.first(9).len(), 5);
    }

    #[test]
    fn padding_wraps_to_the_first_samples() {
        let last = five().partition(1, 2, Remainder::Pad).unwrap();
        let labels: Vec<u32> = (0..3).filter_map(|i| last.get(i)).map(|(_, label)| label).collect();
        assert_eq!(labels, [3, 4, 0]);
    }

    #[test]
    fn more_classes_than_a_byte_can_name_are_possible() {
        let labels = [0, 999, 256];
        let data = ImageDataset::new(vec![1, 2, 3], labels, [1, 1, 1], 1000).unwrap();
        assert_eq!(data.get(1), Some((&[2][..], 999)));
    }

    #[test]
    fn the_digest_shows_every_difference_and_nothing_else() {
        let data = five();
        let digest = data.sha256().to_owned();
        assert_eq!((digest.len(), data.clone().sha256()), (64, &*digest));
        assert_eq!(five().sha256(), digest);
        let pixels: Vec<u8> = (0..5).flat_map(|i| [i, 10 + i]).collect();
        let labels = vec![0, 1, 2, 3, 4];
        let new = |pixels: &[u8], labels: &[u32], shape, classes| {
            let data = ImageDataset::new(pixels, labels, shape, classes).unwrap();
            data.sha256().to_owned()
        };
        assert_eq!(new(&pixels, &labels, [1, 1, 2], 5), digest);
        let mut other = pixels.clone();
        other[9] = 0;
        assert_ne!(new(&other, &labels, [1, 1, 2], 5), digest);
        assert_ne!(new(&pixels, &[0, 1, 2, 4, 3], [1, 1, 2], 5), digest);
        assert_ne!(new(&pixels, &labels, [1, 2, 1], 5), digest);
        assert_ne!(new(&pixels, &labels, [1, 1, 2], 6), digest);
        // The digest of a view depends only on its samples.
        assert_ne!(data.first(4).sha256(), digest);
        assert_eq!(data.first(5).sha256(), digest);
        assert_eq!(data.first(2).sha256(), new(&pixels[..4], &labels[..2], [1, 1, 2], 5));
    }

    #[test]
    fn parts_that_do_not_fit_are_errors() {
        let error = ImageDataset::new(vec![0; 9], vec![0; 5], [1, 1, 2], 5).unwrap_err();
        assert!(error.to_string().ends_with("needs 10 bytes of pixels, got 9"), "{error}");
        let error = ImageDataset::new(vec![0; 4], vec![0, 7], [1, 1, 2], 5).unwrap_err();
        assert_eq!(error.to_string(), "label 7 at index 1, labels must be below 5");
        let huge = [usize::MAX, usize::MAX, usize::MAX];
        assert!(ImageDataset::new(vec![0; 4], vec![0, 0], huge, 5).is_err());
    }
}
