//! What can be wrong with shards of records.

use std::{collections::TryReserveError, path::PathBuf};

/// An error of a shard. Offsets count bytes of the file from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The name of a file does not say its format.
    #[error(
        "{}: the name of a shard ends in .tar, .tfrecord or .tfrecords: rename it, or name the format",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The shard is compressed.
    #[error(
        "{}: a compressed shard cannot be read by positions: unpack it (the files in it may be compressed)",
        path.display()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
    },
    /// The file ends inside a record.
    #[error(
        "{}: the record at byte {offset} ends at byte {expected}, the file at {got}: it was cut short",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
        /// The size that the file needs.
        expected: u64,
        /// The size of the file.
        got: u64,
    },
    /// A tar file has no end marker.
    #[error(
        "{}: no blocks of zeros at byte {offset}, with which a tar file ends: it was cut short",
        path.display()
    )]
    NoEnd {
        /// The file.
        path: PathBuf,
        /// The offset after the last file in the archive.
        offset: u64,
    },
    /// The content is not what the format demands.
    #[error("{}: at byte {offset}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A record is too large for the memory.
    #[error("{}: no memory for the {bytes} bytes of the record at byte {offset}: {source}", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The offset of the record.
        offset: u64,
        /// The size of the record.
        bytes: u64,
        /// The allocator's error.
        source: TryReserveError,
    },
    /// A sample has no file with an ending that is needed.
    #[error("sample {key:?} has no part {part:?}; it has {}", parts.join(", "))]
    NoPart {
        /// The sample's key.
        key: String,
        /// The ending.
        part: String,
        /// The endings that it has.
        parts: Vec<String>,
    },
    /// A folder has no shards.
    #[error("{}: no files that end in .tar, .tfrecord or .tfrecords", folder.display())]
    NoShards {
        /// The folder.
        folder: PathBuf,
    },
}
