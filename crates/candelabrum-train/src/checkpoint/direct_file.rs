//! A file that is written past the page cache, and hashed on the way.
//!
//! A checkpoint is three times as large as the model, and nobody reads it soon. The page cache would cost a
//! second copy of it by a processor that the training may need, and would drop the training's data. With
//! `O_DIRECT` the device reads the bytes from this program's memory. It demands whole, aligned blocks.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use sha2::{Digest as _, Sha256};

use super::digest::FileDigest;
use super::page_cache;

/// The alignment that every device and file system accepts.
const BLOCK: usize = 4096;

/// The blocks that are written at a time: 1 MiB, which a processor's cache still holds when it is hashed.
const BLOCKS: usize = 256;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct FileBlock([u8; BLOCK]);

/// A file that is being written.
pub(super) struct DirectFile {
    file: File,
    /// Whether it is written past the page cache.
    is_direct: bool,
    hasher: Sha256,
    bytes: u64,
    part: Vec<FileBlock>,
    /// The bytes of `part` that are not written yet.
    filled: usize,
}

impl DirectFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let (file, is_direct) = match create(path, page_cache::PAST) {
            // This file system writes only through the page cache.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                (create(path, OFlags::empty())?, false)
            }
            created => (created?, true),
        };
        let part = vec![FileBlock::zeroed(); BLOCKS];
        Ok(Self { file, is_direct, hasher: Sha256::new(), bytes: 0, part, filled: 0 })
    }

    /// Appends bytes.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let free = &mut bytemuck::cast_slice_mut::<_, u8>(&mut self.part)[self.filled..];
            let (now, later) = bytes.split_at(bytes.len().min(free.len()));
            free[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == BLOCKS * BLOCK {
                self.write_part()?;
            }
        }
        Ok(())
    }

    /// Writes what is left, and waits until all of it is on the disk.
    pub(super) fn finish(mut self) -> io::Result<FileDigest> {
        // The end of the file is no whole block.
        self.use_page_cache()?;
        self.write_part()?;
        self.file.sync_all()?;
        Ok(FileDigest::new(self.bytes, self.hasher))
    }

    fn write_part(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.filled {
            let bytes = &bytemuck::cast_slice::<_, u8>(&self.part)[written..self.filled];
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(now) => written += now,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The file system demands other blocks, or has written a part of one.
                Err(error) if self.is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                    self.use_page_cache()?;
                }
                Err(error) => return Err(error),
            }
        }
        self.hasher.update(&bytemuck::cast_slice::<_, u8>(&self.part)[..self.filled]);
        self.bytes += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn use_page_cache(&mut self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.file)?;
        fcntl_setfl(&self.file, flags - page_cache::PAST)?;
        self.is_direct = false;
        Ok(())
    }
}

fn create(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags.bits().cast_signed();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_file_has_the_bytes_that_were_appended(
            sizes in prop::collection::vec(0..3 * BLOCKS * BLOCK / 2, 0..5),
            in_memory in any::<bool>(),
        ) {
            // A file system without devices, where there is one, beside that of temporary files.
            let memory = Path::new("/dev/shm");
            let dir = match in_memory && memory.is_dir() {
                true => tempfile::tempdir_in(memory),
                false => tempfile::tempdir(),
            }?;
            let path = dir.path().join("file");
            let bytes: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
            let (mut file, mut rest) = (DirectFile::create(&path)?, &bytes[..]);
            for size in sizes {
                let (now, later) = rest.split_at(size);
                file.append(now)?;
                rest = later;
            }
            let digest = file.finish()?;
            prop_assert!(fs::read(&path)? == bytes);
            prop_assert_eq!(digest, FileDigest::from_bytes(&bytes));
        }
    }

    #[test]
    fn a_file_goes_on_through_the_page_cache_where_blocks_do_not_fit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = DirectFile::create(&path).unwrap();
        file.append(b"no whole block").unwrap();
        file.write_part().unwrap();
        file.append(&[7; BLOCK]).unwrap();
        file.write_part().unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [b"no whole block".as_slice(), &[7; BLOCK]].concat());
    }
}
