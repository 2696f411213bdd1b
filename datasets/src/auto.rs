//! The choice of the data: the user's directory, existing files, a download, or synthetic digits.
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
    download::{HttpTransport, Remote, check_files, download},
    environment::Environment,
    error::{Error, Fault, Result},
    mnist::Mnist,
    mnist_files::{FILE_NAMES, missing_files, no_mnist},
    source::Source,
};

/// The value of `--dataset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatasetKind {
    /// MNIST if it is available, otherwise synthetic digits.
    #[default]
    Auto,
    /// MNIST or an error.
    Mnist,
    /// Synthetic digits.
    Synthetic,
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Mnist => "mnist",
            Self::Synthetic => "synthetic",
        })
    }
}

impl FromStr for DatasetKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "mnist" => Ok(Self::Mnist),
            "synthetic" => Ok(Self::Synthetic),
            _ => Err(Error::argument(format!(
                "{name:?} is no dataset: choose auto, mnist or synthetic"
            ))),
        }
    }
}

/// Everything that determines the data.
#[derive(Debug, Clone, Default)]
pub struct DataRequest {
    /// The kind of dataset.
    pub kind: DatasetKind,
    /// The user's directory.
    pub data_dir: Option<PathBuf>,
    /// The environment variables with other directories.
    pub environment: Environment,
    /// The seed of synthetic digits.
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
    /// Why the digits are synthetic although nobody requested this: the failed attempts.
    pub note: Option<String>,
}

/// The data, its name and, if it is not the preferred data, the reason.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The data.
    pub mnist: Mnist,
    /// `mnist` or `synthetic digits`.
    pub name: &'static str,
    /// Why the digits are synthetic although nobody requested this: the failed attempts.
    pub note: Option<String>,
}

impl Located {
    /// Reads or generates the data.
    ///
    /// # Errors
    /// Those of [`Source::open`].
    pub fn open(self) -> Result<Loaded> {
        Ok(Loaded { mnist: self.source.open()?, name: self.source.name(), note: self.note })
    }
}

/// Locates the data, and downloads it if that is necessary and allowed.
///
/// # Errors
/// A `data_dir` without the four files, a `$MNIST_DIR` with only some of them, or, for
/// [`DatasetKind::Mnist`], no MNIST in any of the places.
pub fn locate(request: &DataRequest) -> Result<Located> {
    let transport = HttpTransport::new(request.download.unwrap_or_default());
    locate_with(request, &Remote::mnist(&transport))
}

/// [`locate`] with other download addresses.
///
/// # Errors
/// Those of [`locate`].
pub fn locate_with(request: &DataRequest, remote: &Remote<'_>) -> Result<Located> {
    if request.kind == DatasetKind::Synthetic {
        return Ok(Located { source: Source::synthetic(request.seed), note: None });
    }
    if let Some(dir) = &request.data_dir {
        let missing = missing_files(dir);
        return if missing.is_empty() { found(dir) } else { Err(no_mnist(dir, &missing)) };
    }
    let mut tried = Vec::new();
    if let Some(dir) = search(request, remote, &mut tried)? {
        return found(&dir);
    }
    if request.kind == DatasetKind::Mnist {
        return Err(Error::NotFound { tried });
    }
    let note = format!(
        "MNIST was not found, so this run trains on synthetic digits. Tried: {}",
        tried.join("; ")
    );
    Ok(Located { source: Source::synthetic(request.seed), note: Some(note) })
}

/// A directory with the four files, from the places that are not on the command line. Failed
/// attempts are added to `tried`.
fn search(
    request: &DataRequest,
    remote: &Remote<'_>,
    tried: &mut Vec<String>,
) -> Result<Option<PathBuf>> {
    match &request.environment.mnist_dir {
        None => tried.push("$MNIST_DIR is not set".into()),
        Some(dir) => {
            let missing = missing_files(dir);
            if missing.is_empty() {
                return Ok(Some(dir.clone()));
            }
            if missing.len() < FILE_NAMES.len() {
                return Err(no_mnist(dir, &missing));
            }
            tried.push(format!("$MNIST_DIR {} holds none of its files", dir.display()));
        }
    }
    let Some(cache) = cache_dir(&request.environment) else {
        tried.push("no cache directory: set CANDELABRUM_CACHE, XDG_CACHE_HOME or HOME".into());
        return Ok(None);
    };
    // Only the cache must contain exactly MNIST. A user's directory may contain another set of the
    // same shape.
    match check_files(remote.files, &cache) {
        Ok(()) => return Ok(Some(cache)),
        Err(Error::Data { fault: Fault::Missing, .. }) => {
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
fn found(dir: &Path) -> Result<Located> {
    let absolute = std::path::absolute(dir).map_err(Error::io("find", dir))?;
    if absolute.to_str().is_none() {
        return Err(Error::no_text(absolute));
    }
    Ok(Located { source: Source::Directory(absolute), note: None })
}
