//! The first bytes of a connection, by which a caller says which rank of which job it is.

use crate::comm::member::JobId;

/// First bytes of every connection.
const MAGIC: [u8; 8] = *b"candlbrn";

/// The version of the protocol: raised when the meaning of its bytes changes.
pub(in crate::comm) const VERSION: u32 = 2;

/// The job, the version and the rank of a caller.
///
/// On the wire: magic, job, version, rank, number of ranks; little-endian. Magic, job and version
/// have the same place in every version, and no version is shorter. So a rank can distinguish a
/// stranger from a rank of its own job with another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct HelloMessage {
    pub(in crate::comm) job: JobId,
    pub(in crate::comm) version: u32,
    pub(in crate::comm) rank: u32,
    pub(in crate::comm) world_size: u32,
}

impl HelloMessage {
    pub(in crate::comm) const BYTES: usize =
        MAGIC.len() + size_of::<JobId>() + 3 * size_of::<u32>();

    pub(in crate::comm) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.job);
        for word in [self.version, self.rank, self.world_size] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes are not a whole hello.
    pub(in crate::comm) fn decode(bytes: &[u8]) -> Option<Self> {
        let (job, words) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let mut words = words.chunks_exact(4).map(|word| word.try_into().map(u32::from_le_bytes));
        let mut word = || words.next()?.ok();
        Some(Self { job: *job, version: word()?, rank: word()?, world_size: word()? })
    }
}
