//! Several shards as one sequence of samples.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf};

use crate::{
    digest::{hexadecimal, sampled, sha256},
    error::{DataFault, DataPlace, Error, Result, check_count},
    records::{
        files::OpenFiles, format::ShardFormat, index::RecordIndex, options::ShardOptions,
        record::Record, record_io, tar_shard, tf_record,
    },
};

/// Shards whose samples are numbered through, in the order of the shards.
///
/// # Cost
/// 8 bytes of memory for each sample.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<ShardFile>,
    /// The number of the first sample of each shard, and the number of all samples.
    starts: Vec<usize>,
    files: OpenFiles,
}

#[derive(Debug)]
struct ShardFile {
    path: PathBuf,
    format: ShardFormat,
    index: RecordIndex,
}

impl Shards {
    /// Opens shards. The order of the paths is the order of the samples, so it must be the same on
    /// every rank: see [`shards_in`](crate::shards_in).
    ///
    /// # Errors
    /// A shard that cannot be read, is compressed, cut short or damaged, a tar file from which samples
    /// would be missing ([`ShardFormat::Tar`]), or more samples than 32 bits can count.
    pub fn open<P: Into<PathBuf>>(
        paths: impl IntoIterator<Item = P>,
        options: &ShardOptions,
    ) -> Result<Self> {
        let (mut shards, mut starts, mut len) = (Vec::new(), vec![0], 0_usize);
        for path in paths {
            let path = path.into();
            let format = options.format.map_or_else(|| ShardFormat::from_path(&path), Ok)?;
            let index = RecordIndex::read(&path, format, options)?;
            len += index.contents.len();
            starts.push(len);
            shards.push(ShardFile { path, format, index });
        }
        check_count(len)?;
        Ok(Self { shards, starts, files: OpenFiles::new(options.open_files) })
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of samples in each shard.
    pub fn lens(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.index.contents.len()).collect()
    }

    /// The number of files in tar files that belong to no sample: hidden ones, `README` and the like,
    /// those named `__name__`, and links that are no part of a sample.
    pub fn left_out(&self) -> usize {
        self.shards.iter().map(|shard| shard.index.contents.left_out as usize).sum()
    }

    /// Reads a sample. Threads may read at the same time.
    ///
    /// # Errors
    /// A number that is not that of a sample, a shard that cannot be read, or one that is damaged or has
    /// changed since it was opened.
    pub fn record(&self, sample: usize) -> Result<Record> {
        let (number, place, range) = self.find(sample)?;
        let ShardFile { path, format, .. } = &self.shards[number];
        let (offset, len) = (range.start, range.end - range.start);
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(len as usize);
        reserved.map_err(|error| {
            let what =
                format!("no memory for the {len} bytes of the record at byte {offset}: {error}");
            DataFault::Unsupported.at(path, what)
        })?;
        bytes.resize(len as usize, 0);
        let file = self.files.get(number, path)?;
        file.read_exact_at(&mut bytes, offset).map_err(Error::io("read", path))?;
        let corrupt = |reason: String| DataFault::Corrupt.at(DataPlace::byte(path, offset), reason);
        let numbered = |content| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (format!("{name}:{place}"), vec![(String::new(), content)])
        };
        let (key, parts) = match format {
            ShardFormat::Tar => tar_shard::parts(&bytes).map_err(corrupt)?,
            ShardFormat::TfRecord => {
                numbered(tf_record::content(&bytes).map_err(|reason| corrupt(reason.into()))?)
            }
            ShardFormat::RecordIo => {
                bytes = record_io::content(&bytes).map_err(corrupt)?;
                numbered(0..bytes.len())
            }
        };
        Ok(Record::new(sample, key, bytes, parts))
    }

    /// The file and the offset of a sample, for messages.
    pub(crate) fn place(&self, sample: usize) -> Result<(PathBuf, u64)> {
        let (number, _, range) = self.find(sample)?;
        Ok((self.shards[number].path.clone(), range.start))
    }

    /// The names, sizes and numbers of samples of all shards, and a SHA-256 of them. The checksums in
    /// TensorFlow's files stand for the contents, and some blocks for those of the other formats.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let mut lines = String::new();
        for ShardFile { path, format, index } in &self.shards {
            let RecordIndex { bytes, contents } = index;
            let name = path.file_name().unwrap_or_default().display();
            let (len, headers) = (contents.len(), hexadecimal(&contents.digest));
            let blocks = match format {
                ShardFormat::TfRecord => String::new(),
                ShardFormat::Tar | ShardFormat::RecordIo => File::open(path)
                    .and_then(|file| sampled(&file, *bytes))
                    .map_err(Error::io("read", path))?,
            };
            lines += &format!("{name} {bytes} {len} {headers} {blocks}\n");
        }
        let (len, shards) = (self.len(), self.shards.len());
        Ok(format!("{len} samples in {shards} shards {}", sha256(lines.as_bytes())))
    }

    /// The number of the shard, the place in it, and the range of bytes of a sample.
    fn find(&self, sample: usize) -> Result<(usize, usize, std::ops::Range<u64>)> {
        let none = || Error::NoSuchSample { sample, len: self.len() };
        // Empty shards start where the next one starts: the last one of these has the sample.
        let number = self.starts.partition_point(|&start| start <= sample).checked_sub(1);
        let number = number.ok_or_else(none)?;
        let place = sample - self.starts[number];
        let offsets = &self.shards.get(number).ok_or_else(none)?.index.contents.offsets;
        let [start, end] = [offsets.get(place), offsets.get(place + 1)].map(Option::<&u64>::copied);
        // The offsets ascend. Those of an index file that somebody has made may not.
        let range = start.ok_or_else(none)?..end.ok_or_else(none)?;
        if range.start > range.end { Err(none()) } else { Ok((number, place, range)) }
    }
}
