//! The formats of shards, and which one a file has.

use std::path::Path;

use crate::error::{DataFault, Error, Result};

/// The format of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardFormat {
    /// A tar file in the convention of WebDataset: consecutive files whose names are the same up to the
    /// first dot are one sample. The rest of the name says what the file is.
    ///
    /// Every file is a part of a sample, is [counted](crate::Shards::left_out), or is an error. Counted
    /// are hidden files, those named `__name__`, and `README`, `LICENSE` and the like. A file without an
    /// ending is an error, as are links, sparse files and devices, a part that comes twice, and a sample
    /// whose files are not adjacent.
    ///
    /// A file that was cut short, or whose headers are damaged, is an error, and so is everything behind
    /// the end of the archive: a second archive, other bytes, or more zeros than
    /// [`blocking_factor`](crate::ShardOptions::blocking_factor) allows. The format has no checksums of
    /// the contents, so a damaged content is only noticed if it cannot be decoded.
    Tar,
    /// The record format of TensorFlow: the length of each record, its bytes, and a CRC-32C of both. A
    /// record is a sample of one part, whatever its bytes mean.
    ///
    /// Every damaged bit is found: in a length when the shard is opened, in a content when it is read.
    /// A file that was cut between two records is a shorter file, which this format cannot tell from a
    /// complete one.
    TfRecord,
    /// MXNet's RecordIO, which `im2rec` writes. A record is a sample of one part, whatever its bytes mean:
    /// [`ImageRecord`](crate::ImageRecord) reads those of images.
    ///
    /// A file that was cut inside a record is an error. If there is a file `.idx` beside it, that must name
    /// exactly the records of this file. The format has no checksums, so a damaged content is only noticed
    /// if it cannot be decoded, and a file that was cut between two records only by its `.idx`.
    RecordIo,
}

impl ShardFormat {
    /// The format of a file by the ending of its name.
    pub(crate) fn from_path(path: &Path) -> Result<Self> {
        Self::by_name(path).unwrap_or_else(|| {
            let what = "the name of a shard ends in .tar, .tfrecord, .tfrecords or .rec: rename it, \
                        or name the format";
            Err(DataFault::Unsupported.at(path, what))
        })
    }

    /// The same, or `None` if the name does not say it. The format of a compressed file is an error.
    pub(crate) fn by_name(path: &Path) -> Option<Result<Self>> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match ending.to_str().unwrap_or_default() {
            "tar" => Some(Ok(Self::Tar)),
            "rec" => Some(Ok(Self::RecordIo)),
            "tfrecord" | "tfrecords" => Some(Ok(Self::TfRecord)),
            // TensorFlow appends the number of the shard.
            numbered if numbered.starts_with("tfrecord-") || numbered.starts_with("tfrecords-") => {
                Some(Ok(Self::TfRecord))
            }
            "bz2" | "gz" | "lz4" | "tbz2" | "tgz" | "txz" | "tzst" | "xz" | "zst" => {
                Some(Err(compressed(path)))
            }
            _ => None,
        }
    }
}

/// A shard is compressed.
pub(crate) fn compressed(path: &Path) -> Error {
    let what = "a compressed shard cannot be read by positions: unpack it (the files in it may be \
                compressed)";
    DataFault::Unsupported.at(path, what)
}
