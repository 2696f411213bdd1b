//! What the steps of a strategy have cost.

use std::ops::{AddAssign, Sub};
use std::time::{Duration, Instant};

/// What the steps of one strategy have cost this rank, summed since the optimizer was made;
/// subtract two to get what lies between. The forward pass is before the step and not in here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFigures {
    /// Steps, skipped ones included.
    pub steps: u64,
    /// Steps that an overflow made all ranks leave out.
    pub skipped: u64,
    /// Units that were sent.
    pub units: u64,
    /// Those of them that left before the backward pass had ended.
    pub early_units: u64,
    /// Units whose parameters were updated while later units were still under way.
    pub early_updates: u64,
    /// Payload bytes handed to the transport.
    pub bytes_sent: u64,
    /// Payload bytes taken from the transport.
    pub bytes_received: u64,
    /// candle's backward pass, and the gradients' way into their buckets.
    pub backward: Duration,
    /// Error feedback and the making of messages.
    pub compress: Duration,
    /// Time that collectives took, waiting for slower ranks included.
    pub communication: Duration,
    /// Time that the step stood still waiting for collectives.
    pub exposed: Duration,
    /// Messages back to averages, and the check that these are finite.
    pub decompress: Duration,
    /// The optimizer.
    pub update: Duration,
}

impl AddAssign for StepFigures {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.units += other.units;
        self.early_units += other.early_units;
        self.early_updates += other.early_updates;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.backward += other.backward;
        self.compress += other.compress;
        self.communication += other.communication;
        self.exposed += other.exposed;
        self.decompress += other.decompress;
        self.update += other.update;
    }
}

impl Sub for StepFigures {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            steps: self.steps - earlier.steps,
            skipped: self.skipped - earlier.skipped,
            units: self.units - earlier.units,
            early_units: self.early_units - earlier.early_units,
            early_updates: self.early_updates - earlier.early_updates,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
            backward: self.backward - earlier.backward,
            compress: self.compress - earlier.compress,
            communication: self.communication - earlier.communication,
            exposed: self.exposed - earlier.exposed,
            decompress: self.decompress - earlier.decompress,
            update: self.update - earlier.update,
        }
    }
}

/// Adds the time that `work` takes to `total`.
pub(super) fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *total += start.elapsed();
    result
}
