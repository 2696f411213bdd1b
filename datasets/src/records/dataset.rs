//! Samples that a function makes of the records of shards.

use std::fmt;

use crate::{
    dataset::Dataset,
    error::{Error, Result},
    pass::Pass,
    records::{record::Record, shards::Shards},
    stack::Stack,
};

/// Samples in shards, which are read and decoded when they are needed.
///
/// ```no_run
/// use candelabrum_datasets::{
///     Error, ImagePipeline, RecordDataset, ShardOptions, Shards, shards_in,
/// };
///
/// # fn main() -> candelabrum_datasets::Result<()> {
/// let images = ImagePipeline::rgb([224, 224])?;
/// let shards = Shards::open(shards_in("imagenet/train")?, &ShardOptions::default())?;
/// let data = RecordDataset::new("imagenet", shards, move |record, pass| {
///     let image = images.tensor(record.part("jpg")?, record.sample(), pass)?;
///     let label = std::str::from_utf8(record.part("cls")?).map_err(Error::custom)?;
///     Ok((image, label.trim().parse::<u32>().map_err(Error::custom)?))
/// });
/// # Ok(())
/// # }
/// ```
pub struct RecordDataset<F> {
    name: String,
    shards: Shards,
    decode: F,
}

impl<F> RecordDataset<F> {
    /// Samples that `decode` makes of records, on a loader's thread. The name stands for what it does
    /// where ranks compare their data ([`Dataset::fingerprint`]).
    pub fn new<S: Stack>(name: impl Into<String>, shards: Shards, decode: F) -> Self
    where
        F: Fn(&Record, &Pass) -> Result<S> + Send + Sync + 'static,
    {
        Self { name: name.into(), shards, decode }
    }

    /// The shards.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    fn decoded<S>(&self, sample: usize, pass: &Pass) -> Result<S>
    where
        F: Fn(&Record, &Pass) -> Result<S>,
    {
        let record = self.shards.record(sample)?;
        (self.decode)(&record, pass).map_err(|source| match self.shards.place(sample) {
            Ok((path, offset)) => {
                let (path, key) = (path.display(), record.key());
                let sample = format!("{path}: sample {key:?} at byte {offset}");
                Error::Sample { sample, source: Box::new(source) }
            }
            Err(_) => source,
        })
    }
}

impl<F> fmt::Debug for RecordDataset<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordDataset")
            .field("name", &self.name)
            .field("len", &self.shards.len())
            .field("shards", &self.shards.lens().len())
            .finish_non_exhaustive()
    }
}

impl<F, S> Dataset for RecordDataset<F>
where
    F: Fn(&Record, &Pass) -> Result<S> + Send + Sync + 'static,
    S: Stack,
{
    type Batch = S::Batch;

    fn len(&self) -> usize {
        self.shards.len()
    }

    /// An empty batch has the shape of sample 0, which is read for this.
    fn read(&self, samples: &[u32], pass: &Pass) -> Result<S::Batch> {
        if samples.is_empty() {
            return S::stack_none(self.decoded(0, pass)?);
        }
        let decoded = samples.iter().map(|&sample| self.decoded(sample as usize, pass));
        S::stack(decoded.collect::<Result<_>>()?)
    }

    /// # Cost
    /// It reads 64 KiB of each tar file and of each file of MXNet's.
    fn fingerprint(&self) -> Result<String> {
        Ok(format!("{}, {}", self.shards.fingerprint()?, self.name))
    }

    fn shards(&self) -> Vec<usize> {
        self.shards.lens()
    }
}
