//! How shards are opened.

use crate::records::format::ShardFormat;

/// How shards are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardOptions {
    /// The format of all shards. `None`, the default: the ending of each name says it, `.tar`, `.rec`,
    /// `.tfrecord` or `.tfrecords`, the last two also with `-00000-of-00001` behind them.
    pub format: Option<ShardFormat>,
    /// Whether to keep the index of each shard in a file beside it, whose name has `.index` added. Then
    /// the next start is quick. Without it, the default, every start reads the headers of all samples.
    pub keep_index: bool,
    /// The most files that are open at a time, 64 by default. Each thread of a loader may hold one more.
    pub open_files: usize,
    /// The blocks of 512 bytes to a multiple of which tar files were filled up with zeros (`tar -b`), 20
    /// by default, as tar itself and Python's tarfile do. More zeros than that at the end of a tar file
    /// are those of an unfinished download, and an error.
    pub blocking_factor: u32,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self { format: None, keep_index: false, open_files: 64, blocking_factor: 20 }
    }
}
