//! The request to end a training in order, by a signal.
//!
//! Machines that are lent for as long as nobody else wants them send SIGTERM some time before they are taken
//! away. A training with a directory of checkpoints then saves its state and ends.

use std::sync::OnceLock;

use crate::Interrupt;

static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();

/// The request of this process, at which a training looks from now on.
pub(super) fn interrupt() -> Interrupt {
    INTERRUPT.get_or_init(Interrupt::watched).clone()
}

/// Passes a signal on to the training. Returns false if none looks: then the process should end at once.
pub(super) fn request(signal: i32) -> bool {
    INTERRUPT.get().inspect(|interrupt| interrupt.request(signal)).is_some()
}

/// The number of the signal that has ended the training of this process before it was complete, if one has.
pub fn interrupted() -> Option<i32> {
    INTERRUPT.get().and_then(Interrupt::ended)
}
