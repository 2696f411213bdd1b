//! Strategies on a GPU: the numbers of a bucket never come to the host.
//!
//! A strategy that has code for GPUs returns it from [`Strategy::on_gpu`](super::Strategy::on_gpu).
//! The sparse strategies select, pack and add by kernels. Their messages and results have the bits
//! of the code for the host.

mod exchange;
mod select;

pub use exchange::average;
pub use select::{SelectedElements, take_at_least, take_top_k};

use candelabrum_memory::cuda::{CudaMemory, CudaSpanMut, Gpu};
use candelabrum_memory::{ElementType, FlatTensor, Location};

use super::{Bucket, Message};
use crate::comm::Payload;
use crate::{Error, Result};

/// The parts of a [`Strategy`](super::Strategy) that see the numbers of a bucket, for buckets on a GPU.
/// The methods enqueue work and should not wait for it, because the host has to enqueue the rest of
/// the backward pass meanwhile.
pub trait GpuStrategy {
    /// Compression, as [`Strategy::compress`](super::Strategy::compress). The payloads of the
    /// message are on the GPU.
    ///
    /// # Errors
    /// Any reason why the message cannot be made.
    fn compress(&mut self, bucket: &Bucket<'_>, values: CudaSpanMut<'_>) -> Result<Message>;

    /// Decompression and aggregation, as [`Strategy::aggregate`](super::Strategy::aggregate). The
    /// results are on the GPU and may not be complete yet: work that is enqueued comes after them.
    ///
    /// # Errors
    /// A message that it cannot decode.
    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: CudaSpanMut<'_>,
    ) -> Result<Option<Message>> {
        let _ = (received, values);
        Err(Error::Protocol { what: format!("a message for {bucket}, which a GPU cannot decode") })
    }
}

/// Zeros in words of 32 bits.
fn words(gpu: &Gpu, len: usize) -> Result<FlatTensor> {
    Ok(FlatTensor::zeros_on(&Location::from_device(&gpu.device()), ElementType::I32, len)?)
}

/// The words' memory, for a kernel that reads them.
fn read(words: &FlatTensor) -> Result<&CudaMemory> {
    words.cuda_memory().ok_or_else(on_host)
}

/// The words' memory, for a kernel that writes them.
fn write(words: &mut FlatTensor) -> Result<&mut CudaMemory> {
    words.cuda_memory_mut().ok_or_else(on_host)
}

fn on_host() -> Error {
    Error::Unsupported { what: "a message in host memory for a bucket on a GPU".to_owned() }
}
