//! The index of a shard in a file beside it, so that the next start need not read the shard's headers.
//!
//! The file names the size and the time of the shard's last change, and ends with a checksum. If any of
//! them is wrong, the index is made again. It is a cache and never an error.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::whole_file::write_whole;

/// The first bytes of the file, with the version of its format.
const MAGIC: &[u8; 8] = b"CNDLIDX1";

/// The name of the index file of a shard.
fn beside(shard: &Path) -> PathBuf {
    let mut name = OsString::from(shard);
    name.push(".index");
    name.into()
}

/// The offsets in the index file. `None`: there is none, or it belongs to another state of the shard.
pub(crate) fn read(shard: &Path, state: &Metadata) -> Option<Vec<u64>> {
    let content = fs::read(beside(shard)).ok()?;
    let (content, checksum) = content.split_last_chunk::<4>()?;
    if crc32c::crc32c(content).to_le_bytes() != *checksum {
        return None;
    }
    let numbers = content.strip_prefix(&header(state)[..])?.as_chunks::<8>().0;
    Some(numbers.iter().map(|&number| u64::from_le_bytes(number)).collect())
}

/// Writes the index file, if that is possible.
pub(crate) fn write(shard: &Path, state: &Metadata, offsets: &[u64]) {
    let mut content = header(state);
    offsets.iter().for_each(|offset| content.extend_from_slice(&offset.to_le_bytes()));
    let checksum = crc32c::crc32c(&content).to_le_bytes();
    content.extend_from_slice(&checksum);
    let path = beside(shard);
    if let Err(error) = write_whole(&path, |out: &mut dyn Write| out.write_all(&content)) {
        let path = path.display();
        tracing::warn!(target: "candelabrum::data", "{path}: cannot write the index: {error}");
    }
}

/// The beginning of the index file for this state of the shard.
fn header(state: &Metadata) -> Vec<u8> {
    let numbers = [state.len(), state.mtime() as u64, state.mtime_nsec() as u64];
    [MAGIC.to_vec(), numbers.map(u64::to_le_bytes).concat()].concat()
}
