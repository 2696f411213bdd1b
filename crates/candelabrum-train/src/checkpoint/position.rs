//! How far a training is.

use serde::{Deserialize, Serialize};

/// The next step of a training. Batches, augmentation and the order of the data depend on it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The number of complete passes over the data.
    pub epoch: usize,
    /// The number of steps in the present pass.
    pub step_in_epoch: usize,
    /// The number of all steps.
    pub step: u64,
}
