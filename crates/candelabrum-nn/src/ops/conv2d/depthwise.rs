//! Convolutions in which each group has one input channel (depthwise convolutions).
//!
//! There is no sum over channels, so nothing is a matrix product. In the layout of [`PhaseLayout`], an output
//! channel is a sum of as many runs of its input channel as the kernel has elements, and so is the
//! gradient of the input. The gradient of a kernel's element is a dot product of two runs. All of it
//! happens for one channel of one image at a time, which is in the nearest cache.

use pulp::{Simd, WithSimd};

use super::conv::{Conv, Gradients, each_share, elements};
use super::geometry::Geometry;
use super::images::Images;
use super::phases::{PhaseLayout, SLACK, has_small_strides};
use crate::kernels::channel_planes::{ChannelPlanes, Planes};
use crate::kernels::float::Float;
use crate::kernels::gemm::dispatch;
use crate::kernels::parallel::worth_threads;
use crate::kernels::scratch::Pooled;

/// Whether each group has one input channel, and strides are small.
pub(super) fn applies(geometry: &Geometry) -> bool {
    geometry.groups == geometry.in_channels && geometry.groups > 1 && has_small_strides(geometry)
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward_depthwise(&self, xs: Images<'_, T>, bias: Option<&[T]>, ys: &mut [T]) {
        let (geometry, weight) = (self.geometry, self.weight);
        let threads = worth_threads(ys.len());
        each_share(threads, (ys, geometry.out_image()), |images, ys| {
            let xs = xs.part(elements(images, geometry.in_image()));
            dispatch(DepthwiseForward { geometry, weight, xs, ys });
            for y in ys.chunks_exact_mut(geometry.out_image()) {
                self.finish(y, bias, geometry.out_pixels());
            }
        });
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_depthwise(
        &self,
        xs: Images<'_, T>,
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let (geometry, weight) = (self.geometry, self.weight);
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        let dys = &*dys;
        let (height, width) = geometry.in_size;
        let (batch, channels) = (geometry.batch, geometry.in_channels);
        let inputs = ChannelPlanes { batch, channels, plane: height * width };
        let kernels = weight.len() / channels;
        let (has_dxs, has_dw, mut unwanted) = (dxs.is_some(), dw.is_some(), Pooled::none());
        let dw = dw.unwrap_or_else(|| {
            unwanted = Pooled::new(weight.len());
            &mut unwanted
        });
        let phases = PhaseLayout::new(geometry);
        let (offsets, by_phase) = (phases.offsets(), phases.by_phase());
        let layout =
            PatchLayout { geometry, phases: &phases, offsets: &offsets, by_phase: &by_phase };
        let channel = |channel: usize, [dxs]: [Planes<'_, '_, T>; 1], dw: &mut [T]| {
            let weight = &weight[channel * kernels..][..kernels];
            let dxs = has_dxs.then_some(dxs);
            let dw = has_dw.then_some(dw);
            dispatch(DepthwiseBackward { layout, weight, xs, dys, channel, dxs, dw });
        };
        let threads = worth_threads(dys.len());
        inputs.for_channels(threads, [dxs.unwrap_or_default()], dw, kernels, channel);
    }
}

/// Some images.
struct DepthwiseForward<'a, T> {
    geometry: &'a Geometry,
    weight: &'a [T],
    xs: Images<'a, T>,
    ys: &'a mut [T],
}

impl<T: Float> WithSimd for DepthwiseForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, weight, xs, ys } = self;
        let phases = PhaseLayout::new(geometry);
        let offsets = phases.offsets();
        let mut channel = Pooled::zeros(phases.channel() + SLACK);
        let mut rows = Pooled::new(phases.outputs() + SLACK);
        let outputs = ys.chunks_exact_mut(geometry.out_pixels() * geometry.group_channels());
        let mut kernels = weight.chunks_exact(offsets.len()).cycle();
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let mut scratch = xs.scratch(pixels);
        for (number, ys) in outputs.enumerate() {
            let x = xs.read(number * pixels..(number + 1) * pixels, &mut scratch);
            phases.divide(x, &mut channel);
            for y in ys.chunks_exact_mut(geometry.out_pixels()) {
                let kernel = kernels.next().unwrap_or_default();
                let terms = kernel.iter().copied().zip(offsets.iter().copied());
                sum_of_runs(simd, &terms, &channel, &mut rows, phases.outputs(), false);
                phases.narrow(&rows, y);
            }
        }
    }
}

/// `out = sum of weight · run`, or `out += ...` if `add`, for `len` elements and a few behind them. `terms` are
/// the weights, and the first element of each run of `from`.
#[inline(always)]
fn sum_of_runs<T: Float, S: Simd>(
    simd: S,
    terms: &(impl Iterator<Item = (T, usize)> + Clone),
    from: &[T],
    out: &mut [T],
    len: usize,
    add: bool,
) {
    let lanes = T::lanes::<S>();
    for at in (0..len).step_by(VECTORS * lanes) {
        let out = &mut T::vectors_mut::<S>(&mut out[at..])[..VECTORS];
        let mut sums = [T::zero_vector(simd); VECTORS];
        if add {
            sums.copy_from_slice(out);
        }
        for (weight, start) in terms.clone() {
            let weight = T::splat(simd, weight);
            let run = &T::vectors::<S>(&from[start + at..])[..VECTORS];
            for (sum, &x) in sums.iter_mut().zip(run) {
                *sum = T::times_plus(simd, weight, x, *sum);
            }
        }
        out.copy_from_slice(&sums);
    }
}

/// Vectors of one sum: as many additions are under way at the same time.
const VECTORS: usize = 4;

/// Where the elements of patches lie.
#[derive(Clone, Copy)]
struct PatchLayout<'a> {
    geometry: &'a Geometry,
    phases: &'a PhaseLayout<'a>,
    /// See [`PhaseLayout::offsets`] and [`PhaseLayout::by_phase`].
    offsets: &'a [usize],
    by_phase: &'a [Vec<(usize, usize)>],
}

/// The gradients of an input channel and of its kernels, over all images. Both read the gradients of the same
/// outputs, which therefore come from memory once.
struct DepthwiseBackward<'a, 'b, 'c, T> {
    layout: PatchLayout<'a>,
    /// The kernels of the channel.
    weight: &'a [T],
    xs: Images<'a, T>,
    dys: &'a [T],
    channel: usize,
    dxs: Option<Planes<'b, 'c, T>>,
    dw: Option<&'a mut [T]>,
}

impl<T: Float> WithSimd for DepthwiseBackward<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { layout, weight, xs, dys, channel, mut dxs, mut dw } = self;
        let PatchLayout { geometry, phases, offsets, by_phase } = layout;
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let outputs = geometry.out_pixels() * geometry.group_channels();
        // Zeros before and behind the gradients of the outputs: an input pixel at the border meets fewer of
        // them than the kernel has elements.
        let before = by_phase.iter().flatten().map(|&(_, offset)| offset).max().unwrap_or(0);
        let mut rows = Pooled::zeros(before + phases.phase() + SLACK);
        let mut x = Pooled::zeros(phases.channel() + SLACK);
        let mut dx = Pooled::new(if dxs.is_some() { x.len() } else { 0 });
        let mut dxs = dxs.as_mut().map(Planes::iter_mut);
        if let Some(dw) = &mut dw {
            dw.fill(T::zero());
        }
        let mut scratch = xs.scratch(pixels);
        for (image, dys) in dys.chunks_exact(geometry.out_image()).enumerate() {
            if dw.is_some() {
                let first = image * geometry.in_image() + channel * pixels;
                phases.divide(xs.read(first..first + pixels, &mut scratch), &mut x);
            }
            let dys = &dys[channel * outputs..][..outputs];
            let kernels = weight.chunks_exact(offsets.len());
            let outputs = dys.chunks_exact(geometry.out_pixels()).zip(kernels).enumerate();
            for (number, (dy, kernel)) in outputs {
                phases.widen(dy, &mut rows[before..]);
                if let Some(dw) = &mut dw {
                    let dw = &mut dw[number * offsets.len()..][..offsets.len()];
                    add_dots(simd, &rows[before..], &x, offsets, phases.outputs(), dw);
                }
                if dxs.is_some() {
                    // In their order: the vectors behind the end of one phase are written again by the next.
                    for (place, taps) in by_phase.iter().enumerate() {
                        let terms = taps.iter().map(
                            #[inline(always)]
                            |&(tap, offset)| (kernel[tap], before - offset),
                        );
                        let dx = &mut dx[place * phases.phase()..];
                        sum_of_runs(simd, &terms, &rows, dx, phases.phase(), number > 0);
                    }
                }
            }
            if let Some(to) = dxs.as_mut().and_then(Iterator::next) {
                phases.join(&dx, to);
            }
        }
    }
}

/// Adds to each number of `dw` the sum of the products of `len` elements of `a` and of a run of `b`. Behind
/// these elements `a` has zeros, and `b` has numbers.
#[inline(always)]
fn add_dots<T: Float, S: Simd>(
    simd: S,
    a: &[T],
    b: &[T],
    offsets: &[usize],
    len: usize,
    dw: &mut [T],
) {
    // A 3 × 3 kernel is one group: each vector of `a` is read once.
    let (nines, rest) = offsets.as_chunks::<9>();
    let (threes, ones) = rest.as_chunks::<3>();
    let (dw_nines, dw) = dw.as_chunks_mut::<9>();
    let (dw_threes, dw_ones) = dw.as_chunks_mut::<3>();
    for (dw, offsets) in dw_nines.iter_mut().zip(nines) {
        add_dots_of(simd, a, b, offsets, len, dw);
    }
    for (dw, offsets) in dw_threes.iter_mut().zip(threes) {
        add_dots_of(simd, a, b, offsets, len, dw);
    }
    for (dw, &offset) in dw_ones.iter_mut().zip(ones) {
        add_dots_of(simd, a, b, &[offset], len, std::array::from_mut(dw));
    }
}

/// [`add_dots`] for some runs, whose sums stay in registers.
#[inline(always)]
fn add_dots_of<T: Float, S: Simd, const RUNS: usize>(
    simd: S,
    a: &[T],
    b: &[T],
    offsets: &[usize; RUNS],
    len: usize,
    dw: &mut [T; RUNS],
) {
    let vectors = len.div_ceil(T::lanes::<S>());
    let a = &T::vectors::<S>(a)[..vectors];
    let runs = offsets.map(
        #[inline(always)]
        |offset| &T::vectors::<S>(&b[offset..])[..vectors],
    );
    let mut sums = [T::zero_vector(simd); RUNS];
    for (at, &a) in a.iter().enumerate() {
        for (sum, run) in sums.iter_mut().zip(&runs) {
            *sum = T::times_plus(simd, a, run[at], *sum);
        }
    }
    for (dw, sum) in dw.iter_mut().zip(sums) {
        *dw += T::total(simd, sum);
    }
}
