//! What can be wrong with an IDX file.

use std::{io, path::PathBuf};

/// An error of an IDX file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The file has no bytes.
    #[error("{}: the file is empty, fetch it again", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// The first four bytes are not those of the expected kind of IDX file.
    #[error("{}: magic number {found:#010x}, expected {expected:#010x} for {what}: not such a file", path.display())]
    WrongMagic {
        /// The file.
        path: PathBuf,
        /// The number in the file.
        found: u32,
        /// The expected number.
        expected: u32,
        /// The kind of file in words.
        what: &'static str,
    },
    /// A dimension in the header is zero.
    #[error("{}: the header gives dimensions {dims:?}, none may be zero", path.display())]
    ZeroDimension {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
    },
    /// The header claims more data than the reader accepts.
    #[error(
        "{}: the header claims {dims:?} = {claimed} bytes, the limit is {limit}",
        path.display()
    )]
    OverLimit {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
        /// The number of bytes that these dimensions need.
        claimed: u128,
        /// The maximum number of bytes.
        limit: u64,
    },
    /// The header claims more data than the file can hold.
    #[error(
        "{}: the header claims {dims:?} = {claimed} bytes, a file of {file_bytes} bytes cannot hold \
         that: the header is corrupt or the file was cut short",
        path.display()
    )]
    ImplausibleSize {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
        /// The number of bytes that these dimensions need.
        claimed: u128,
        /// The size of the file on the disk.
        file_bytes: u64,
    },
    /// The file ends before its data.
    #[error("{}: {got} bytes where {expected} are needed: the file was cut short, fetch it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The number of bytes needed, header included, uncompressed.
        expected: u64,
        /// The number of bytes found.
        got: u64,
    },
    /// The file continues after its data.
    #[error("{}: bytes follow after the {expected} that the header announces: the file is corrupt", path.display())]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// The number of bytes announced, header included, uncompressed.
        expected: u64,
    },
    /// The gzip data is damaged or ends early.
    #[error("{}: damaged or truncated gzip stream ({source}), fetch the file again", path.display())]
    DamagedGzip {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: io::Error,
    },
}
