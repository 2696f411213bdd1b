//! Values of a parameter that are still on their way to this process.
//!
//! A key-value store sends new values while this process goes on. The first access to the parameter
//! in the next forward pass waits for them, so the transfer and the computation of earlier layers
//! overlap.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_memory::SpanMut;
use parking_lot::Mutex;

/// Waits for the values and writes them.
pub(crate) type Fetch = Box<dyn FnOnce(SpanMut<'_>) + Send>;

/// The values on their way to one parameter. Clones of a parameter share it.
#[derive(Clone, Default)]
pub(crate) struct Arrival(Arc<ArrivalState>);

#[derive(Default)]
struct ArrivalState {
    /// Whether `fetch` is set. It makes the usual question, which is asked at every access, cheap.
    expected: AtomicBool,
    /// Whether the value was used as a tensor since the last [`Arrival::expect`].
    used: AtomicBool,
    fetch: Mutex<Option<Fetch>>,
}

impl Arrival {
    pub(crate) fn expect(&self, fetch: Fetch) {
        let mut place = self.0.fetch.lock();
        *place = Some(fetch);
        self.0.used.store(false, Ordering::Relaxed);
        self.0.expected.store(true, Ordering::Release);
    }

    /// Has `write` write the values with the work that was given to [`Self::expect`], unless they
    /// have been written. Another thread that accesses the parameter waits meanwhile.
    pub(crate) fn complete(&self, write: impl FnOnce(Fetch)) {
        if !self.0.expected.load(Ordering::Acquire) {
            return;
        }
        let mut place = self.0.fetch.lock();
        if let Some(fetch) = place.take() {
            write(fetch);
        }
        self.0.expected.store(false, Ordering::Release);
    }

    pub(crate) fn note_use(&self) {
        self.0.used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_used(&self) -> bool {
        self.0.used.load(Ordering::Relaxed)
    }

    pub(crate) fn take_use(&self) -> bool {
        self.0.used.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = self.0.expected.load(Ordering::Relaxed);
        f.write_str(if expected { "Arrival(expected)" } else { "Arrival" })
    }
}
