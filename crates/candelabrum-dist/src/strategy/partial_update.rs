//! partialUpdate: each rank trains on its own, and the ranks average a part of their parameters at
//! each step.
//!
//! Every rank updates every parameter with its own gradient. Then the *parameters* of one bucket are
//! averaged, another bucket at each step. So in as many steps as there are buckets, each is averaged
//! once. SINGA calls this asynchronous. It is block-cyclic local SGD (compare Lin et al., "Don't
//! Use Large Mini-Batches, Use Local SGD", arXiv:1808.07217). Momentum is not exchanged.

use candelabrum_memory::cuda::CudaSpanMut;

use super::gpu::GpuStrategy;
use super::{Bucket, Message, Strategy, Subject};
use crate::Result;
use crate::comm::{Collective, ReduceOp};

const AVERAGE: Collective = Collective::AllReduce(ReduceOp::Mean);

/// The number of steps so far selects the bucket. This number is part of the optimizer's state.
#[derive(Debug)]
pub(super) struct PartialUpdate;

impl Strategy for PartialUpdate {
    fn describe(&self) -> String {
        "partialUpdate".to_owned()
    }

    fn subject(&self, _step: u64) -> Subject {
        Subject::Parameters
    }

    fn takes_part(&self, bucket: &Bucket<'_>) -> bool {
        bucket.index as u64 == bucket.step % bucket.count as u64
    }

    fn on_gpu(&mut self) -> Option<&mut dyn GpuStrategy> {
        Some(self)
    }

    fn compress(&mut self, _bucket: &Bucket<'_>, _values: &mut [f32]) -> Result<Message> {
        Ok(Message::InPlace(AVERAGE))
    }
}

impl GpuStrategy for PartialUpdate {
    fn compress(&mut self, _bucket: &Bucket<'_>, _values: CudaSpanMut<'_>) -> Result<Message> {
        Ok(Message::InPlace(AVERAGE))
    }
}
