//! The index of a shard in a file beside it, so that the next start need not read the shard's headers.
//!
//! The file names the format, the size and the time of the shard's last change, and ends with a
//! checksum. If any of them is wrong, the index is made again. It is a cache and never an error.

use std::{
    ffi::OsString,
    fs::{File, Metadata},
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    records::{contents::Contents, format::ShardFormat},
    whole_file::write_whole,
};

/// The first bytes of the file, with the version of its format.
const MAGIC: &[u8; 8] = b"CNDLIDX2";

/// The name of the index file of a shard.
fn beside(shard: &Path) -> PathBuf {
    let mut name = OsString::from(shard);
    name.push(".index");
    name.into()
}

/// What the index file says. `None`: there is none, or it belongs to another state of the shard.
pub(crate) fn read(shard: &Path, state: &Metadata, format: ShardFormat) -> Option<Contents> {
    // A record takes at least 8 bytes of a shard, and 8 here. A longer file is another one's.
    let most = state.len() + 256;
    let mut content = Vec::new();
    File::open(beside(shard)).ok()?.take(most + 1).read_to_end(&mut content).ok()?;
    let (content, checksum) = content.split_last_chunk::<4>()?;
    if crc32c::crc32c(content).to_le_bytes() != *checksum {
        return None;
    }
    let content = content.strip_prefix(&header(state, format)[..])?;
    let (&digest, content) = content.split_first_chunk::<32>()?;
    let (numbers, rest) = content.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|&number| u64::from_le_bytes(number));
    let left_out = numbers.next().filter(|_| rest.is_empty())?;
    Some(Contents { offsets: numbers.collect(), left_out, digest })
}

/// Writes the index file, if that is possible.
pub(crate) fn write(shard: &Path, state: &Metadata, format: ShardFormat, contents: &Contents) {
    let mut content = header(state, format);
    content.extend_from_slice(&contents.digest);
    let numbers = [contents.left_out].into_iter().chain(contents.offsets.iter().copied());
    numbers.for_each(|number| content.extend_from_slice(&number.to_le_bytes()));
    let checksum = crc32c::crc32c(&content).to_le_bytes();
    content.extend_from_slice(&checksum);
    let path = beside(shard);
    if let Err(error) = write_whole(&path, |out: &mut dyn Write| out.write_all(&content)) {
        let path = path.display();
        tracing::warn!(target: "candelabrum::data", "{path}: cannot write the index: {error}");
    }
}

/// The beginning of the index file for this state of the shard.
fn header(state: &Metadata, format: ShardFormat) -> Vec<u8> {
    let format = match format {
        ShardFormat::Tar => 0,
        ShardFormat::TfRecord => 1,
        ShardFormat::RecordIo => 2,
    };
    let numbers = [format, state.len(), state.mtime() as u64, state.mtime_nsec() as u64];
    [MAGIC.to_vec(), numbers.map(u64::to_le_bytes).concat()].concat()
}
