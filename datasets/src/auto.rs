//! Which data to use: what the user named, what lies about, what can be fetched, or synthetic.
//!
//! `auto` looks in the directory that the user named, then in `$MNIST_DIR`, then in the cache, then
//! downloads, and where none of that works takes the synthetic digits *and says why*. What the user
//! named is never passed over in silence: a directory that lacks the files, or holds a corrupt one,
//! is an error.
//!
//! A distributed run calls [`locate`] on rank 0 alone, sends the [`Source`] to the others as text,
//! and opens it everywhere.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{
    cache::cache_dir,
    download::{HttpTransport, MNIST_FILES, MNIST_MIRRORS, Transport, download},
    environment::Environment,
    error::{Error, Result},
    mnist::{FILE_NAMES, Mnist, missing_files},
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
    /// Whether MNIST may be downloaded into the cache. In a distributed run on rank 0 alone.
    pub allow_download: bool,
    /// Whether to show no progress bar.
    pub quiet: bool,
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// A place that every rank can open, and that fits into a message.
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
        let mnist = self.source.open()?;
        Ok(Loaded { name: mnist.name(), mnist, note: self.note })
    }
}

/// Finds and reads the data, with the places that the environment of this process names.
///
/// # Errors
/// As [`locate`] and [`Source::open`].
pub fn load(
    kind: DatasetKind,
    data_dir: Option<&Path>,
    seed: u64,
    allow_download: bool,
) -> Result<Loaded> {
    let data_dir = data_dir.map(PathBuf::from);
    let environment = Environment::of_process();
    locate(&Request { kind, data_dir, environment, seed, allow_download, quiet: false })?.open()
}

/// Finds the data, downloading it if need be and allowed.
///
/// # Errors
/// A `data_dir` without the four files, a `$MNIST_DIR` with only some of them, and for
/// [`DatasetKind::Mnist`] that none of the places has MNIST.
pub fn locate(request: &Request) -> Result<Located> {
    locate_with(request, &HttpTransport::new())
}

/// [`locate`], downloading through another transport.
///
/// # Errors
/// As [`locate`].
pub fn locate_with(request: &Request, transport: &dyn Transport) -> Result<Located> {
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
    if let Some(dir) = search(request, transport, &mut tried)? {
        return found(&dir);
    }
    if request.kind == DatasetKind::Mnist {
        return Err(Error::NotFound { tried });
    }
    let note = format!("mnist not found, training on synthetic digits: {}", tried.join("; "));
    Ok(Located { source: Source::synthetic(request.seed), note: Some(note) })
}

/// A directory with the four files, from the places that the user did not name on the command
/// line. What was tried in vain goes into `tried`.
fn search(
    request: &Request,
    transport: &dyn Transport,
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
    if missing_files(&cache).is_empty() {
        return Ok(Some(cache));
    }
    tried.push(format!("not in the cache {}", cache.display()));
    if !request.allow_download {
        tried.push("downloading was not allowed".into());
        return Ok(None);
    }
    match download(&MNIST_FILES, &MNIST_MIRRORS, &cache, transport, request.quiet) {
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
