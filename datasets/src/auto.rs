//! The choice of the images: the user's directory, existing files, a download, or synthetic digits.
//!
//! `auto` uses the user's directory. If files are missing there or corrupt, this is an error: a
//! directory that the user names is never ignored silently. Without one, `auto` looks in
//! `$MNIST_DIR`, then in the cache, then downloads. If all of these fail, it uses the synthetic
//! digits *and reports the reason*.
//!
//! In a distributed run one rank of each host calls [`locate`], so that the files are downloaded
//! once per host, and sends the result to the other ranks.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use crate::{
    cache::cache_dir,
    download::{HttpTransport, RemoteFiles, check_files, download},
    environment::Environment,
    error::{DataFault, Error, Result},
    image_dataset::ImageDataset,
    image_set::{ImageSet, ImageSplit},
    mnist_files::FILE_NAMES,
    source::Source,
};

/// The value of `--dataset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatasetKind {
    /// The program's own set ([`DataRequest::set`], MNIST by default) if it is available, otherwise
    /// synthetic images in its shape.
    #[default]
    Auto,
    /// MNIST or an error.
    Mnist,
    /// Fashion-MNIST or an error.
    FashionMnist,
    /// CIFAR-10 or an error.
    Cifar10,
    /// CIFAR-100 or an error.
    Cifar100,
    /// Synthetic images in the shape of the program's own set.
    Synthetic,
}

impl DatasetKind {
    const ALL: [Self; 6] = [
        Self::Auto,
        Self::Mnist,
        Self::FashionMnist,
        Self::Cifar10,
        Self::Cifar100,
        Self::Synthetic,
    ];

    /// The set that is named, if one is.
    fn set(self) -> Option<ImageSet> {
        match self {
            Self::Auto | Self::Synthetic => None,
            Self::Mnist => Some(ImageSet::Mnist),
            Self::FashionMnist => Some(ImageSet::FashionMnist),
            Self::Cifar10 => Some(ImageSet::Cifar10),
            Self::Cifar100 => Some(ImageSet::Cifar100),
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = if *self == Self::Synthetic { "synthetic" } else { "auto" };
        f.write_str(self.set().map_or(other, ImageSet::name))
    }
}

impl FromStr for DatasetKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name).ok_or_else(|| {
            Error::argument(format!(
                "{name:?} is no dataset: choose auto, mnist, fashion-mnist, cifar10, cifar100 or \
                 synthetic"
            ))
        })
    }
}

/// Everything that determines the data.
#[derive(Debug, Clone, Default)]
pub struct DataRequest {
    /// The kind of dataset.
    pub kind: DatasetKind,
    /// The set that [`DatasetKind::Auto`] and [`DatasetKind::Synthetic`] stand for.
    pub set: ImageSet,
    /// The user's directory.
    pub data_dir: Option<PathBuf>,
    /// The environment variables with other directories.
    pub environment: Environment,
    /// The seed of synthetic images.
    pub seed: u64,
    /// The time that downloads into the cache may take, all together. `None` forbids downloads.
    pub download: Option<Duration>,
    /// Whether to hide the progress bar.
    pub quiet: bool,
}

/// The located data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// A source that every rank of this host can open.
    pub source: Source,
    /// Why the images are synthetic although nobody requested this: the failed attempts.
    pub note: Option<String>,
}

/// The data, its name and, if it is not the preferred data, the reason.
#[derive(Debug, Clone)]
pub struct ImageDatasets {
    /// The images for training.
    pub train: ImageDataset,
    /// The images for tests.
    pub test: ImageDataset,
    /// The name of the set, for instance `mnist`, or `synthetic digits` or `synthetic colored digits`.
    pub name: &'static str,
    /// Why the images are synthetic although nobody requested this: the failed attempts.
    pub note: Option<String>,
}

impl Located {
    /// Reads or generates the data.
    ///
    /// # Errors
    /// Those of [`Source::open`].
    pub fn open(self) -> Result<ImageDatasets> {
        let ImageSplit { train, test } = self.source.open()?;
        Ok(ImageDatasets { train, test, name: self.source.name(), note: self.note })
    }
}

/// Locates the data, and downloads it if that is necessary and allowed.
///
/// # Errors
/// A `data_dir` without the files of the set, a `$MNIST_DIR` with only some of them, or, if the request
/// names a set, none in any of the places.
pub fn locate(request: &DataRequest) -> Result<Located> {
    let transport = HttpTransport::new(request.download.unwrap_or_default());
    locate_with(request, &RemoteFiles::new(wanted(request), &transport))
}

/// [`locate`] with other download addresses.
///
/// # Errors
/// Those of [`locate`].
pub fn locate_with(request: &DataRequest, remote: &RemoteFiles<'_>) -> Result<Located> {
    let set = wanted(request);
    if request.kind == DatasetKind::Synthetic {
        return Ok(Located { source: Source::synthetic(set, request.seed), note: None });
    }
    if let Some(dir) = &request.data_dir {
        let is_whole = set.missing(dir).is_empty();
        return if is_whole { found(set, dir) } else { Err(set.not_in(dir)) };
    }
    let mut tried = Vec::new();
    if let Some(dir) = search(request, remote, &mut tried)? {
        return found(set, &dir);
    }
    if request.kind != DatasetKind::Auto {
        return Err(Error::NotFound { set: set.name(), tried });
    }
    let note = format!(
        "{} was not found, so this run trains on {}. Tried: {}",
        set.title(),
        set.stand_in(),
        tried.join("; ")
    );
    Ok(Located { source: Source::synthetic(set, request.seed), note: Some(note) })
}

/// The set that is requested.
fn wanted(request: &DataRequest) -> ImageSet {
    request.kind.set().unwrap_or(request.set)
}

/// A directory with the files of the set, from the places that are not on the command line. Failed
/// attempts are added to `tried`.
fn search(
    request: &DataRequest,
    remote: &RemoteFiles<'_>,
    tried: &mut Vec<String>,
) -> Result<Option<PathBuf>> {
    let set = wanted(request);
    match &request.environment.mnist_dir {
        _ if set != ImageSet::Mnist => {}
        None => tried.push("$MNIST_DIR is not set".into()),
        Some(dir) => {
            let missing = set.missing(dir);
            if missing.is_empty() {
                return Ok(Some(dir.clone()));
            }
            if missing.len() < FILE_NAMES.len() {
                return Err(set.not_in(dir));
            }
            tried.push(format!("$MNIST_DIR {} holds none of its files", dir.display()));
        }
    }
    let Some(cache) = cache_dir(&request.environment, set) else {
        tried.push("no cache directory: set CANDELABRUM_CACHE, XDG_CACHE_HOME or HOME".into());
        return Ok(None);
    };
    // Only the cache must contain exactly the set. A user's directory may contain another set of the
    // same shape.
    match check_files(remote.files, &cache) {
        Ok(()) => return Ok(Some(cache)),
        Err(Error::Data { fault: DataFault::Missing, .. }) => {
            tried.push(format!("not in the cache {}", cache.display()));
        }
        Err(damaged) => tried.push(format!("in the cache: {damaged}")),
    }
    if request.download.is_none() {
        tried.push("downloading was not allowed".into());
        return Ok(None);
    }
    match download(remote, &cache, request.quiet) {
        Ok(()) => Ok(Some(cache)),
        Err(error) => {
            tried.push(error.to_string());
            Ok(None)
        }
    }
}

/// The directory as an absolute path, which means the same to ranks with other working directories.
fn found(set: ImageSet, dir: &Path) -> Result<Located> {
    let absolute = std::path::absolute(dir).map_err(Error::io("find", dir))?;
    if absolute.to_str().is_none() {
        return Err(Error::no_text(absolute));
    }
    Ok(Located { source: Source::Directory(set, absolute), note: None })
}
