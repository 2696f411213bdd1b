//! Messages between two ranks, as every backend has them.

use candelabrum_memory::SharedMemory;

use super::Payload;
use super::collective::CollectiveHeader;
use super::work::BackendWork;

/// The messages between two ranks of a group. Any thread may start a message at any time, because a
/// message waits neither for the queue's turn nor for a collective.
pub(crate) trait Messages: Send + Sync {
    /// Starts a send or a receive. Receives get messages in the order in which the receives were
    /// started. Waiting for the result fails after the deadline. If the transport drives messages,
    /// the caller checks the deadline instead.
    fn start(&self, header: CollectiveHeader, payload: Payload) -> Box<dyn BackendWork>;

    /// Memory of which a send copies nothing, for a message of `len` bytes. Its content is arbitrary.
    /// `None` if heap memory is as good.
    fn alloc(&self, len: usize) -> Option<Box<dyn SharedMemory>> {
        let _ = len;
        None
    }
}
