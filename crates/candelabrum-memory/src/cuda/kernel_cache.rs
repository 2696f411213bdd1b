//! Compiled kernels on disk, so that a later process compiles none again.
//!
//! The folder is `$CANDELABRUM_KERNEL_CACHE`, and nothing is kept if that is empty. Where it is not
//! set, the folder is `kernels` in `$CANDELABRUM_CACHE`, in `$XDG_CACHE_HOME/candelabrum` or in
//! `$HOME/.cache/candelabrum`. It may be deleted at any time.
//!
//! Whoever can write a file there can run kernels as this user. So a folder that belongs to another
//! user, or that others can write, is not used.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

/// The beginning of a file. The digest of the key and the image follows, then the image.
const MAGIC: &[u8] = b"candelabrum kernels 2\n";

/// The bytes of a digest.
const DIGEST: usize = 32;

/// A folder of compiled kernels.
#[derive(Debug)]
pub(super) struct KernelCache {
    folder: PathBuf,
    /// Whether a file could not be written.
    is_full: AtomicBool,
}

/// What a compilation depends on, as a digest.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheKey([u8; DIGEST]);

impl CacheKey {
    /// The key of these parts. Other parts give another key.
    pub(super) fn new(parts: &[&str]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }
}

impl KernelCache {
    /// The cache of this process, if it has one.
    pub(super) fn open() -> Option<&'static Self> {
        static CACHE: OnceLock<Option<KernelCache>> = OnceLock::new();
        let open = || {
            let [own, all, xdg, home] =
                ["CANDELABRUM_KERNEL_CACHE", "CANDELABRUM_CACHE", "XDG_CACHE_HOME", "HOME"]
                    .map(env::var_os);
            let folder = folder(own, all, xdg, home)?;
            match prepare(&folder) {
                Ok(()) => Some(Self { folder, is_full: AtomicBool::new(false) }),
                Err(error) => {
                    let folder = folder.display();
                    tracing::debug!("no compiled kernels are kept in {folder}: {error}");
                    None
                }
            }
        };
        CACHE.get_or_init(open).as_ref()
    }

    fn file(&self, key: CacheKey) -> PathBuf {
        let name: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name)
    }

    /// The image that was written for the key, if its file is there and whole.
    pub(super) fn read(&self, key: CacheKey) -> Option<Vec<u8>> {
        let bytes = fs::read(self.file(key)).ok()?;
        let (digest, image) = bytes.strip_prefix(MAGIC)?.split_at_checked(DIGEST)?;
        (digest == digest_of(key, image)).then(|| image.to_owned())
    }

    /// Writes the image for the key. Other processes see the whole file or none. If that fails, nothing
    /// is written from then on.
    pub(super) fn write(&self, key: CacheKey, image: &[u8]) {
        if self.is_full.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.try_write(key, image) {
            let folder = self.folder.display();
            tracing::debug!("compiled kernels are not written to {folder}: {error}");
            self.is_full.store(true, Ordering::Relaxed);
        }
    }

    fn try_write(&self, key: CacheKey, image: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&digest_of(key, image))?;
        file.write_all(image)?;
        file.persist(self.file(key))?;
        Ok(())
    }
}

fn digest_of(key: CacheKey, image: &[u8]) -> [u8; DIGEST] {
    Sha256::new().chain_update(key.0).chain_update(image).finalize().into()
}

/// The folder, by the values of the variables.
fn folder(
    own: Option<OsString>,
    all: Option<OsString>,
    xdg: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    if let Some(own) = own {
        return (!own.is_empty()).then(|| own.into());
    }
    let path = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative `$XDG_CACHE_HOME` is ignored, as its specification requires.
    let xdg = || path(xdg).filter(|xdg| xdg.is_absolute());
    let caches = || xdg().or_else(|| Some(path(home)?.join(".cache")));
    let all = path(all).or_else(|| Some(caches()?.join("candelabrum")));
    Some(all?.join("kernels"))
}

/// Makes the folder where it is missing.
///
/// # Errors
/// The folder cannot be made, or others could have written its files.
fn prepare(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let folder = fs::metadata(folder)?;
    if folder.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if folder.mode() & 0o022 != 0 {
        return Err(io::Error::other("other users can write there"));
    }
    Ok(())
}
