//! Strategies: the messages between ranks in a step, and their aggregation.
//!
//! A [`Strategy`] has the parts of GRACE (Xu et al., "GRACE: A Compressed Communication Framework
//! for Distributed Machine Learning", ICDCS 2021): memory, compression, exchange, aggregation. The
//! distributed optimizer calls them for each *bucket* of gradients (or of parameters, see
//! [`Subject`]):
//! ```text
//! u = g + r                    compensate: add the residual
//! message, rest = C(u)         compress: the values to send, and the rest
//! r = rest                     update: the residual for the next step
//! exchange                     the message's collectives, all buckets' at the same time
//! G = mean over ranks          aggregate: the same bits on every rank
//! ```
//!
//! A strategy that is only an all-reduce of gradients in some element type (fp32, fp16, bf16) has
//! none of these parts, because the type describes it completely (`all_reduce.rs`). Each other strategy
//! has a file of its own. Code for GPUs is in [`gpu`]. [`register`] adds a custom strategy, whose
//! name `--dist-option` then accepts. `examples/custom_strategy.rs` is an example.

mod all_reduce;
pub mod bits;
mod bucket;
mod config;
mod error_feedback;
mod message;
mod partial_update;
mod quantized;
mod registry;
mod sparse_exchange;
mod sparse_threshold;
mod sparse_top_k;

pub mod gpu;
pub mod select;

pub use bucket::Bucket;
pub use config::{StrategyConfig, StrategyOptions};
pub use error_feedback::ErrorFeedback;
pub use message::Message;
pub use registry::{check, register};

pub(crate) use all_reduce::AllReduce;
pub(crate) use registry::{Method, make};

use std::fmt;

use candelabrum_memory::{Span, SpanMut};

use self::gpu::GpuStrategy;
use crate::comm::{Collective, Communicator, Payload, Pending};
use crate::{Error, Result};

/// The values that a strategy exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Gradients, before the update. Replicas stay equal.
    Gradients,
    /// Parameters, after every rank has updated them with its own gradients. Replicas differ until
    /// [`crate::DistOpt::average_parameters`].
    Parameters,
}

/// One way in which ranks agree on an update.
///
/// Every method is called on all ranks for the same buckets in the same order. Apart from the numbers
/// in the bucket, its behaviour must depend only on data that are the same on all ranks.
///
/// A strategy must have a description ([`describe`](Self::describe)) and a message
/// ([`compress`](Self::compress)). If the message is not the bucket itself, it also needs
/// [`aggregate`](Self::aggregate).
pub trait Strategy: fmt::Debug + Send {
    /// The name and every setting. Ranks compare their descriptions: equal descriptions must mean
    /// equal exchanges.
    fn describe(&self) -> String;

    /// The values that it exchanges at this step. Steps count from 0.
    fn subject(&self, step: u64) -> Subject {
        let _ = step;
        Subject::Gradients
    }

    /// Returns an error for a `spars` out of range.
    ///
    /// # Errors
    /// [`Error::Setting`].
    fn check_spars(&self, spars: f32) -> Result<()> {
        let _ = spars;
        Ok(())
    }

    /// Whether a NaN or infinity in one rank's gradient always makes the average NaN or infinite on
    /// every rank. The ranks then need no vote on it.
    fn shows_bad_numbers(&self) -> bool {
        false
    }

    /// Allocates memory for the buckets of a layout, before the first step with them.
    ///
    /// # Errors
    /// Those of [`Communicator::alloc`].
    fn prepare(&mut self, buckets: &[Bucket<'_>], comm: &dyn Communicator) -> Result<()> {
        let _ = (buckets, comm);
        Ok(())
    }

    /// Frees the memory that [`prepare`](Self::prepare) allocated for a layout, which no step will
    /// use again.
    fn forget(&mut self, layout: usize) {
        let _ = layout;
    }

    /// Whether an average is over the ranks that have gradients ([`Bucket::workers`]), and not over all ranks, of which servers
    /// have gradients of zero.
    fn averages_workers(&self) -> bool {
        false
    }

    /// Whether this bucket of parameters is exchanged at this step. Gradients are always exchanged.
    fn takes_part(&self, bucket: &Bucket<'_>) -> bool {
        let _ = bucket;
        true
    }

    /// The vectors that it keeps between steps by parameter name, if it keeps any.
    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        None
    }

    /// The code for buckets on a GPU, if there is any. Otherwise each bucket on a GPU is copied to the
    /// host and back, and the user is told so once. [`compensate`](Self::compensate) and
    /// [`update`](Self::update) get the numbers where the code needs them.
    fn on_gpu(&mut self) -> Option<&mut dyn GpuStrategy> {
        None
    }

    /// Error feedback, first half: adds the residual to `values`.
    ///
    /// # Errors
    /// A device's error.
    fn compensate(&mut self, bucket: &Bucket<'_>, values: SpanMut<'_>) -> Result<()> {
        self.error_feedback().map_or(Ok(()), |feedback| feedback.add_residual(bucket, values))
    }

    /// Compression: makes the message of `values`, and leaves in `values` the part that is not
    /// sent.
    ///
    /// # Errors
    /// Any reason why the message cannot be made.
    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> Result<Message>;

    /// Error feedback, second half: stages `rest`, which [`compress`](Self::compress) left in the values.
    /// `rest` is `None` if the values themselves are sent and nothing is left. A strategy that
    /// knows the loss only after the exchange may stage it in [`aggregate`](Self::aggregate)
    /// instead.
    ///
    /// # Errors
    /// A device's error.
    fn update(&mut self, bucket: &Bucket<'_>, rest: Option<Span<'_>>) -> Result<()> {
        self.error_feedback().map_or(Ok(()), |feedback| feedback.set_residual(bucket, rest))
    }

    /// Exchange: starts one collective of a message. The optimizer waits for its result.
    fn exchange(&mut self, comm: &dyn Communicator, op: Collective, buffer: Payload) -> Pending {
        comm.start(op, buffer)
    }

    /// Decompression and aggregation: writes the mean over all ranks into `values`, from
    /// `received`, the results of the message's collectives. Or returns the message of another
    /// round. It is not called if the values themselves were sent, because they are then the
    /// result.
    ///
    /// # Errors
    /// A message that it cannot decode.
    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        let _ = (received, values);
        Err(Error::Protocol { what: format!("{} got a message for {bucket}", self.describe()) })
    }

    /// Ends a step, which was taken or not (after an error or an overflow). A step that was not
    /// taken must leave no trace in the error feedback.
    fn end_step(&mut self, taken: bool) {
        if let Some(feedback) = self.error_feedback() {
            feedback.end_step(taken);
        }
    }

    /// A note for the user, returned once.
    fn note(&mut self) -> Option<String> {
        None
    }
}

/// [`Strategy::compress`] or [`GpuStrategy::compress`], by the memory of the bucket.
pub(crate) fn compress(
    strategy: &mut dyn Strategy,
    bucket: &Bucket<'_>,
    values: SpanMut<'_>,
) -> Result<Message> {
    match values {
        SpanMut::Host(values) => strategy.compress(bucket, values),
        SpanMut::Cuda(values) => on_gpu(strategy)?.compress(bucket, values),
    }
}

/// [`Strategy::aggregate`] or [`GpuStrategy::aggregate`], by the memory of the bucket.
pub(crate) fn aggregate(
    strategy: &mut dyn Strategy,
    bucket: &Bucket<'_>,
    received: Vec<Payload>,
    values: SpanMut<'_>,
) -> Result<Option<Message>> {
    match values {
        SpanMut::Host(values) => strategy.aggregate(bucket, received, values),
        SpanMut::Cuda(values) => on_gpu(strategy)?.aggregate(bucket, received, values),
    }
}

fn on_gpu(strategy: &mut dyn Strategy) -> Result<&mut dyn GpuStrategy> {
    strategy.on_gpu().ok_or_else(|| candelabrum_memory::Error::OnDevice.into())
}
