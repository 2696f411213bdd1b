//! The images that a convolution reads: as they are, or each channel normalised when it is read.
//!
//! A normalised image exists only in the cache of the core that reads it.

use std::ops::Range;

use candelabrum_memory::simd::simd_once;
use rayon::prelude::*;

use crate::kernels::channel_line::{ChannelLine, Rectifier};
use crate::kernels::elementwise::{clipped, rectified};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

/// Some images (N, C, H, W).
#[derive(Clone, Copy)]
pub(crate) struct Images<'a, T> {
    xs: &'a [T],
    normal: Option<Normal<'a, T>>,
}

/// How images are normalised.
#[derive(Clone, Copy)]
struct Normal<'a, T> {
    /// The number of pixels of a channel.
    plane: usize,
    /// The function of each channel, [saved](Line::save).
    lines: &'a [T],
    rectifier: Option<Rectifier>,
}

impl<'a, T: Float> Images<'a, T> {
    /// No images, for a backward pass without the gradient of the weight, which alone reads them.
    pub(crate) fn none() -> Self {
        Self::plain(&[])
    }

    /// Images that are read as they are.
    pub(crate) fn plain(xs: &'a [T]) -> Self {
        Self { xs, normal: None }
    }

    /// Images whose channels, of `plane` pixels, are read through the saved `lines` and the activation.
    pub(crate) fn normalised(
        xs: &'a [T],
        plane: usize,
        lines: &'a [T],
        rectifier: Option<Rectifier>,
    ) -> Self {
        Self { xs, normal: Some(Normal { plane, lines, rectifier }) }
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        self.xs.len()
    }

    /// The images with these elements, which begin and end between images.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        Self { xs: &self.xs[range], ..self }
    }

    /// Part `number` of those with `len` elements. The last one may have fewer. Of no images, every part is
    /// empty.
    pub(super) fn chunk(self, number: usize, len: usize) -> Self {
        let end = self.len().min((number + 1) * len);
        self.part(end.min(number * len)..end)
    }

    /// Memory for [`Self::read`] of so many elements.
    pub(super) fn scratch(&self, len: usize) -> Pooled<T> {
        if self.normal.is_some() { Pooled::new(len) } else { Pooled::none() }
    }

    /// Some whole channels. If they are normalised, they are written to `scratch`.
    #[inline(always)]
    pub(super) fn read<'b>(&self, range: Range<usize>, scratch: &'b mut [T]) -> &'b [T]
    where
        'a: 'b,
    {
        let Some(normal) = self.normal else { return &self.xs[range] };
        let scratch = &mut scratch[..range.len()];
        normal.write(range.start, &self.xs[range], scratch);
        scratch
    }

    /// All images, for an algorithm that does not read them channel by channel. If they are normalised, the
    /// threads write them to `memory`.
    pub(super) fn whole<'b>(&self, memory: &'b mut Pooled<T>) -> &'b [T]
    where
        'a: 'b,
    {
        let Some(normal) = self.normal else { return self.xs };
        *memory = Pooled::new(self.len());
        let threads = worth_threads(self.len());
        let image = normal.plane * normal.channels();
        let images = memory.par_chunks_mut(image).zip(self.xs.par_chunks(image));
        for_each(threads, images, |(to, xs)| normal.write(0, xs, to));
        memory
    }
}

impl<T: Float> Normal<'_, T> {
    fn channels(&self) -> usize {
        self.lines.len() / ChannelLine::<T>::LEN
    }

    /// Writes the normalised channels `xs`, the first of which has so many elements before it.
    fn write(&self, start: usize, xs: &[T], to: &mut [T]) {
        let first = start / self.plane;
        let line = |number: usize| &self.lines[number % self.channels() * ChannelLine::<T>::LEN..];
        let lines = (first..).map(line);
        let planes = xs.chunks_exact(self.plane).zip(to.chunks_exact_mut(self.plane));
        simd_once(
            #[inline(always)]
            move || match self.rectifier {
                None => write_planes(planes, lines, |z| z),
                Some(Rectifier::Relu) => write_planes(planes, lines, rectified),
                Some(Rectifier::Relu6) => write_planes(planes, lines, clipped),
            },
        );
    }
}

/// Writes channels through their lines and the activation.
#[inline(always)]
fn write_planes<'a, 'b, T: Float>(
    planes: impl Iterator<Item = (&'a [T], &'b mut [T])>,
    lines: impl Iterator<Item = &'a [T]>,
    activate: impl Fn(T) -> T,
) {
    for ((xs, to), line) in planes.zip(lines) {
        let line = ChannelLine::load(line);
        for (to, &x) in to.iter_mut().zip(xs) {
            *to = activate(line.at(x));
        }
    }
}
