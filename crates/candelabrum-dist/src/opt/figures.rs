//! The cost of a strategy's steps.

use std::ops::{Add, AddAssign, Sub};
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

impl StepFigures {
    fn combined(
        self,
        other: Self,
        count: fn(u64, u64) -> u64,
        time: fn(Duration, Duration) -> Duration,
    ) -> Self {
        Self {
            steps: count(self.steps, other.steps),
            skipped: count(self.skipped, other.skipped),
            replayed: count(self.replayed, other.replayed),
            buckets: count(self.buckets, other.buckets),
            early_buckets: count(self.early_buckets, other.early_buckets),
            early_updates: count(self.early_updates, other.early_updates),
            bytes_sent: count(self.bytes_sent, other.bytes_sent),
            bytes_received: count(self.bytes_received, other.bytes_received),
            backward: time(self.backward, other.backward),
            compress: time(self.compress, other.compress),
            communication: time(self.communication, other.communication),
            exposed: time(self.exposed, other.exposed),
            decompress: time(self.decompress, other.decompress),
            update: time(self.update, other.update),
        }
    }
}

impl AddAssign for StepFigures {
    fn add_assign(&mut self, other: Self) {
        *self = self.combined(other, Add::add, Add::add);
    }
}

impl Sub for StepFigures {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.combined(earlier, Sub::sub, Sub::sub)
    }
}

/// Adds the time that `work` takes to `total`.
pub(super) fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *total += start.elapsed();
    result
}
