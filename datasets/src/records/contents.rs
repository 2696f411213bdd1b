//! What the headers of a shard say of its samples.

use std::path::Path;

use crate::error::{DataFault, Error};

/// What the headers of a shard say of its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The offset of each sample, and the end of the last one.
    pub(crate) offsets: Box<[u64]>,
    /// The number of files in the shard that belong to no sample.
    pub(crate) left_out: u64,
    /// A SHA-256 of the headers: names and sizes in a tar file, checksums or sizes in a file of
    /// records.
    pub(crate) digest: [u8; 32],
}

impl Contents {
    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}

/// The file of a shard ends at byte `got`, inside the record at this offset, which ends at byte
/// `expected`.
pub(crate) fn cut_short(path: &Path, offset: u64, expected: u64, got: u64) -> Error {
    let what = format!(
        "the record at byte {offset} ends at byte {expected}, the file at {got}: it was cut short"
    );
    DataFault::CutShort.at(path, what)
}
