//! Values of a parameter that are still on their way to this process.
//!
//! Other processes send new values while this one goes on. The first access to the parameter in the next forward pass waits
//! for them, so the transfer and the computation of earlier layers overlap. Until then the variable has no memory: a tensor
//! of it that a model keeps, and that does not wait, is an error, and never has old values.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candelabrum_memory::SpanMut;
use candle_core::{CpuStorage, Result, Var};
use parking_lot::Mutex;

use super::tensors::{exchange_memory, no_values};

/// Waits for the values and writes them. After an error it is called again by the next access, and returns the error again.
pub(crate) type FetchValues = Box<dyn FnMut(SpanMut<'_>) -> Result<()> + Send>;

/// The values on their way to one parameter. Clones of a parameter share it.
#[derive(Clone, Default)]
pub(crate) struct Arrival(Arc<ArrivalSlot>);

#[derive(Default)]
struct ArrivalSlot {
    /// Whether `expected` has something. It makes the usual question, which is asked at every access, cheap.
    is_expected: AtomicBool,
    expected: Mutex<Option<Expected>>,
}

struct Expected {
    fetch: FetchValues,
    /// The memory of the variable.
    memory: CpuStorage,
}

impl Arrival {
    pub(crate) fn expect(&self, var: &Var, fetch: FetchValues) -> Result<()> {
        let mut expected = self.0.expected.lock();
        match &mut *expected {
            Some(before) => before.fetch = fetch,
            none => {
                let mut memory = no_values();
                exchange_memory(var, &mut memory)?;
                *none = Some(Expected { fetch, memory });
            }
        }
        self.0.is_expected.store(true, Ordering::Release);
        Ok(())
    }

    /// Has `write` write the values to `var` with the work that was given to [`Self::expect`], unless they have been
    /// written. Another thread that accesses the parameter waits meanwhile.
    pub(crate) fn complete<E: From<candle_core::Error>>(
        &self,
        var: &Var,
        write: impl FnOnce(&mut FetchValues) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !self.0.is_expected.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut place = self.0.expected.lock();
        let Some(Expected { fetch, memory }) = &mut *place else { return Ok(()) };
        exchange_memory(var, memory)?;
        if let Err(error) = write(fetch) {
            exchange_memory(var, memory)?;
            return Err(error);
        }
        *place = None;
        self.0.is_expected.store(false, Ordering::Release);
        Ok(())
    }

    /// Gives the memory back without the values, which will be others.
    pub(crate) fn cancel(&self, var: &Var) -> Result<()> {
        self.complete(var, |_| Ok(()))
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = self.0.is_expected.load(Ordering::Relaxed);
        f.write_str(if expected { "Arrival(expected)" } else { "Arrival" })
    }
}
