//! Convolutions by the tiles of a processor that multiplies matrices in bf16.
//!
//! In the layout of [`PhaseLayout`], output pixel `p` meets pixel `p + offset` of the image for each element of the kernel, a
//! *tap*. In bf16 with the channels of a pixel side by side, 16 pixels from `p + offset` on are a factor as they are, so an
//! image is rounded once and no patch is copied. With `P` for the pixels, `O` and `C` for the channels:
//!
//! ```text
//! forward    y   (P × O) = sum over the taps of x[p + offset] (P × C)  w[tap]  (C × O)
//! backward   dx  (P × C) = sum over the taps of dz[q - offset] (P × O)  w[tap]  (O × C), for each phase
//!            dw[tap] (O × C) = dz^T (O × P)  x[p + offset] (P × C), summed over the images
//! ```
//!
//! Products are so fast here that Winograd's transforms, which save more than half of them, cost more than they save.

use std::ops::Range;

use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;
use rayon::prelude::*;

use super::conv::{Conv, Gradients, each_share, elements};
use super::direct::divide;
use super::geometry::Geometry;
use super::images::Images;
use super::phases::{PhaseLayout, SLACK, has_small_strides};
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::gemm::bf16::{
    Amx, CHANNELS, InstructionSet, Operand, OperandLines, PackedFactor, Pixels, Starts,
    WindowGradient, WindowTap, f32s, f32s_mut, window_product,
};
use crate::kernels::mat_mut::MatMut;
use crate::kernels::product_precision;
use crate::kernels::scratch::Pooled;
use crate::kernels::transpose::transpose;

/// Fewer channels leave most of a tile empty.
const FEWEST_CHANNELS: usize = 16;

/// Elements of images that are packed at a time: 2 MiB, which stay in the second-level cache.
const PACKED: usize = 1 << 20;

/// The tile registers, if this is the fastest way: products are in bf16, and neither tiles nor pixels are mostly empty.
pub(super) fn applies<T: Float>(geometry: &Geometry) -> Option<Amx> {
    let amx = product_precision::bf16::<T>()?.amx()?;
    let fits = geometry.groups == 1
        && !geometry.is_pointwise()
        && geometry.in_channels.min(geometry.out_channels) >= FEWEST_CHANNELS
        && has_small_strides(geometry)
        && 2 * geometry.out_pixels() >= PhaseLayout::new(geometry).outputs();
    fits.then_some(amx)
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward_by_tiles(
        &self,
        amx: Amx,
        xs: Images<'_, T>,
        bias: Option<&[T]>,
        ys: &mut [T],
    ) {
        let geometry = self.geometry;
        let phases = PhaseLayout::new(geometry);
        let weights = packed_taps(amx, geometry, self.weight, false).into_iter();
        let taps: Vec<WindowTap> = weights
            .zip(phases.offsets())
            .map(|(weight, offset)| WindowTap { offset, weight })
            .collect();
        each_share(true, (ys, geometry.out_image()), |images, ys| {
            let xs = xs.part(elements(images, geometry.in_image()));
            let mut planes = PhasePlanes::of_inputs(geometry, &phases, xs);
            let mut result = Pooled::new(CHANNELS * phases.outputs());
            let (lines, image) = (phases.channel(), geometry.out_image());
            let together = images_together(geometry.in_channels, lines);
            let mut pixels = Pixels::new(amx, geometry.in_channels, together * lines);
            for (number, ys) in ys.chunks_mut(together * image).enumerate() {
                let count = ys.len() / image;
                planes.pack(number * together..number * together + count, &mut pixels);
                for channel in (0..geometry.out_channels).step_by(CHANNELS) {
                    let channels = channel..geometry.out_channels.min(channel + CHANNELS);
                    for (number, y) in ys.chunks_exact_mut(image).enumerate() {
                        let size = (channels.len(), phases.outputs());
                        let numbers = f32s_mut(&mut result[..size.0 * size.1]);
                        let out = MatMut::new(numbers, size.0, size.1);
                        window_product(&pixels, number * lines, &taps, channel, out);
                        let y = &mut y[elements(channels.clone(), geometry.out_pixels())];
                        simd(
                            #[inline(always)]
                            || phases.narrow_channels((&result, phases.outputs()), y),
                        );
                        let bias = bias.map(|bias| &bias[channels.clone()]);
                        self.finish(y, bias, geometry.out_pixels());
                    }
                }
            }
        });
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_by_tiles(
        &self,
        amx: Amx,
        xs: Images<'_, T>,
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let geometry = self.geometry;
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        if let Some(dw) = dw {
            weight_gradient(amx, geometry, xs, dys, dw);
        }
        if let Some(dxs) = dxs {
            input_gradient(amx, geometry, self.weight, dys, dxs);
        }
    }
}

/// How many images of so many channels and pixels are packed at a time.
fn images_together(channels: usize, pixels: usize) -> usize {
    (PACKED / (channels.next_multiple_of(CHANNELS) * pixels)).max(1)
}

/// The weights of each tap, packed as right factors (C × O), or turned (O × C).
fn packed_taps<T: Float>(
    amx: Amx,
    geometry: &Geometry,
    weight: &[T],
    turned: bool,
) -> Vec<PackedFactor> {
    let (inputs, outputs) = (geometry.in_channels, geometry.out_channels);
    let taps = geometry.taps.0.len() * geometry.taps.1.len();
    let (columns, depth) = if turned { (inputs, outputs) } else { (outputs, inputs) };
    let space = |_| PackedFactor::right(InstructionSet::Amx(amx), columns, depth);
    let mut packed: Vec<PackedFactor> = (0..taps).map(space).collect();
    // Gets the weights of a tap for some output channels, by input channels.
    let pack = |packed: &mut PackedFactor, tap: &[T], some: Range<usize>| {
        let lines = OperandLines { data: f32s(tap), starts: Starts::Every(inputs) };
        if turned {
            packed.pack_part(Operand::Across(lines), 0..inputs, 0..some.len(), (0, some.start));
        } else {
            packed.pack_part(Operand::Along(lines), 0..some.len(), 0..inputs, (some.start, 0));
        }
    };
    if let [only] = &mut packed[..] {
        pack(only, weight, 0..outputs);
        return packed;
    }
    // The threads share the taps.
    let share = taps.div_ceil(thread_pool::threads());
    thread_pool::for_each(packed.par_chunks_mut(share).enumerate(), |(number, packed)| {
        // (taps × O × C) for some output channels, in the cache.
        let mut by_tap = Pooled::new(packed.len() * CHANNELS * inputs);
        for (block, weight) in weight.chunks(CHANNELS * inputs * taps).enumerate() {
            let (first, count) = (block * CHANNELS, weight.len() / (inputs * taps));
            let size = (inputs, packed.len());
            simd(
                #[inline(always)]
                || {
                    for (output, weight) in weight.chunks_exact(inputs * taps).enumerate() {
                        let (from, to) =
                            (&weight[number * share..], &mut by_tap[output * inputs..]);
                        transpose::<T, false>(from, taps, size, to, CHANNELS * inputs);
                    }
                },
            );
            for (packed, tap) in packed.iter_mut().zip(by_tap.chunks_exact(CHANNELS * inputs)) {
                pack(packed, tap, first..first + count);
            }
        }
    });
    packed
}

/// Images whose channels are brought into the layout of phases, 32 at a time.
struct PhasePlanes<'a, T: Float> {
    geometry: &'a Geometry,
    phases: &'a PhaseLayout<'a>,
    xs: Images<'a, T>,
    scratch: Pooled<T>,
    /// The padding is zero.
    channels: Pooled<T>,
}

impl<'a, T: Float> PhasePlanes<'a, T> {
    fn of_inputs(geometry: &'a Geometry, phases: &'a PhaseLayout<'a>, xs: Images<'a, T>) -> Self {
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let channels = Pooled::zeros(CHANNELS * phases.channel() + SLACK);
        Self { geometry, phases, xs, scratch: xs.scratch(pixels), channels }
    }

    /// Up to 32 channels of an image, from number `first` on.
    fn channels(&mut self, image: usize, first: usize) -> &[T] {
        let Self { geometry, phases, xs, scratch, channels } = self;
        let pixels = geometry.in_size.0 * geometry.in_size.1;
        let start = image * geometry.in_image() + first * pixels;
        let count = CHANNELS.min(geometry.in_channels - first);
        let own = start..start + count * pixels;
        simd(
            #[inline(always)]
            || divide(phases, *xs, (own.clone(), pixels), scratch, channels),
        );
        channels
    }

    /// Packs images one after the other.
    fn pack(&mut self, images: Range<usize>, pixels: &mut Pixels) {
        let lines = self.phases.channel();
        for first in (0..self.geometry.in_channels).step_by(CHANNELS) {
            for (number, image) in images.clone().enumerate() {
                let channels = f32s(self.channels(image, first));
                pixels.pack((channels, lines), lines, (first, number * lines));
            }
        }
    }
}

fn input_gradient<T: Float>(amx: Amx, geometry: &Geometry, weight: &[T], dys: &[T], dxs: &mut [T]) {
    let phases = PhaseLayout::new(geometry);
    let mut weights: Vec<Option<PackedFactor>> =
        packed_taps(amx, geometry, weight, true).into_iter().map(Some).collect();
    let by_phase = phases.by_phase();
    // Pixel `q` of a phase gets the gradient of output pixel `q - offset`: before the first output pixel and behind the
    // last one are zeros.
    let before = by_phase.iter().flatten().map(|&(_, offset)| offset).max().unwrap_or(0);
    let taps: Vec<Vec<WindowTap>> = by_phase
        .into_iter()
        .map(|taps| {
            let tap = |(number, offset): (usize, usize)| {
                let weight = weights[number].take().expect("a tap meets one phase");
                WindowTap { offset: before - offset, weight }
            };
            taps.into_iter().map(tap).collect()
        })
        .collect();
    let lines = before + phases.phase().max(phases.outputs());
    each_share(true, (dxs, geometry.in_image()), |images, dxs| {
        let mut planes = Pooled::zeros(CHANNELS * lines + SLACK);
        let mut result = Pooled::new(CHANNELS * phases.channel());
        let together = images_together(geometry.out_channels, lines);
        let mut pixels = Pixels::new(amx, geometry.out_channels, together * lines);
        let plane = geometry.in_size.0 * geometry.in_size.1;
        let dys = &dys[elements(images, geometry.out_image())];
        let groups = dys.chunks(together * geometry.out_image());
        for (dys, dxs) in groups.zip(dxs.chunks_mut(together * geometry.in_image())) {
            for (number, dy) in dys.chunks_exact(geometry.out_image()).enumerate() {
                let some = dy.chunks(CHANNELS * geometry.out_pixels());
                for (block, dy) in some.enumerate() {
                    simd(
                        #[inline(always)]
                        || phases.widen_channels(dy, (&mut planes, lines), before),
                    );
                    pixels.pack((f32s(&planes), lines), lines, (block * CHANNELS, number * lines));
                }
            }
            for channel in (0..geometry.in_channels).step_by(CHANNELS) {
                let channels = channel..geometry.in_channels.min(channel + CHANNELS);
                for (number, dx) in dxs.chunks_exact_mut(geometry.in_image()).enumerate() {
                    let out = f32s_mut(&mut result);
                    for (phase, taps) in taps.iter().enumerate() {
                        let out = &mut out[phase * phases.phase()..];
                        let size = (channels.len(), phases.phase());
                        let out = MatMut::strided(out, size.0, size.1, phases.channel());
                        window_product(&pixels, number * lines, taps, channel, out);
                    }
                    let dx = &mut dx[elements(channels.clone(), plane)];
                    simd(
                        #[inline(always)]
                        || phases.join_channels((&result, phases.channel()), dx),
                    );
                }
            }
        }
    });
}

/// Writes the gradient of the weight. The threads share the output channels.
fn weight_gradient<T: Float>(
    amx: Amx,
    geometry: &Geometry,
    xs: Images<'_, T>,
    dys: &[T],
    dw: &mut [T],
) {
    let kernels = dw.len() / geometry.out_channels;
    let share = geometry.out_channels.div_ceil(thread_pool::threads()).next_multiple_of(CHANNELS);
    thread_pool::for_each(dw.par_chunks_mut(share * kernels).enumerate(), |(number, dw)| {
        let first = number * share;
        let outputs = first..first + dw.len() / kernels;
        weight_gradient_of(amx, geometry, xs, (dys, outputs), dw);
    });
}

/// Writes the gradient of the weights of some output channels.
fn weight_gradient_of<T: Float>(
    amx: Amx,
    geometry: &Geometry,
    xs: Images<'_, T>,
    (dys, outputs): (&[T], Range<usize>),
    dw: &mut [T],
) {
    let phases = PhaseLayout::new(geometry);
    let offsets = phases.offsets();
    let (inputs, taps) = (geometry.in_channels, offsets.len());
    let pixels = phases.outputs().next_multiple_of(CHANNELS);
    let lines = phases.channel().next_multiple_of(2);
    let images = geometry.batch;
    let together = images_together(inputs + geometry.out_channels, lines.max(pixels));
    // Groups of nearly equal size.
    let together = images.div_ceil(images.div_ceil(together));
    let has_odd = offsets.iter().any(|offset| offset % 2 == 1);
    let behind = offsets.iter().max().copied().unwrap_or(0) + pixels;
    let depth = together * lines + behind;
    let instructions = InstructionSet::Amx(amx);
    let mut left = PackedFactor::left(instructions, outputs.len(), together * pixels);
    // Gradients of 0 are multiplied by what lies behind an image. It must be finite.
    let space = |_| {
        let mut right = PackedFactor::right(instructions, inputs, depth);
        for image in 1..=together {
            right.zero_steps(image * lines - 2..image * lines);
        }
        right.zero_steps(together * lines..depth.next_multiple_of(CHANNELS));
        right
    };
    let mut right: Vec<PackedFactor> = (0..=usize::from(has_odd)).map(space).collect();
    let mut planes = PhasePlanes::of_inputs(geometry, &phases, xs);
    // Between the rows of pixels stay zeros.
    let mut gradients = Pooled::zeros(CHANNELS * pixels);
    let mut sums = Pooled::new(taps * CHANNELS * CHANNELS);
    for (number, dys) in dys.chunks(together * geometry.out_image()).enumerate() {
        let mut places = Vec::with_capacity(together);
        for (image, dy) in dys.chunks_exact(geometry.out_image()).enumerate() {
            let [a, b] = [image * pixels, image * lines];
            places.push([a, b]);
            let dy = &dy[elements(outputs.clone(), geometry.out_pixels())];
            for (block, dy) in dy.chunks(CHANNELS * geometry.out_pixels()).enumerate() {
                simd(
                    #[inline(always)]
                    || phases.widen_channels(dy, (&mut gradients, pixels), 0),
                );
                let count = dy.len() / geometry.out_pixels();
                let from = OperandLines { data: f32s(&gradients), starts: Starts::Every(pixels) };
                left.pack_part(Operand::Along(from), 0..count, 0..pixels, (block * CHANNELS, a));
            }
            for first in (0..inputs).step_by(CHANNELS) {
                let count = CHANNELS.min(inputs - first);
                let channels = f32s(planes.channels(number * together + image, first));
                let from = OperandLines { data: channels, starts: Starts::Every(phases.channel()) };
                for (start, right) in right.iter_mut().enumerate() {
                    let steps = start..phases.channel();
                    right.pack_part(Operand::Along(from), 0..count, steps, (first, b));
                }
            }
        }
        let gradient = WindowGradient { amx, left: &left, right: &right, images: &places, pixels };
        for output in (0..outputs.len()).step_by(CHANNELS) {
            for channel in (0..inputs).step_by(CHANNELS) {
                gradient.sums(output, channel, &offsets, f32s_mut(&mut sums));
                let columns = CHANNELS.min(inputs - channel);
                let rows = CHANNELS.min(outputs.len() - output);
                simd(
                    #[inline(always)]
                    || {
                        for row in 0..rows {
                            let from = &sums[row * CHANNELS..];
                            let to = &mut dw[((output + row) * inputs + channel) * taps..];
                            if taps == 1 {
                                match number {
                                    0 => to[..columns].copy_from_slice(&from[..columns]),
                                    _ => add_assign(&mut to[..columns], &from[..columns]),
                                }
                                continue;
                            }
                            let size = (taps, columns);
                            if number == 0 {
                                transpose::<T, false>(from, CHANNELS * CHANNELS, size, to, taps);
                            } else {
                                transpose::<T, true>(from, CHANNELS * CHANNELS, size, to, taps);
                            }
                        }
                    },
                );
            }
        }
    }
}
