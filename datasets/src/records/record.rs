//! One sample as a shard stores it: bytes with a name, or several of them.

use std::ops::Range;

use crate::error::{Error, Result};

/// The ending of each part of a sample, in lower case, and its place in the bytes that were read.
pub(crate) type RecordParts = Vec<(String, Range<usize>)>;

/// The bytes of one sample of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    sample: usize,
    key: String,
    /// What was read, with the headers of the format.
    bytes: Vec<u8>,
    parts: RecordParts,
}

impl Record {
    pub(crate) fn new(sample: usize, key: String, bytes: Vec<u8>, parts: RecordParts) -> Self {
        Self { sample, key, bytes, parts }
    }

    /// The number of the sample in the dataset, from which its random numbers follow
    /// ([`Pass::rng`](crate::Pass::rng)).
    pub fn sample(&self) -> usize {
        self.sample
    }

    /// In a tar file, the path of the sample's files up to the first dot of the name. In a file of
    /// records, the name of the file and the number of the record.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The endings of the sample's files with their contents, in the order of the tar file. A record of
    /// the other format is one part with an empty ending.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.parts.iter().map(|(ending, place)| (&**ending, self.at(place)))
    }

    /// The content of the first part, which every record has.
    pub fn data(&self) -> &[u8] {
        self.parts.first().map_or(&[], |(_, place)| self.at(place))
    }

    /// The content of the file with this ending, for instance `jpg` or `seg.png`, in lower case.
    ///
    /// # Errors
    /// A sample without such a file.
    pub fn part(&self, ending: &str) -> Result<&[u8]> {
        let found = self.parts.iter().find(|(name, _)| name == ending);
        found.map(|(_, place)| self.at(place)).ok_or_else(|| {
            let parts: Vec<&str> = self.parts.iter().map(|(name, _)| &**name).collect();
            let (key, parts) = (&self.key, parts.join(", "));
            Error::argument(format!("sample {key:?} has no part {ending:?}; it has {parts}"))
        })
    }

    fn at(&self, place: &Range<usize>) -> &[u8] {
        self.bytes.get(place.clone()).unwrap_or_default()
    }
}
