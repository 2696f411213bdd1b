//! What the headers of a shard say of its samples.

/// What the headers of a shard say of its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The offset of each sample, and the end of the last one.
    pub(crate) offsets: Box<[u64]>,
    /// The number of files in the shard that belong to no sample.
    pub(crate) left_out: u64,
    /// A SHA-256 of the headers: names and sizes in a tar file, checksums in a file of records.
    pub(crate) digest: [u8; 32],
}

impl Contents {
    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
}
