//! Where the samples of a shard begin.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use crate::{
    error::{Error, Result},
    records::{
        contents::Contents,
        format::{ShardFormat, compressed},
        options::ShardOptions,
        record_io, sidecar, tar_shard, tf_record,
    },
};

/// The index of one shard.
#[derive(Debug)]
pub(crate) struct RecordIndex {
    /// The size of the file.
    pub(crate) bytes: u64,
    pub(crate) contents: Contents,
}

impl RecordIndex {
    /// Reads the headers of a shard, or its index file if the options want one and there is one. Then it
    /// also writes that file.
    pub(crate) fn read(path: &Path, format: ShardFormat, options: &ShardOptions) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let state = file.metadata().map_err(Error::io("open", path))?;
        if !state.is_file() {
            return Err(Error::no_file(path));
        }
        let bytes = state.len();
        let known = options.keep_index.then(|| sidecar::read(path, &state, format)).flatten();
        if let Some(contents) = known {
            return Ok(Self { bytes, contents });
        }
        let mut start = [0; 2];
        let read = file.read_at(&mut start, 0).map_err(Error::io("read", path))?;
        if read == 2 && start == [0x1f, 0x8b] {
            return Err(compressed(path));
        }
        let contents = match format {
            ShardFormat::Tar => tar_shard::index(path, &file, bytes, options.blocking_factor)?,
            ShardFormat::TfRecord => tf_record::index(path, &file, bytes)?,
            ShardFormat::RecordIo => record_io::index(path, &file, bytes)?,
        };
        if options.keep_index {
            sidecar::write(path, &state, format, &contents);
        }
        Ok(Self { bytes, contents })
    }
}
