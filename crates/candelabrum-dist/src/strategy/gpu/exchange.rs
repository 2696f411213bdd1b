//! The messages of the sparse strategies on a GPU, and their average. The bits are those of
//! `sparse_exchange.rs`.

use candelabrum_memory::cuda::{CudaSpanMut, Gpu, Kernels, LaunchGrid};
use candelabrum_memory::{ElementType, FlatTensor, SpanMut};

use super::{read, words, write};
use crate::comm::Payload;
use crate::strategy::Bucket;
use crate::{Error, Result};

const KERNELS: Kernels = Kernels { name: "sparse_exchange", text: include_str!("exchange.cu") };

/// Elements in words of 32 bits on a GPU.
pub(super) struct Elements<'a> {
    pub(super) words: &'a FlatTensor,
    /// The word with the first position. The other positions follow.
    pub(super) first: usize,
    /// The distance from an element's position to its value.
    pub(super) room: usize,
    pub(super) count: usize,
}

impl Elements<'_> {
    /// The message of these elements, padded by zeros to `room` elements.
    pub(super) fn pack(&self, gpu: &Gpu, room: usize) -> Result<FlatTensor> {
        let mut message = words(gpu, 2 * room)?;
        let own = [read(self.words)?.into(), self.room.into(), self.count.into()];
        let args = [&[write(&mut message)?.into()], &own[..]].concat();
        gpu.launch(KERNELS, "pack", LaunchGrid::for_each(room), &args)?;
        Ok(message)
    }

    /// Puts the elements into their places in `values`, bit for bit. No place may be outside of them.
    pub(super) fn place_in(&self, gpu: &Gpu, values: &mut CudaSpanMut<'_>) -> Result<()> {
        let len = values.len();
        let own = [read(self.words)?.into(), self.first.into(), self.room.into()];
        let args = [&[values.into(), len.into()], &own[..]].concat();
        Ok(gpu.launch(KERNELS, "place_elements", LaunchGrid::for_each(self.count), &args)?)
    }

    /// Adds the elements to `values`. A position outside of them makes `wrong` 1.
    pub(super) fn add_to(
        &self,
        gpu: &Gpu,
        values: &mut CudaSpanMut<'_>,
        wrong: &mut FlatTensor,
    ) -> Result<()> {
        let len = values.len();
        let to = [values.into(), len.into(), write(wrong)?.into()];
        let own = [read(self.words)?.into(), self.first.into(), self.room.into()];
        let args = [to, own].concat();
        Ok(gpu.launch(KERNELS, "add_elements", LaunchGrid::for_each(self.count), &args)?)
    }
}

/// Writes the mean of all ranks' messages into `values`: their sum in rank order, divided by the
/// number of ranks. `counts` has the number of elements that each rank sent; each message has room
/// for `room`. The ranks are added one after the other, by one launch each.
///
/// The host does not see the positions. One that is not in the bucket makes the first average NaN, so
/// the step fails on every rank, because all ranks have gathered the same messages.
///
/// # Errors
/// [`Error::Protocol`] for messages of another type or length, and the GPU's errors.
pub fn average(
    bucket: &Bucket<'_>,
    gathered: &Payload,
    room: usize,
    counts: &[usize],
    mut values: CudaSpanMut<'_>,
) -> Result<()> {
    if gathered.element_type() != ElementType::I32 || gathered.len() != 2 * room * counts.len() {
        let what = format!("the gathered messages for {bucket} are {gathered:?}");
        return Err(Error::Protocol { what });
    }
    let gpu = bucket.gpu()?;
    let mut wrong = words(&gpu, 1)?;
    SpanMut::Cuda(values.reborrow()).fill(0.0)?;
    for (rank, &count) in counts.iter().enumerate() {
        let (first, count) = (rank * 2 * room, count.min(room));
        let message = Elements { words: gathered, first, room, count };
        message.add_to(&gpu, &mut values, &mut wrong)?;
    }
    let grid = LaunchGrid::for_each(values.len());
    let args = [(&mut values).into(), (bucket.world_size as f32).into(), read(&wrong)?.into()];
    Ok(gpu.launch(KERNELS, "divide", grid, &args)?)
}
