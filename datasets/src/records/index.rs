//! Where the samples of a shard begin.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use crate::{
    error::{Error, Result, ShardError},
    records::{format::ShardFormat, sidecar, tar_shard, tf_record},
};

/// The index of one shard.
#[derive(Debug)]
pub(crate) struct Index {
    /// The size of the file.
    pub(crate) bytes: u64,
    /// The offset of each sample, and the end of the last one.
    pub(crate) offsets: Box<[u64]>,
}

impl Index {
    /// Reads the headers of a shard, or its index file if `keeps_index` and there is one. Then it also
    /// writes that file.
    pub(crate) fn of(path: &Path, format: ShardFormat, keeps_index: bool) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let state = file.metadata().map_err(Error::io("open", path))?;
        if !state.is_file() {
            return Err(Error::NotAFile { path: path.into() });
        }
        let bytes = state.len();
        if let Some(offsets) = Some(()).filter(|()| keeps_index).and(sidecar::read(path, &state)) {
            return Ok(Self { bytes, offsets: offsets.into() });
        }
        let mut start = [0; 2];
        let read = file.read_at(&mut start, 0).map_err(Error::io("read", path))?;
        if read == 2 && start == [0x1f, 0x8b] {
            return Err(ShardError::Compressed { path: path.into() }.into());
        }
        let offsets = match format {
            ShardFormat::Tar => tar_shard::index(path, &file, bytes)?,
            ShardFormat::TfRecord => tf_record::index(path, &file, bytes)?,
        };
        if keeps_index {
            sidecar::write(path, &state, &offsets);
        }
        Ok(Self { bytes, offsets: offsets.into() })
    }

    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}
