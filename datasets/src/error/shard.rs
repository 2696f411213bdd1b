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
    /// A shard is not yet there as a whole.
    #[error("{}: an unfinished download: finish it, delete the file, or open the others by a list", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// Shards say how many they are, and there are fewer.
    #[error(
        "{}: missing, {found} of {count} such shards are there: fetch it, or open the others by a list",
        path.display()
    )]
    Missing {
        /// The first file that is missing.
        path: PathBuf,
        /// The number of shards that are there.
        found: usize,
        /// The number of shards by their names.
        count: u64,
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
        "{}: no 1024 bytes of zeros at byte {offset}, with which a tar file ends: it was cut short, fetch \
         or pack it again",
        path.display()
    )]
    NoEnd {
        /// The file.
        path: PathBuf,
        /// The offset after the last file in the archive.
        offset: u64,
    },
    /// More zeros are behind the last file of a tar file than a tar program writes.
    #[error(
        "{}: {zeros} bytes of zeros from byte {offset} to the end, a tar program writes at most {most}: \
         fetch it again, its end has not arrived (or name its ShardOptions::blocking_factor, if it was \
         packed with tar -b)",
        path.display()
    )]
    Zeros {
        /// The file.
        path: PathBuf,
        /// The offset after the last file in the archive.
        offset: u64,
        /// The number of bytes of zeros.
        zeros: u64,
        /// The most of them that are accepted.
        most: u64,
    },
    /// A second archive is behind the end of a tar file.
    #[error(
        "{}: another tar file begins at byte {offset}, behind the end of the first one: join them with \
         tar --concatenate, or make each a shard of its own",
        path.display()
    )]
    SecondArchive {
        /// The file.
        path: PathBuf,
        /// The offset of the second archive.
        offset: u64,
    },
    /// Other bytes than zeros are behind the end of a tar file.
    #[error(
        "{}: byte {offset} is not zero, behind the end of the archive at byte {end}: the file is damaged, \
         fetch or pack it again",
        path.display()
    )]
    BehindEnd {
        /// The file.
        path: PathBuf,
        /// The offset of the first byte that is not zero.
        offset: u64,
        /// The offset after the last file in the archive.
        end: u64,
    },
    /// A member of a tar file cannot be a part of a sample.
    #[error("{}: at byte {offset}: {name:?} {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The offset of the member.
        offset: u64,
        /// The member's name.
        name: String,
        /// Why it cannot be used, and what to do.
        reason: &'static str,
    },
    /// A sample's files are not adjacent in a tar file.
    #[error(
        "{}: at byte {offset}: the files of sample {key:?} are not adjacent: pack them with \
         tar --sort=name",
        path.display()
    )]
    Apart {
        /// The file.
        path: PathBuf,
        /// The offset of the file that comes too late.
        offset: u64,
        /// The sample's key.
        key: String,
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
