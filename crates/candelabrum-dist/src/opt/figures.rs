//! The cost of a strategy's steps.

use std::ops::{AddAssign, Sub};
use std::time::{Duration, Instant};

/// The cost of one strategy's steps on this rank, summed since the optimizer was made. The
/// difference of two values is the cost of the steps between them. The forward pass happens before
/// the step and is not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFigures {
    /// Steps, skipped ones included.
    pub steps: u64,
    /// Steps that all ranks left out because of an overflow.
    pub skipped: u64,
    /// Steps whose forward and backward pass were CUDA graphs.
    pub replayed: u64,
    /// Buckets that were sent.
    pub buckets: u64,
    /// Buckets that left before the backward pass had ended.
    pub early_buckets: u64,
    /// Buckets whose parameters were updated while later buckets were still under way.
    pub early_updates: u64,
    /// Payload bytes given to the transport.
    pub bytes_sent: u64,
    /// Payload bytes received from the transport.
    pub bytes_received: u64,
    /// candle's backward pass, including the writes of gradients into buckets.
    pub backward: Duration,
    /// Error feedback and the making of messages.
    pub compress: Duration,
    /// Time in collectives, including the wait for slower ranks.
    pub communication: Duration,
    /// Time in which the step only waited for collectives.
    pub exposed: Duration,
    /// Decoding of messages into averages, and the check that these are finite.
    pub decompress: Duration,
    /// The optimizer's updates.
    pub update: Duration,
}

impl AddAssign for StepFigures {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.skipped += other.skipped;
        self.replayed += other.replayed;
        self.buckets += other.buckets;
        self.early_buckets += other.early_buckets;
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
            replayed: self.replayed - earlier.replayed,
            buckets: self.buckets - earlier.buckets,
            early_buckets: self.early_buckets - earlier.early_buckets,
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
