//! Parcels: long messages between ranks that share memory. The socket carries a note, and the receiver
//! reads the bytes where the sender has put them.

use candelabrum_memory::SharedMemory;

use crate::Result;
use crate::comm::Payload;

/// The place of a parcel in the memory that the ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) struct ParcelNote {
    /// The number of the parcel's memory.
    pub(in crate::comm) start: u64,
    /// The bytes of this memory.
    pub(in crate::comm) size: u64,
    /// The bytes of the message.
    pub(in crate::comm) len: u64,
}

impl ParcelNote {
    pub(super) fn encode(self) -> Vec<u8> {
        bytemuck::cast::<[u64; 3], [u8; 24]>([self.start, self.size, self.len]).to_vec()
    }

    /// `None` if these bytes are not a note.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [start, size, len]: [u64; 3] = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        (len <= size).then_some(Self { start, size, len })
    }
}

/// Called when a parcel has been read.
pub(in crate::comm) type WhenRead = Box<dyn FnOnce() + Send + Sync>;

/// The memory of parcels.
///
/// **Invariant** From [`pack`](Self::pack) until [`take_back`](Self::take_back) only the receiver
/// accesses the memory of a parcel.
pub(in crate::comm) trait Parcels: Send + Sync {
    /// Memory in which a message of `len` bytes can be written. Its content is arbitrary. `None` if there
    /// is no room, or if the bytes are so few that the socket is as fast.
    fn alloc(&self, len: usize) -> Option<Box<dyn SharedMemory>>;

    /// Puts a message into memory that the other ranks can open. A message that was written in memory of
    /// [`alloc`](Self::alloc) is not copied. The payload is empty afterwards. `None`, as from `alloc`,
    /// leaves it as it is.
    fn pack(&self, payload: &mut Payload) -> Option<ParcelNote>;

    /// The bytes of another rank's parcel. Their drop calls `when_read`.
    ///
    /// # Errors
    /// A note of memory that does not exist.
    fn open(&self, note: ParcelNote, when_read: WhenRead) -> Result<Box<dyn SharedMemory>>;

    /// The receiver has read the parcel, or will never get it.
    fn take_back(&self, start: u64);
}
