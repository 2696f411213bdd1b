//! The length and the SHA-256 of a file, by which a damaged one is recognised.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

impl FileDigest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, sha256: sha256(bytes) }
    }

    /// The difference of a file from what was written.
    pub(super) fn difference(&self, bytes: &[u8]) -> Option<String> {
        if bytes.len() as u64 != self.bytes {
            return Some(format!("has {} bytes, {} were written", bytes.len(), self.bytes));
        }
        (sha256(bytes) != self.sha256)
            .then(|| "is damaged: its bytes are not those that were written".to_owned())
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
