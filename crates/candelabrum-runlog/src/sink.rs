//! A place where events go: a file, a terminal, a service of the user's own.

use crate::{Event, Result};

/// A place where events go. [`RunLog`](crate::RunLog) gives it every event, one at a time.
pub trait EventSink: Send {
    /// The name in messages, such as the path of a file.
    fn name(&self) -> String;

    /// Takes an event. It may keep it in memory until [`flush`](EventSink::flush).
    ///
    /// # Errors
    /// If the event could not be written. The sink then gets no more events.
    fn event(&mut self, event: &Event) -> Result<()>;

    /// Writes what is still in memory. It is called about once a second while there are events.
    ///
    /// # Errors
    /// If something could not be written. The sink then gets no more events.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
