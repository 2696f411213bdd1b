//! sparseTopK: each rank sends the K = ceil(spars · n) elements of u = g + r with the largest
//! magnitude.
//!
//! This is the exact top-K, with ties decided for the lowest position (Aji and Heafield, "Sparse
//! Communication for Distributed Gradient Descent", EMNLP 2017, arXiv:1704.05021). SINGA does not
//! select the largest, because its comparator sees integers.

use candelabrum_memory::SpanMut;
use candelabrum_memory::cuda::CudaSpanMut;

use super::gpu::{self, GpuStrategy};
use super::select::{Selector, count_of_share};
use super::sparse_exchange::DenseExchange;
use super::{Bucket, ErrorFeedback, Message, Strategy, sparse_exchange};
use crate::comm::{Collective, Communicator, Payload};
use crate::{Error, Result};

/// Sends a share of each bucket, its largest elements.
#[derive(Debug)]
pub(super) struct SparseTopK {
    error_feedback: Option<ErrorFeedback>,
    selector: Selector,
    positions: Vec<u32>,
    note: Option<String>,
    dense: DenseExchange,
}

impl SparseTopK {
    pub(super) fn new(corr: bool) -> Self {
        Self {
            error_feedback: corr.then(ErrorFeedback::default),
            selector: Selector::default(),
            positions: Vec::new(),
            note: None,
            dense: DenseExchange::default(),
        }
    }
}

impl Strategy for SparseTopK {
    fn describe(&self) -> String {
        format!("sparseTopK corr={}", self.error_feedback.is_some())
    }

    fn check_spars(&self, spars: f32) -> Result<()> {
        if spars > 0.0 && spars <= 1.0 {
            return Ok(());
        }
        let range = "above 0 and at most 1 (the share of the elements that sparseTopK sends)";
        Err(Error::Setting { setting: "spars", value: spars.to_string(), range })
    }

    fn prepare(&mut self, buckets: &[Bucket<'_>], _comm: &dyn Communicator) -> Result<()> {
        sparse_exchange::check(buckets)
    }

    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        self.error_feedback.as_mut()
    }

    fn on_gpu(&mut self) -> Option<&mut dyn GpuStrategy> {
        Some(self)
    }

    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> Result<Message> {
        let count = count_of_share(bucket.spars, values.len());
        if !sparse_exchange::pays(bucket, count) {
            return Ok(self.dense.message("sparseTopK", bucket, count, &mut self.note));
        }
        self.selector.top_k(values, count, &mut self.positions);
        let sent = sparse_exchange::take_out(&self.positions, values);
        let buffer = sparse_exchange::pack(&self.positions, &sent, count)?;
        Ok(Message::new(Collective::AllGather, buffer))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        average(bucket, &received, SpanMut::Host(values))
    }

    fn note(&mut self) -> Option<String> {
        self.note.take()
    }
}

impl GpuStrategy for SparseTopK {
    fn compress(&mut self, bucket: &Bucket<'_>, values: CudaSpanMut<'_>) -> Result<Message> {
        let count = count_of_share(bucket.spars, values.len());
        if !sparse_exchange::pays(bucket, count) {
            return Ok(self.dense.message("sparseTopK", bucket, count, &mut self.note));
        }
        let buffer = gpu::take_top_k(&bucket.gpu()?, values, count)?;
        Ok(Message::new(Collective::AllGather, buffer.into()))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: CudaSpanMut<'_>,
    ) -> Result<Option<Message>> {
        average(bucket, &received, SpanMut::Cuda(values))
    }
}

/// Writes the mean of all ranks' messages into `values`.
fn average(
    bucket: &Bucket<'_>,
    received: &[Payload],
    mut values: SpanMut<'_>,
) -> Result<Option<Message>> {
    let count = count_of_share(bucket.spars, values.len());
    let counts = vec![count; bucket.world_size];
    for gathered in received {
        sparse_exchange::average(bucket, gathered, count, &counts, values.reborrow())?;
    }
    Ok(None)
}
