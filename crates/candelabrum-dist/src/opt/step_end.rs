//! The end of a step.

use crate::Error;

/// The end of a step, the same on every rank.
#[derive(Debug)]
pub(super) enum StepEnd {
    /// The parameters have been updated.
    Taken,
    /// An average overflowed, and the settings ask to leave out such a step.
    Skipped,
    /// The step failed with this error and changed nothing.
    Failed(Error),
}
