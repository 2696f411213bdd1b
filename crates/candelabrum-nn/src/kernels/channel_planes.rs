//! The places of a channel's values in a batch.

use candelabrum_memory::thread_pool;
use rayon::prelude::*;

use super::float::Float;
use super::parallel::for_each;
use crate::kernels::scratch::Pooled;

/// (N, C, H W). There are no values if one of these sizes is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelPlanes {
    pub(crate) batch: usize,
    pub(crate) channels: usize,
    pub(crate) plane: usize,
}

/// A block of channels of each output: one part of each image.
type PlaneParts<'a, T, const N: usize> = [Vec<&'a mut [T]>; N];

impl ChannelPlanes {
    /// The number of values of a channel.
    pub(crate) fn count(self) -> usize {
        self.batch * self.plane
    }

    /// The number of values of an image, at least 1, because slices cannot be cut into parts of 0.
    fn image(self) -> usize {
        (self.channels * self.plane).max(1)
    }

    /// A single channel without gaps.
    pub(crate) fn one_channel(self) -> Self {
        Self { batch: 1, channels: 1, plane: self.count() }
    }

    /// The planes of a channel.
    pub(crate) fn planes<T>(
        self,
        values: &[T],
        channel: usize,
    ) -> impl Iterator<Item = &[T]> + Clone {
        let images = values.chunks_exact(self.image());
        images.map(move |image| &image[channel * self.plane..][..self.plane])
    }

    /// Copies the values of a channel one after the other.
    pub(crate) fn gather<T: Float>(self, values: &[T], channel: usize) -> Pooled<T> {
        let mut gathered = Pooled::new(self.count());
        let parts = gathered.chunks_exact_mut(self.plane.max(1));
        for (to, from) in parts.zip(self.planes(values, channel)) {
            to.copy_from_slice(from);
        }
        gathered
    }

    /// Calls `f` for every channel with its planes of each of the `outputs` (no planes where an output is
    /// empty) and its `width` numbers of `records`. One thread computes a channel.
    pub(crate) fn for_channels<T: Float, R: Send, const N: usize>(
        self,
        threads: bool,
        outputs: [&mut [T]; N],
        records: &mut [R],
        width: usize,
        f: impl Fn(usize, [Planes<'_, '_, T>; N], &mut [R]) + Sync,
    ) {
        // A few blocks of channels per thread. The numbers of the result do not depend on the
        // blocks.
        let blocks = if threads { 4 * thread_pool::threads() } else { 1 };
        let block = self.channels.div_ceil(blocks).max(1);
        let mut parts: Vec<PlaneParts<'_, T, N>> = Vec::new();
        parts.resize_with(self.channels.div_ceil(block), || [const { Vec::new() }; N]);
        for (number, output) in outputs.into_iter().enumerate() {
            for image in output.chunks_exact_mut(self.image()) {
                for (parts, part) in parts.iter_mut().zip(image.chunks_mut(block * self.plane)) {
                    parts[number].push(part);
                }
            }
        }
        let run = |(number, (mut parts, records)): (usize, (PlaneParts<'_, T, N>, &mut [R]))| {
            for (index, record) in records.chunks_exact_mut(width).enumerate() {
                let start = index * self.plane;
                let planes =
                    parts.each_mut().map(|parts| Planes { parts, start, plane: self.plane });
                f(number * block + index, planes, record);
            }
        };
        let records = records.par_chunks_mut(block * width);
        for_each(threads, parts.into_par_iter().zip(records).enumerate(), run);
    }
}

/// The planes of a channel in memory to be written: one in each part.
pub(crate) struct Planes<'a, 'b, T> {
    pub(crate) parts: &'a mut [&'b mut [T]],
    pub(crate) start: usize,
    pub(crate) plane: usize,
}

impl<T: Float> Planes<'_, '_, T> {
    #[inline(always)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (start, plane) = (self.start, self.plane);
        self.parts.iter_mut().map(move |part| &mut part[start..][..plane])
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[T]> + Clone {
        let (start, plane) = (self.start, self.plane);
        self.parts.iter().map(move |part| &part[start..][..plane])
    }

    /// Copies the values one after the other.
    pub(crate) fn gather(&self) -> Pooled<T> {
        let mut gathered = Pooled::new(self.parts.len() * self.plane);
        let parts = gathered.chunks_exact_mut(self.plane.max(1));
        parts.zip(self.iter()).for_each(|(to, from)| to.copy_from_slice(from));
        gathered
    }

    /// The reverse of [`Self::gather`].
    pub(crate) fn scatter(&mut self, values: &[T]) {
        let parts = values.chunks_exact(self.plane.max(1));
        self.iter_mut().zip(parts).for_each(|(to, from)| to.copy_from_slice(from));
    }
}
