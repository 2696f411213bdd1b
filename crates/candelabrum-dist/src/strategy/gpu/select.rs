//! The selection of the elements that a sparse strategy sends, on a GPU. select.cu has the method.
//!
//! The selected elements are those of [`Selector`](crate::strategy::select::Selector).

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaSpanMut, Gpu, KernelArg, Kernels, LaunchGrid};

use super::exchange::Elements;
use super::{read, words, write};
use crate::strategy::select::key;
use crate::{Error, Result};

const KERNELS: Kernels = Kernels { name: "sparse_select", text: include_str!("select.cu") };

/// `SHARE` in select.cu.
const SHARE: usize = 2048;

/// `HISTOGRAM` in select.cu.
const HISTOGRAM: usize = 8192;

/// `BINS` in select.cu.
const BINS: usize = 2048;

/// The digits of a key, the highest first: the place of the lowest bit, and the number of bits.
const DIGITS: [(usize, usize); 3] = [(20, 11), (10, 10), (0, 10)];

/// Takes the `k` elements out of `values` that are largest in magnitude, and leaves zeros in their
/// places. Of equal magnitudes it takes the lowest positions. If `k` is larger than the number of
/// elements, it takes all.
///
/// Returns the message: `k` positions, ascending, then `k` values, in words of 32 bits on the GPU.
///
/// # Errors
/// More than 2³¹ - 1 elements, and the GPU's errors.
pub fn take_top_k(gpu: &Gpu, mut values: CudaSpanMut<'_>, k: usize) -> Result<FlatTensor> {
    let k = k.min(values.len());
    let mut message = words(gpu, 2 * k)?;
    if k == 0 {
        return Ok(message);
    }
    let mut selection = begin(gpu, 0, i32::MAX, k)?;
    let mut bins = words(gpu, BINS)?;
    for (shift, bits) in DIGITS {
        let mut selection = selection.span_mut()?.cuda()?;
        let numbers = [
            write(&mut bins)?.into(),
            selection.as_span().into(),
            values.as_span().into(),
            shift.into(),
            bits.into(),
        ];
        gpu.launch(KERNELS, "histogram", LaunchGrid::by_share(values.len(), HISTOGRAM), &numbers)?;
        let numbers = [write(&mut bins)?.into(), (&mut selection).into(), shift.into()];
        gpu.launch(KERNELS, "choose", LaunchGrid::one_block(BINS), &numbers)?;
    }
    take_out(gpu, &selection, &mut values, &mut message, k)?;
    Ok(message)
}

/// Takes the elements with a magnitude of at least `threshold` out of `values`, and leaves zeros in
/// their places. A NaN is never among them, and a threshold of NaN selects nothing. Of more than
/// `room` elements it takes the first ones.
///
/// Returns the elements, and the number of all that were selected, in a word on the GPU.
///
/// # Errors
/// Those of [`take_top_k`].
pub fn take_at_least(
    gpu: &Gpu,
    mut values: CudaSpanMut<'_>,
    threshold: f32,
    room: usize,
) -> Result<(SelectedElements, FlatTensor)> {
    let bound = match threshold {
        threshold if threshold.is_nan() => i32::MAX,
        threshold if threshold > 0.0 => key(threshold) - 1,
        _ => -1, // below every key
    };
    let selection = begin(gpu, bound, key(f32::INFINITY), 0)?;
    // Zeros, because after a failure of the ranks a count may be too large.
    let mut words = words(gpu, 2 * room)?;
    let count = take_out(gpu, &selection, &mut values, &mut words, room)?;
    Ok((SelectedElements { gpu: gpu.clone(), words, room }, count))
}

/// Elements that were taken out of a bucket on a GPU. The host does not know their number.
#[derive(Debug)]
pub struct SelectedElements {
    gpu: Gpu,
    /// Positions, ascending, and `room` words later the values.
    words: FlatTensor,
    room: usize,
}

impl SelectedElements {
    /// The message of the first `count` elements, padded by zeros to `room` elements.
    ///
    /// # Errors
    /// The GPU's errors.
    pub fn message(&self, count: usize, room: usize) -> Result<FlatTensor> {
        self.first(count).pack(&self.gpu, room)
    }

    /// Returns the first `count` elements to their places in `values`, bit for bit.
    ///
    /// # Errors
    /// The GPU's errors.
    pub fn put_back(&self, count: usize, mut values: CudaSpanMut<'_>) -> Result<()> {
        self.first(count).place_in(&self.gpu, &mut values)
    }

    fn first(&self, count: usize) -> Elements<'_> {
        let Self { words, room, .. } = self;
        Elements { words, first: 0, room: *room, count: count.min(*room) }
    }
}

/// A `Selection` of select.cu.
fn begin(gpu: &Gpu, bound: i32, most: i32, ties: usize) -> Result<FlatTensor> {
    let mut selection = gpu.numbers(3)?;
    let mut memory = selection.span_mut()?.cuda()?;
    let word = |number: i32| u64::from(number.cast_unsigned());
    let args = [(&mut memory).into(), word(bound).into(), word(most).into(), ties.into()];
    gpu.launch(KERNELS, "begin", LaunchGrid::one_block(1), &args)?;
    Ok(selection)
}

/// Moves the selected elements to `words`, as far as there is room. Returns their number.
fn take_out(
    gpu: &Gpu,
    selection: &FlatTensor,
    values: &mut CudaSpanMut<'_>,
    to: &mut FlatTensor,
    room: usize,
) -> Result<FlatTensor> {
    let len = values.len();
    if i32::try_from(len).is_err() {
        let what = format!("a selection among {len} elements on a GPU: positions have 31 bits");
        return Err(Error::Unsupported { what });
    }
    let selection = KernelArg::from(selection.span()?.cuda()?);
    let (by_share, count) = (LaunchGrid::by_share(len, SHARE), len.div_ceil(SHARE));
    let (mut blocks, mut taken) = (words(gpu, 2 * count)?, words(gpu, 1)?);
    let args = [write(&mut blocks)?.into(), selection, values.as_span().into()];
    gpu.launch(KERNELS, "count", by_share, &args)?;
    let args = [write(&mut blocks)?.into(), write(&mut taken)?.into(), selection];
    gpu.launch(KERNELS, "add_up", LaunchGrid::one_block(count), &args)?;
    let (to, blocks) = (write(to)?.into(), read(&blocks)?.into());
    let args = [to, room.into(), values.into(), blocks, selection];
    gpu.launch(KERNELS, "take_out", by_share, &args)?;
    Ok(taken)
}
