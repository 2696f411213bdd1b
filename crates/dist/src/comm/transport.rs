//! What a backend that blocks has to do; [`super::threaded`] makes a communicator of it.

use super::collective::Header;
use super::{Buffer, Collective, ElementType};
use crate::Result;

/// The blocking engine of a backend. Owned by the communication thread, which alone calls it: a
/// library that wants all calls from one thread (MPI's `FUNNELED`) gets them so.
pub(crate) trait Transport {
    /// The backend's name.
    fn backend(&self) -> &'static str;

    /// Carries out the operation of `header`, having compared it with the other ranks' (see
    /// [`super::collective::check_agreement`]), and gives the result's buffer.
    fn execute(&mut self, header: Header, buffer: Buffer) -> Result<Buffer>;

    /// Zeroed memory that all ranks allocate together. `sequence` counts like a header's.
    fn alloc(&mut self, sequence: u64, element: ElementType, len: usize) -> Result<Buffer> {
        let header = Header { sequence, op: Collective::Barrier, element, len };
        self.execute(header, Buffer::zeros(element, 0))?;
        Ok(Buffer::zeros(element, len))
    }

    /// Moves on what goes on in the background after its operation was answered; whether something
    /// still does, so that this is to be called again soon.
    fn progress(&mut self) -> bool {
        false
    }

    /// Ends this rank's part, after its last operation: the others learn that it left in order.
    fn finish(&mut self);
}

/// How a rank tells the others that it has failed, from whichever thread notices.
pub(crate) trait Abort: Send + Sync {
    /// Tells every other rank, as far as that is possible, and may end this process: whoever calls
    /// it has said why.
    fn abort(&self, message: &str);

    /// Tells every other rank if that can be done without ending this process, which has yet to say
    /// why.
    fn tell(&self, message: &str) {
        let _ = message;
    }
}
