//! Which data to use: what the user named, what lies about, what can be fetched, or synthetic.
//!
//! `auto` looks in the directory that the user named, then in `$MNIST_DIR`, then in the cache, then
//! downloads, and where none of that works takes the synthetic digits *and says why*. What the user
//! named is never passed over in silence: a directory that lacks the files, or holds a corrupt one,
//! is an error.
//!
//! In a distributed run one rank of each host calls [`locate`], so that the files are fetched once
//! per host, and tells the others what it found.

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
    error::{Error, Result},
    mnist::Mnist,
    mnist_files::{FILE_NAMES, missing_files},
    source::Source,
};

/// What the user asks for with `--dataset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DatasetKind {
    /// MNIST if it can be had, else synthetic digits.
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
            _ => Err(Error::UnknownDataset { name: name.into() }),
        }
    }
}

/// All that decides which data is used.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// What to look for.
    pub kind: DatasetKind,
    /// The directory that the user named.
    pub data_dir: Option<PathBuf>,
    /// Where else to look.
    pub environment: Environment,
    /// The seed of synthetic digits.
    pub seed: u64,
    /// How long downloads into the cache may take, all together; `None` forbids them.
    pub download: Option<Duration>,
    /// Whether to show no progress bar.
    pub quiet: bool,
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// A place that every rank of this host can open.
    pub source: Source,
    /// Why the digits are synthetic, where that was not asked for: what was tried.
    pub note: Option<String>,
}

/// The data, its name and, where it is not what was hoped for, the reason.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The data.
    pub mnist: Mnist,
    /// `mnist` or `synthetic digits`.
    pub name: &'static str,
    /// Why the digits are synthetic, where that was not asked for: what was tried.
    pub note: Option<String>,
}

impl Located {
    /// Reads or generates the data.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open(self) -> Result<Loaded> {
        Ok(Loaded { mnist: self.source.open()?, name: self.source.name(), note: self.note })
    }
}

/// Finds the data, downloading it if need be and allowed.
///
/// # Errors
/// A `data_dir` without the four files, a `$MNIST_DIR` with only some of them, and for
/// [`DatasetKind::Mnist`] that none of the places has MNIST.
pub fn locate(request: &Request) -> Result<Located> {
    let transport = HttpTransport::new(request.download.unwrap_or_default());
    locate_with(request, &Remote::mnist(&transport))
}

/// [`locate`], downloading from elsewhere.
///
/// # Errors
/// As [`locate`].
pub fn locate_with(request: &Request, remote: &Remote<'_>) -> Result<Located> {
    if request.kind == DatasetKind::Synthetic {
        return Ok(Located { source: Source::synthetic(request.seed), note: None });
    }
    if let Some(dir) = &request.data_dir {
        let missing: Vec<String> = missing_files(dir).into_iter().map(String::from).collect();
        if !missing.is_empty() {
            return Err(Error::FilesMissing { dir: dir.clone(), missing });
        }
        return found(dir);
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

/// A directory with the four files, from the places that the user did not name on the command
/// line. What was tried in vain goes into `tried`.
fn search(
    request: &Request,
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
                let missing = missing.into_iter().map(String::from).collect();
                return Err(Error::FilesMissing { dir: dir.clone(), missing });
            }
            tried.push(format!("$MNIST_DIR {} holds none of its files", dir.display()));
        }
    }
    let Some(cache) = cache_dir(&request.environment) else {
        tried.push(Error::NoCacheDirectory.to_string());
        return Ok(None);
    };
    // Only the cache is known to hold MNIST and nothing else: a directory that the user names may
    // hold another set of the same shape.
    match check_files(remote.files, &cache) {
        Ok(()) => return Ok(Some(cache)),
        Err(Error::FilesMissing { .. }) => {
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

/// The directory in a form that means the same to every rank, whatever its working directory.
fn found(dir: &Path) -> Result<Located> {
    let absolute = std::path::absolute(dir).map_err(Error::io("find", dir))?;
    if absolute.to_str().is_none() {
        return Err(Error::PathNotText { path: absolute });
    }
    Ok(Located { source: Source::Directory(absolute), note: None })
}
