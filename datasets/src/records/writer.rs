//! Writes a shard of records.
//!
//! The file gets its name when it is complete, because a reader cannot know that records are missing at
//! the end of a file.

use std::{
    io::BufWriter,
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

use crate::{
    error::{Error, Result},
    records::tf_record,
    whole_file::temporary_beside,
};

/// Writes records to a file in TensorFlow's format
/// ([`ShardFormat::TfRecord`](crate::ShardFormat::TfRecord)).
///
/// Without [`finish`](Self::finish) there is no file.
///
/// ```
/// use candelabrum_datasets::{RecordWriter, ShardOptions, Shards};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("numbers-0.tfrecord");
/// let mut writer = RecordWriter::create(&path)?;
/// for number in 0..10_u64 {
///     writer.write(&number.to_le_bytes())?;
/// }
/// writer.finish()?;
/// let shards = Shards::open([path], &ShardOptions::default())?;
/// assert_eq!(shards.record(7)?.data(), 7_u64.to_le_bytes());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    out: BufWriter<NamedTempFile>,
}

impl RecordWriter {
    /// Begins a file. The last part of its name should be `.tfrecord`.
    ///
    /// # Errors
    /// A folder in which no file can be created.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = temporary_beside(path).map_err(Error::io("create", path))?;
        Ok(Self { path: path.into(), out: BufWriter::new(file) })
    }

    /// Writes one record.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        tf_record::write(&mut self.out, record).map_err(Error::io("write", &self.path))
    }

    /// Completes the file and gives it its name. An existing file is replaced.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn finish(self) -> Result<()> {
        let Self { path, out } = self;
        let file = out.into_inner().map_err(|error| error.into_error());
        let file = file.and_then(|file| file.as_file().sync_all().map(|()| file));
        let persisted = file.and_then(|file| file.persist(&path).map_err(|error| error.error));
        persisted.map(drop).map_err(Error::io("write", path))
    }
}
