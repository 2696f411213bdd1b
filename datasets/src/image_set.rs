//! The published sets of labelled images that this crate reads, downloads and has stand-ins for.

use std::{fmt, path::Path};

use crate::{
    cifar::{self, CIFAR_10, CIFAR_100, CifarFiles},
    error::{Error, Result},
    image_dataset::ImageDataset,
    mnist::Mnist,
    mnist_files::{missing_files, no_mnist},
    synthetic::colored,
};

/// A published set of labelled images.
///
/// ```
/// use candelabrum_datasets::ImageSet;
///
/// # fn main() -> candelabrum_datasets::Result<()> {
/// // `ImageSet::Cifar10.open(dir)?` reads the real ones.
/// let images = ImageSet::Cifar10.synthetic(0, 200, 50)?;
/// assert_eq!(images.train.image_shape(), [3, 32, 32]);
/// assert_eq!((images.train.len(), images.train.classes()), (200, 10));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ImageSet {
    /// Handwritten digits, 28 x 28, in gray.
    #[default]
    Mnist,
    /// Clothes in MNIST's format (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747).
    FashionMnist,
    /// Ten classes of things and animals, 32 x 32, in color (Krizhevsky 2009).
    Cifar10,
    /// A hundred classes, 32 x 32, in color (Krizhevsky 2009).
    Cifar100,
}

/// The training and the test images of a set.
#[derive(Debug, Clone)]
pub struct ImageSplit {
    /// The images for training.
    pub train: ImageDataset,
    /// The images for tests.
    pub test: ImageDataset,
}

impl ImageSet {
    /// All sets.
    pub const ALL: [Self; 4] = [Self::Mnist, Self::FashionMnist, Self::Cifar10, Self::Cifar100];

    /// The name in options and in files: `mnist`, `fashion-mnist`, `cifar10` or `cifar100`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mnist => "mnist",
            Self::FashionMnist => "fashion-mnist",
            Self::Cifar10 => "cifar10",
            Self::Cifar100 => "cifar100",
        }
    }

    /// The name in sentences.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Mnist => "MNIST",
            Self::FashionMnist => "Fashion-MNIST",
            Self::Cifar10 => "CIFAR-10",
            Self::Cifar100 => "CIFAR-100",
        }
    }

    /// What stands for the set where it is not there.
    pub(crate) fn stand_in(self) -> &'static str {
        match self.cifar() {
            None => "synthetic digits",
            Some(_) => "synthetic colored digits",
        }
    }

    /// Reads a set from a directory: the four files of [`Mnist::open`] for the first two sets. For CIFAR the
    /// archive `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz`, or its files, which may be in the
    /// directory or in the archive's folder below it.
    ///
    /// CIFAR-100's labels are the fine ones.
    ///
    /// # Errors
    /// Those of [`Mnist::open`]. For CIFAR: missing files, a damaged archive, a file whose size is no multiple
    /// of a record, a label outside the classes. Each error names the file and, if it is about a record, its
    /// number.
    pub fn open(self, dir: impl AsRef<Path>) -> Result<ImageSplit> {
        let dir = dir.as_ref();
        match self.cifar() {
            None => Mnist::open(dir).map(|Mnist { train, test }| ImageSplit { train, test }),
            Some(layout) => layout.open(dir).map(|[train, test]| ImageSplit { train, test }),
        }
    }

    /// Generated images in the shape of the set, where there is no network: the [digits](Mnist::synthetic),
    /// and for CIFAR the digits in color, 32 x 32. A class of CIFAR-100 is a digit in one of ten colors.
    ///
    /// # Errors
    /// Those of [`Mnist::synthetic`].
    pub fn synthetic(self, seed: u64, train: usize, test: usize) -> Result<ImageSplit> {
        let Mnist { train, test } = Mnist::synthetic(seed, train, test)?;
        if self.cifar().is_none() {
            return Ok(ImageSplit { train, test });
        }
        let has_color_classes = self == Self::Cifar100;
        let [train, test] = [(train, 0), (test, 1)].map(|(digits, part)| {
            colored::colored(&digits, seed, part, cifar::SIDE, has_color_classes)
        });
        Ok(ImageSplit { train: train?, test: test? })
    }

    /// The files of the set that a directory does not have.
    pub(crate) fn missing(self, dir: &Path) -> Vec<&'static str> {
        self.cifar().map_or_else(|| missing_files(dir), |layout| layout.missing(dir))
    }

    /// A directory lacks some files of the set.
    pub(crate) fn not_in(self, dir: &Path) -> Error {
        let mnist = || no_mnist(dir, &missing_files(dir));
        self.cifar().map_or_else(mnist, |layout| layout.not_in(dir))
    }

    fn cifar(self) -> Option<&'static CifarFiles> {
        match self {
            Self::Mnist | Self::FashionMnist => None,
            Self::Cifar10 => Some(&CIFAR_10),
            Self::Cifar100 => Some(&CIFAR_100),
        }
    }
}

impl fmt::Display for ImageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
