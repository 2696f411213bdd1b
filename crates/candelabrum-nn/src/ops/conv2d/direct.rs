//! Convolutions without a matrix of patches.
//!
//! In the layout of [`PhaseLayout`], a row of the matrix of patches is a run of an image's channel. So the
//! products of a convolution read the runs where they are, and no patches are copied. With `P` for the
//! output pixels, `K` for the elements of a patch, `O` and `C` for the output and input channels:
//!
//! ```text
//! forward    y     (O x P) = w (O x K)     runs (K x P)
//! backward   dw^T  (K x O) = runs (K x P)  dz^T (P x O), summed over the images
//!            dx    (C x Q) = w^T (C x OT)  runs of dz (OT x Q), for each phase of Q pixels that T elements
//!                                          of the kernel meet
//! ```

use std::ops::Range;

use candelabrum_memory::thread_pool;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::conv::{Conv, Gradients, each_share, elements};
use super::geometry::Geometry;
use super::images::Images;
use super::phases::{PhaseLayout, SLACK, has_small_strides};
use crate::kernels::float::Float;
use crate::kernels::gemm::bf16::{Operand, OperandLines, Starts};
use crate::kernels::gemm::{
    LeftMatrix, MatrixRows, Product, ProductSize, RowRuns, dispatch, rows_of_a_tile,
};
use crate::kernels::matmul::product_in_bf16;
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;

/// Columns of a product, so that what it reads of the image stays in the nearest caches.
const COLUMNS: usize = 192;

/// Pixels of one product of the gradient of the weight.
const DEPTH: usize = 256;

/// Smaller patches leave the products too little work for the copies around them.
const SMALLEST_PATCH: usize = 64;

/// Whether this is the fastest way: the images and patches are not small, and at most a tenth of the
/// computed elements lies between the rows of pixels. A 1 × 1 kernel with stride 1 needs no patches anyway.
pub(super) fn applies(geometry: &Geometry) -> bool {
    let is_large = !geometry.is_small() && geometry.patch() >= SMALLEST_PATCH;
    is_large
        && geometry.groups == 1
        && !geometry.is_pointwise()
        && has_small_strides(geometry)
        && 10 * geometry.out_pixels() >= 9 * PhaseLayout::new(geometry).outputs()
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward_direct(&self, xs: Images<'_, T>, bias: Option<&[T]>, ys: &mut [T]) {
        let (geometry, weight) = (self.geometry, self.weight);
        each_share(true, (ys, geometry.out_image()), |images, ys| {
            let xs = xs.part(elements(images, geometry.in_image()));
            dispatch(DirectForward { geometry, weight, xs, ys });
            for y in ys.chunks_exact_mut(geometry.out_image()) {
                self.finish(y, bias, geometry.out_pixels());
            }
        });
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_direct(
        &self,
        xs: Images<'_, T>,
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let geometry = self.geometry;
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        if let Some(dw) = dw {
            weight_gradient(geometry, xs, dys, dw);
        }
        if let Some(dxs) = dxs {
            let kernels = TurnedKernels::new(geometry, self.weight);
            each_share(true, (dxs, geometry.in_image()), |images, dxs| {
                let dys = &dys[elements(images, geometry.out_image())];
                dispatch(InputGradient { geometry, kernels: &kernels, dys, dxs });
            });
        }
    }
}

/// The first elements of the runs of all patch elements of some channels, in the order of the weight.
fn starts(phases: &PhaseLayout<'_>, channels: usize) -> Vec<usize> {
    let offsets = phases.offsets();
    let channel = phases.channel();
    (0..channels).flat_map(|c| offsets.iter().map(move |offset| c * channel + offset)).collect()
}

/// Some channels of `xs`, which have these elements, in the layout of `phases`, whose padding is zero already.
/// `scratch` is for one channel.
#[inline(always)]
pub(super) fn divide<T: Float>(
    phases: &PhaseLayout<'_>,
    xs: Images<'_, T>,
    (elements, pixels): (Range<usize>, usize),
    scratch: &mut [T],
    channels: &mut [T],
) {
    for (first, channel) in elements.step_by(pixels).zip(channels.chunks_mut(phases.channel())) {
        phases.divide(xs.read(first..first + pixels, scratch), channel);
    }
}

/// Some images.
struct DirectForward<'a, T> {
    geometry: &'a Geometry,
    weight: &'a [T],
    xs: Images<'a, T>,
    ys: &'a mut [T],
}

impl<T: Float> WithSimd for DirectForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, weight, xs, ys } = self;
        let phases = PhaseLayout::new(geometry);
        let starts = starts(&phases, geometry.in_channels);
        let mut channels = Pooled::zeros(geometry.in_channels * phases.channel() + SLACK);
        let rows = geometry.out_channels.next_multiple_of(rows_of_a_tile::<S>());
        let step = phases.outputs().next_multiple_of(SLACK);
        let mut result = Pooled::new(rows * step);
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let mut scratch = xs.scratch(pixels);
        for (image, y) in ys.chunks_exact_mut(geometry.out_image()).enumerate() {
            let own = elements(image..image + 1, geometry.in_image());
            divide(&phases, xs, (own, pixels), &mut scratch, &mut channels);
            let all = ProductSize {
                rows: geometry.out_channels,
                depth: starts.len(),
                columns: phases.outputs(),
            };
            let along = OperandLines { data: weight, starts: Starts::Every(starts.len()) };
            let across = OperandLines { data: &channels, starts: Starts::At(&starts) };
            let (left, right) = (Operand::Along(along), Operand::Across(across));
            let in_bf16 = product_in_bf16(left, right, all, (&mut result, step), false);
            if !in_bf16 {
                for first in (0..phases.outputs()).step_by(COLUMNS) {
                    let size = ProductSize {
                        rows: geometry.out_channels,
                        depth: starts.len(),
                        columns: COLUMNS.min(phases.outputs() - first),
                    };
                    let left = LeftMatrix::Rows { data: weight, step: starts.len() };
                    let right = RowRuns { data: &channels[first..], starts: &starts };
                    let out = MatrixRows { data: &mut result[first..], step };
                    simd.vectorize(Product { size, left, right, out, add: false });
                }
            }
            phases.narrow_channels((&result, step), y);
        }
    }
}

/// The weights for the gradient of the input: for each phase, (C × OT).
struct TurnedKernels<T: Float> {
    phases: Vec<TurnedPhase<T>>,
}

struct TurnedPhase<T: Float> {
    number: usize,
    /// The number of input channels.
    inputs: usize,
    /// The offset of each element of the kernel that meets the phase.
    offsets: Vec<usize>,
    weight: Pooled<T>,
}

impl<T: Float> TurnedKernels<T> {
    fn new(geometry: &Geometry, weight: &[T]) -> Self {
        let (inputs, outputs) = (geometry.in_channels, geometry.out_channels);
        let taps = geometry.taps.0.len() * geometry.taps.1.len();
        let turn = |(number, in_phase): (usize, Vec<(usize, usize)>)| {
            let mut turned = Pooled::new(inputs * outputs * in_phase.len());
            let mut places = turned.iter_mut();
            for channel in 0..inputs {
                for output in 0..outputs {
                    let kernel = &weight[(output * inputs + channel) * taps..][..taps];
                    let taps = in_phase.iter().map(|&(tap, _)| kernel[tap]);
                    taps.zip(places.by_ref()).for_each(|(w, place)| *place = w);
                }
            }
            let offsets = in_phase.into_iter().map(|(_, offset)| offset).collect();
            TurnedPhase { number, inputs, offsets, weight: turned }
        };
        Self {
            phases: PhaseLayout::new(geometry)
                .by_phase()
                .into_iter()
                .enumerate()
                .map(turn)
                .collect(),
        }
    }
}

impl<T: Float> TurnedPhase<T> {
    /// The first elements of the runs that are summed, in channels of so many elements, whose first pixel
    /// has so many elements before it.
    fn starts(&self, before: usize, channel: usize) -> Vec<usize> {
        let outputs = self.weight.len() / self.inputs / self.offsets.len();
        let of = |o| self.offsets.iter().map(move |offset| o * channel + before - offset);
        (0..outputs).flat_map(of).collect()
    }
}

/// The gradients of some images.
struct InputGradient<'a, T: Float> {
    geometry: &'a Geometry,
    kernels: &'a TurnedKernels<T>,
    dys: &'a [T],
    dxs: &'a mut [T],
}

impl<T: Float> WithSimd for InputGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { geometry, kernels, dys, dxs } = self;
        let phases = PhaseLayout::new(geometry);
        // Pixel `q` of a phase gets the gradient of output pixel `q - offset`: before the first output
        // pixel and behind the last one are zeros.
        let offsets = kernels.phases.iter().flat_map(|phase| &phase.offsets);
        let before = offsets.max().copied().unwrap_or(0);
        let channel = before + phases.phase().max(phases.outputs()) + SLACK;
        let mut outputs = Pooled::zeros(geometry.out_channels * channel);
        let rows = geometry.in_channels.next_multiple_of(rows_of_a_tile::<S>());
        let step = phases.channel() + SLACK;
        let mut result = Pooled::new(rows * step);
        let starts: Vec<Vec<usize>> =
            kernels.phases.iter().map(|phase| phase.starts(before, channel)).collect();
        let images = dys.chunks_exact(geometry.out_image());
        for (dy, dx) in images.zip(dxs.chunks_exact_mut(geometry.in_image())) {
            phases.widen_channels(dy, (&mut outputs, channel), before);
            for (phase, starts) in kernels.phases.iter().zip(&starts) {
                let all = ProductSize {
                    rows: geometry.in_channels,
                    depth: starts.len(),
                    columns: phases.phase(),
                };
                let along =
                    OperandLines { data: &phase.weight, starts: Starts::Every(starts.len()) };
                let across = OperandLines { data: &outputs, starts: Starts::At(starts) };
                let (left, right) = (Operand::Along(along), Operand::Across(across));
                let out = &mut result[phase.number * phases.phase()..];
                let in_bf16 = product_in_bf16(left, right, all, (out, step), false);
                if !in_bf16 {
                    for first in (0..phases.phase()).step_by(COLUMNS) {
                        let size = ProductSize {
                            rows: geometry.in_channels,
                            depth: starts.len(),
                            columns: COLUMNS.min(phases.phase() - first),
                        };
                        let left = LeftMatrix::Rows { data: &phase.weight, step: starts.len() };
                        let right = RowRuns { data: &outputs[first..], starts };
                        let at = phase.number * phases.phase() + first;
                        let out = MatrixRows { data: &mut result[at..], step };
                        simd.vectorize(Product { size, left, right, out, add: false });
                    }
                }
            }
            phases.join_channels((&result, step), dx);
        }
    }
}

/// Writes the gradient of the weight. The threads share the input channels.
fn weight_gradient<T: Float>(geometry: &Geometry, xs: Images<'_, T>, dys: &[T], dw: &mut [T]) {
    let (inputs, outputs) = (geometry.in_channels, geometry.out_channels);
    let taps = dw.len() / (inputs * outputs);
    let together = inputs.div_ceil(thread_pool::threads());
    let mut parts: Vec<Option<Transposed<T>>> = Vec::new();
    parts.resize_with(inputs.div_ceil(together), || None);
    thread_pool::for_each(parts.par_iter_mut().enumerate(), |(number, part)| {
        let channels = number * together..inputs.min((number + 1) * together);
        *part = Some(dispatch(DirectWeightGradient { geometry, xs, dys, channels }));
    });
    for (part, first) in parts.iter().flatten().zip((0..inputs).step_by(together)) {
        let columns = taps * together.min(inputs - first);
        for (output, dw) in dw.chunks_exact_mut(inputs * taps).enumerate() {
            let rows = part.values.iter().skip(output).step_by(part.step);
            dw[first * taps..][..columns].iter_mut().zip(rows).for_each(|(dw, &sum)| *dw = sum);
        }
    }
}

/// The gradient of the weights of some input channels.
struct DirectWeightGradient<'a, T> {
    geometry: &'a Geometry,
    xs: Images<'a, T>,
    dys: &'a [T],
    channels: Range<usize>,
}

/// `dw^T`: a row for each element of a patch, with an element for each output channel.
struct Transposed<T: Float> {
    values: Pooled<T>,
    step: usize,
}

impl<T: Float> WithSimd for DirectWeightGradient<'_, T> {
    type Output = Transposed<T>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Transposed<T> {
        let Self { geometry, xs, dys, channels } = self;
        let phases = PhaseLayout::new(geometry);
        let starts = starts(&phases, channels.len());
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let mut inputs = Pooled::zeros(channels.len() * phases.channel() + SLACK);
        let step = geometry.out_channels.next_multiple_of(SLACK / 4);
        // Between the rows of pixels stay zeros.
        let mut outputs = Pooled::zeros(phases.outputs() * step + SLACK);
        let rows = starts.len().next_multiple_of(rows_of_a_tile::<S>());
        let mut values = Pooled::new(rows * step + SLACK);
        let mut scratch = xs.scratch(pixels);
        for (number, dy) in dys.chunks_exact(geometry.out_image()).enumerate() {
            let first = number * geometry.in_image();
            let own = first + channels.start * pixels..first + channels.end * pixels;
            divide(&phases, xs, (own, pixels), &mut scratch, &mut inputs);
            let (height, width) = geometry.out_size;
            for row in 0..height {
                let to = &mut outputs[row * phases.pitch() * step..];
                let from = &dy[row * width..];
                transpose::<T, false>(
                    from,
                    geometry.out_pixels(),
                    (geometry.out_channels, width),
                    to,
                    step,
                );
            }
            let all = ProductSize {
                rows: starts.len(),
                depth: phases.outputs(),
                columns: geometry.out_channels,
            };
            let along = OperandLines { data: &inputs, starts: Starts::At(&starts) };
            let across = OperandLines { data: &outputs, starts: Starts::Every(step) };
            let (left, right) = (Operand::Along(along), Operand::Across(across));
            let in_bf16 = product_in_bf16(left, right, all, (&mut values, step), number > 0);
            if !in_bf16 {
                for first in (0..phases.outputs()).step_by(DEPTH) {
                    let size = ProductSize {
                        rows: starts.len(),
                        depth: DEPTH.min(phases.outputs() - first),
                        columns: geometry.out_channels,
                    };
                    let left =
                        LeftMatrix::Runs(RowRuns { data: &inputs[first..], starts: &starts });
                    let right = MatrixRows { data: &outputs[first * step..], step };
                    let out = MatrixRows { data: &mut *values, step };
                    simd.vectorize(Product { size, left, right, out, add: number + first > 0 });
                }
            }
        }
        Transposed { values, step }
    }
}
