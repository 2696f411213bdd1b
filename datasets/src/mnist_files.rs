//! MNIST from its four IDX files, checked as a whole.
//!
//! Other sets with the same shape and file names (Fashion-MNIST, KMNIST) can be read too.

use std::path::{Path, PathBuf};

use crate::{
    error::{DataFault, Error, Result},
    idx::{self, Limits},
    image_dataset::{ImageDataset, wrong_label},
    mnist::{CLASSES, Mnist, SIDE},
};

/// The names of the four files, without `.gz`: training images and labels, test images and
/// labels.
pub(crate) const FILE_NAMES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// The maximum number of images in a file. MNIST has 60,000. The maximum limits the memory for a
/// file.
const MOST_IMAGES: u64 = 1_000_000;

impl Mnist {
    /// Reads the four files from a directory.
    ///
    /// Each file may be plain or gzipped, and its name may have a dash or a dot before `idx`:
    /// `train-images-idx3-ubyte`, `train-images.idx3-ubyte`, either with `.gz`.
    ///
    /// # Errors
    /// Missing files, any error of [`idx::read_images`], images that are not 28 x 28, more than a
    /// million images, a label above 9, or different numbers of images and labels. Each error names
    /// the file and the cause.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let [train_images, train_labels, test_images, test_labels] = find_files(dir.as_ref())?;
        Ok(Self {
            train: read_pair(&train_images, &train_labels)?,
            test: read_pair(&test_images, &test_labels)?,
        })
    }
}

/// The paths of the four files.
fn find_files(dir: &Path) -> Result<[PathBuf; 4]> {
    let found = FILE_NAMES.map(|name| find_file(dir, name));
    if let [Some(a), Some(b), Some(c), Some(d)] = found {
        return Ok([a, b, c, d]);
    }
    Err(no_mnist(dir, &missing_files(dir)))
}

/// A directory lacks some of the four files.
pub(crate) fn no_mnist(dir: &Path, missing: &[&str]) -> Error {
    let four = "the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and \
                t10k-labels-idx1-ubyte, plain or .gz";
    let what = if !dir.exists() {
        format!("no such folder: an MNIST directory has {four}")
    } else if missing.len() == FILE_NAMES.len() {
        format!("not an MNIST directory: it has none of {four}")
    } else {
        format!("not an MNIST directory: {} not found (it has {four})", missing.join(", "))
    };
    DataFault::Missing.at(dir, what)
}

/// The files of the four that `dir` does not contain under any of their names.
pub(crate) fn missing_files(dir: &Path) -> Vec<&'static str> {
    FILE_NAMES.into_iter().filter(|name| find_file(dir, name).is_none()).collect()
}

/// The path of a file, by the first of its names that exists.
pub(crate) fn find_file(dir: &Path, name: &str) -> Option<PathBuf> {
    let dotted = name.replace("-idx", ".idx");
    let names = [name.to_owned(), dotted.clone(), format!("{name}.gz"), format!("{dotted}.gz")];
    names.iter().map(|name| dir.join(name)).find(|path| path.exists())
}

fn read_pair(images_path: &Path, labels_path: &Path) -> Result<ImageDataset> {
    let pixels = (SIDE * SIDE) as u64;
    let limits = Limits { bytes: MOST_IMAGES * pixels, image_size: Some([SIDE, SIDE]) };
    let images = idx::read_images(images_path, &limits)?;
    let labels = idx::read_labels(labels_path, &Limits { bytes: MOST_IMAGES, ..limits })?;
    if images.count != labels.len() {
        let what = format!(
            "{} images, but {} holds {} labels: they do not belong together",
            images.count,
            labels_path.display(),
            labels.len()
        );
        return Err(DataFault::Mismatch.at(images_path, what));
    }
    if let Some(index) = labels.iter().position(|&label| usize::from(label) >= CLASSES) {
        return Err(DataFault::Corrupt.at(labels_path, wrong_label(labels[index], index, CLASSES)));
    }
    let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
    ImageDataset::new(images.pixels, labels, [1, SIDE, SIDE], CLASSES)
}
