//! A value made at first use by something that can fail.

use std::sync::{Mutex, OnceLock, PoisonError};

/// What `OnceLock::get_or_try_init` will be once it is stable.
#[derive(Debug)]
pub(crate) struct Lazy<T> {
    cell: OnceLock<T>,
    making: Mutex<()>,
}

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Self { cell: OnceLock::new(), making: Mutex::new(()) }
    }
}

impl<T> Lazy<T> {
    /// The value, made by `make` if this is the first call that gets that far.
    pub(crate) fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.cell.get() {
            return Ok(value);
        }
        // The lock guards no data, so a panic of another maker leaves nothing broken.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = self.cell.get() {
            return Ok(value);
        }
        let value = make()?;
        Ok(self.cell.get_or_init(|| value))
    }
}
