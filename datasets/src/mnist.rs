//! MNIST: four IDX files, validated as a whole.
//!
//! LeCun, Cortes, Burges: 60,000 training and 10,000 test images of 28 x 28, ten classes. Readers
//! of other sets in the same shape and naming (Fashion-MNIST, KMNIST) get in by the same door.

use std::path::{Path, PathBuf};

use crate::{
    error::{Error, Result},
    idx,
    image_dataset::ImageDataset,
    partition::Remainder,
    source::Source,
};

/// Height and width of an image.
pub const SIDE: usize = 28;

/// The number of digits.
pub const CLASSES: usize = 10;

/// The names of the four files, without `.gz`: training images and labels, test images and
/// labels.
pub const FILE_NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// A training and a test set of digits.
#[derive(Debug, Clone)]
pub struct Mnist {
    /// The training set, images of shape (1, 28, 28).
    pub train: ImageDataset,
    /// The test set, images of shape (1, 28, 28).
    pub test: ImageDataset,
    /// Where it came from, in a form that other ranks can open.
    pub source: Source,
}

impl Mnist {
    /// Reads the four files from a directory.
    ///
    /// Each may be plain or gzipped, and be named with a dash or a dot before `idx`:
    /// `train-images-idx3-ubyte`, `train-images.idx3-ubyte`, either with `.gz`.
    ///
    /// # Errors
    /// Names the file and the cause: files missing, any error of [`idx::read_images`], images
    /// that are not 28 x 28, a label above 9, images and labels that differ in number.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let [train_images, train_labels, test_images, test_labels] = find_files(dir)?;
        Ok(Self {
            train: read_pair(&train_images, &train_labels)?,
            test: read_pair(&test_images, &test_labels)?,
            source: Source::Directory(dir.into()),
        })
    }

    /// What it should be called to the user: `mnist` or `synthetic digits`.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    /// One rank's contiguous share of both sets.
    ///
    /// # Errors
    /// As [`partition`](crate::partition()).
    pub fn partition(
        &self,
        global_rank: usize,
        world_size: usize,
        remainder: Remainder,
    ) -> Result<Self> {
        Ok(Self {
            train: self.train.partition(global_rank, world_size, remainder)?,
            test: self.test.partition(global_rank, world_size, remainder)?,
            source: self.source.clone(),
        })
    }
}

/// The paths of the four files.
fn find_files(dir: &Path) -> Result<[PathBuf; 4]> {
    let found = FILE_NAMES.map(|name| find_file(dir, name));
    if let [Some(a), Some(b), Some(c), Some(d)] = found {
        return Ok([a, b, c, d]);
    }
    let missing = missing_files(dir).into_iter().map(String::from).collect();
    Err(Error::FilesMissing { dir: dir.into(), missing })
}

/// Which of the four files a directory lacks under every name.
pub(crate) fn missing_files(dir: &Path) -> Vec<&'static str> {
    FILE_NAMES.into_iter().filter(|name| find_file(dir, name).is_none()).collect()
}

/// The path of a file under the first of its names that exists.
pub(crate) fn find_file(dir: &Path, name: &str) -> Option<PathBuf> {
    let dotted = name.replace("-idx", ".idx");
    let names = [name.to_owned(), dotted.clone(), format!("{name}.gz"), format!("{dotted}.gz")];
    names.iter().map(|name| dir.join(name)).find(|path| path.exists())
}

fn read_pair(images_path: &Path, labels_path: &Path) -> Result<ImageDataset> {
    let images = idx::read_images(images_path)?;
    let (rows, columns) = (images.rows, images.columns);
    if (rows, columns) != (SIDE, SIDE) {
        return Err(Error::ImageSize { path: images_path.into(), rows, columns });
    }
    let labels = idx::read_labels(labels_path)?;
    if images.count != labels.len() {
        return Err(Error::CountMismatch {
            images: images_path.into(),
            image_count: images.count,
            labels: labels_path.into(),
            label_count: labels.len(),
        });
    }
    if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        let label = labels[index];
        return Err(Error::LabelOutOfRange {
            path: labels_path.into(),
            index,
            label,
            classes: CLASSES,
        });
    }
    ImageDataset::new(images.pixels, labels, [1, SIDE, SIDE], CLASSES)
}
