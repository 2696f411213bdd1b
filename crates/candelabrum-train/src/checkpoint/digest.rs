//! The length and the SHA-256 of a file, by which a damaged one is recognised.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use candelabrum_datasets::hexadecimal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

impl FileDigest {
    /// Of `bytes` bytes that `hasher` has seen.
    pub(super) fn new(bytes: u64, hasher: Sha256) -> Self {
        Self { bytes, sha256: hexadecimal(&hasher.finalize()) }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: sha256(bytes) }
    }

    /// Of a file, which is read in parts.
    pub(super) fn from_file(path: &Path) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let bytes = io::copy(&mut File::open(path)?, &mut hasher)?;
        Ok(Self::new(bytes, hasher))
    }

    /// The bytes of a file, which must be those that were written.
    pub(super) fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let unreadable = |error| Error::checkpoint(path, format!("cannot be read: {error}"));
        let bytes = fs::read(path).map_err(unreadable)?;
        match self.difference(&bytes) {
            None => Ok(bytes),
            Some(what) => Err(Error::checkpoint(path, what)),
        }
    }

    /// The difference of a file from what was written.
    fn difference(&self, bytes: &[u8]) -> Option<String> {
        if bytes.len() as u64 != self.bytes {
            return Some(format!("has {} bytes, {} were written", bytes.len(), self.bytes));
        }
        (sha256(bytes) != self.sha256)
            .then(|| "is damaged: its bytes are not those that were written".to_owned())
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}
