//! The matrix products of a convolution, per group, with `P` the pixels of some images' output
//! channel, `K` the elements of a patch and `O` the output channels:
//!
//! ```text
//! forward    y    (O x P) = w (O x K)  patches (K x P)
//! backward   dw   (O x K) = dz (O x P) patches^T (P x K), summed over the images
//!            dx           = fold(w^T (K x O) dz (O x P))
//! ```
//!
//! As many images go into one product as make some columns ([`COLUMNS`]): one for all but small
//! images, so that its patches stay in the second-level cache; more where the images are smaller
//! than a vector.

use gemm::Parallelism;
use rayon::prelude::*;

use super::geometry::Geometry;
use super::patches::{fold, unfold};
use super::small::{images_per_chunk, is_small};
use crate::activation::Activation;
use crate::ops::elementwise::{activate, activation_backward, add_assign, bias_activation, sum};
use crate::ops::float::Float;
use crate::ops::fused::Pooled;
use crate::ops::matmul::{Dst, Mat, all_threads, matmul};
use crate::ops::simd::simd;

/// Columns that a product should have. (On the MNIST CNN, 8 images per product of 64 columns each
/// take 1.2 times as long as one, 32 take 1.4 times.)
const COLUMNS: usize = 64;

/// The same for weights beyond the second-level cache, which every product reads again.
const COLUMNS_OF_LARGE: usize = 256;

/// Elements of a weight from which on the threads share each product instead of the images.
const LARGE: usize = 1 << 17;

/// Into how many parts the images are split at most in the backward. It bounds the memory for
/// partial weight gradients and does not depend on the number of threads, so neither do the bits
/// of the result.
const MAX_PARTS: usize = 16;

/// The same for small images, whose weights are often large.
const MAX_SMALL_PARTS: usize = 4;

/// A convolution by a weight of which every element meets the image.
#[derive(Clone, Copy)]
pub(super) struct Conv<'a, T> {
    pub(super) geometry: &'a Geometry,
    pub(super) weight: &'a [T],
    pub(super) activation: Option<Activation>,
}

/// Where the gradients go that are wanted; that of the weight is added to where it says so.
pub(super) struct Gradients<'a, T> {
    pub(super) dxs: Option<&'a mut [T]>,
    pub(super) dw: Option<&'a mut [T]>,
    pub(super) db: Option<&'a mut [T]>,
}

impl<T: Float> Conv<'_, T> {
    /// Images per product.
    fn chunk(&self) -> usize {
        if is_small(self.geometry) {
            return images_per_chunk(self.geometry);
        }
        let columns = if self.is_large() { COLUMNS_OF_LARGE } else { COLUMNS };
        (columns / self.geometry.out_pixels()).clamp(1, self.geometry.batch.max(1))
    }

    fn is_large(&self) -> bool {
        self.geometry.weight() >= LARGE
    }

    pub(super) fn forward(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T]) {
        let (geometry, chunk) = (self.geometry, self.chunk());
        let (in_chunk, out_chunk) = (chunk * geometry.in_image(), chunk * geometry.out_image());
        let chunks = geometry.batch.div_ceil(chunk);
        if self.share_products(chunks) {
            for (x, y) in xs.chunks(in_chunk).zip(ys.chunks_mut(out_chunk)) {
                self.forward_chunk(x, bias, y, all_threads());
            }
        } else {
            let chunks = xs.par_chunks(in_chunk).zip(ys.par_chunks_mut(out_chunk));
            chunks.for_each(|(x, y)| self.forward_chunk(x, bias, y, Parallelism::None));
        }
    }

    /// Whether all threads work on one product after the other, instead of one product each.
    fn share_products(&self, parts: usize) -> bool {
        let threads = rayon::current_num_threads();
        let few = if is_small(self.geometry) { parts < threads } else { self.is_large() };
        threads == 1 || parts == 1 || few
    }

    fn forward_chunk(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T], parallelism: Parallelism) {
        let geometry = self.geometry;
        if is_small(geometry) {
            return self.forward_small(xs, bias, ys, is_shared(parallelism));
        }
        let (patch, pixels, channels) =
            (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
        let images = xs.len() / geometry.in_image();
        let columns = images * pixels;
        let mut patches = Patches::new(geometry, columns);
        let mut product =
            if images == 1 { Pooled::none() } else { Pooled::new(channels * columns) };
        for group in 0..geometry.groups {
            let weight = Mat::new(&self.weight[group * channels * patch..], channels, patch);
            let right = Mat::new(patches.of(xs, group), patch, columns);
            let bias = bias.map(|bias| &bias[group * channels..][..channels]);
            let first = group * channels * pixels;
            if images == 1 {
                let y = &mut ys[first..first + channels * pixels];
                matmul(y, Dst::Overwrite, weight, right, parallelism);
                self.finish(y, bias, pixels);
                continue;
            }
            matmul(&mut product, Dst::Overwrite, weight, right, parallelism);
            self.finish(&mut product, bias, columns);
            for (image, y) in ys.chunks_exact_mut(geometry.out_image()).enumerate() {
                let y = y[first..][..channels * pixels].chunks_exact_mut(pixels);
                for (y, row) in y.zip(product.chunks_exact(columns)) {
                    y.copy_from_slice(&row[image * pixels..][..pixels]);
                }
            }
        }
    }

    /// Bias and activation of rows that are an output channel each.
    pub(super) fn finish(&self, ys: &mut [T], bias: Option<&[T]>, row: usize) {
        let Some(bias) = bias else { return activate(ys, self.activation) };
        for (ys, &bias) in ys.chunks_exact_mut(row).zip(bias) {
            bias_activation(ys, bias, self.activation);
        }
    }

    /// The gradients, from `dys`, which is overwritten. `reference` is what the activation takes
    /// its derivative from.
    pub(super) fn backward(
        &self,
        xs: &[T],
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let geometry = self.geometry;
        let Gradients { dxs, mut dw, mut db } = gradients;
        if geometry.batch == 0 {
            [dw, db].into_iter().flatten().for_each(|sum| sum.fill(T::zero()));
            return;
        }
        let most = match (is_small(geometry), self.is_large()) {
            (true, _) => MAX_SMALL_PARTS,
            (false, true) => 1,
            (false, false) => MAX_PARTS,
        };
        // Whole chunks, so that every product is as wide as can be.
        let part = geometry.batch.div_ceil(most).next_multiple_of(self.chunk());
        let parts = geometry.batch.div_ceil(part);
        let weights = dw.as_ref().map_or(0, |dw| dw.len());
        let sizes = weights + db.as_ref().map_or(0, |db| db.len());
        // The first part's sums go where all of them go in the end.
        let mut sums = Pooled::new((parts - 1) * sizes);
        let mut others = sums.chunks_exact_mut(sizes.max(1)).map(|sums| sums.split_at_mut(weights));
        let mut dx_parts = dxs.map(|dxs| dxs.chunks_mut(part * geometry.in_image()));
        let mut references = reference.chunks(part * geometry.out_image());
        let mut first = Some((dw.as_deref_mut(), db.as_deref_mut()));
        let mut sums_of_part = || {
            if let Some(first) = first.take() {
                return first;
            }
            let Some((dw, db)) = others.next() else { return (None, None) };
            ((weights > 0).then_some(dw), (sizes > weights).then_some(db))
        };
        let inputs = xs.chunks(part * geometry.in_image());
        let mut works: Vec<Part<'_, T>> = inputs
            .zip(dys.chunks_mut(part * geometry.out_image()))
            .map(|(xs, dys)| {
                let (dw, db) = sums_of_part();
                let dxs = dx_parts.as_mut().and_then(Iterator::next);
                let reference = references.next().unwrap_or_default();
                Part { xs, reference, dys, dxs, dw, db }
            })
            .collect();
        if self.share_products(parts) {
            works.iter_mut().for_each(|part| self.backward_part(part, all_threads()));
        } else {
            works.par_iter_mut().for_each(|part| self.backward_part(part, Parallelism::None));
        }
        drop(works);
        for sums in sums.chunks_exact(sizes.max(1)) {
            let (part_dw, part_db) = sums.split_at(weights);
            for (total, part) in [(&mut dw, part_dw), (&mut db, part_db)] {
                if let Some(total) = total {
                    add_assign(total, part);
                }
            }
        }
    }

    fn backward_part(&self, part: &mut Part<'_, T>, parallelism: Parallelism) {
        let (geometry, chunk) = (self.geometry, self.chunk());
        let (in_chunk, out_chunk) = (chunk * geometry.in_image(), chunk * geometry.out_image());
        let mut references = part.reference.chunks(out_chunk);
        let mut dx_chunks = part.dxs.as_mut().map(|dxs| dxs.chunks_mut(in_chunk));
        let chunks = part.xs.chunks(in_chunk).zip(part.dys.chunks_mut(out_chunk));
        for (number, (xs, dzs)) in chunks.enumerate() {
            if let Some(activation) = self.activation {
                let reference = references.next().unwrap_or_default();
                activation_backward(dzs, reference, activation);
            }
            let dst = if number == 0 { Dst::Overwrite } else { Dst::Add };
            if let Some(db) = &mut part.db {
                self.bias_gradient(dzs, db, dst);
            }
            let dxs = dx_chunks.as_mut().and_then(Iterator::next);
            self.chunk_gradients(xs, dzs, part.dw.as_deref_mut(), dst, dxs, parallelism);
        }
    }

    fn bias_gradient(&self, dzs: &[T], db: &mut [T], dst: Dst) {
        if dst == Dst::Overwrite {
            db.fill(T::zero());
        }
        simd(
            #[inline(always)]
            || {
                for dz in dzs.chunks_exact(self.geometry.out_image()) {
                    for (db, dz) in db.iter_mut().zip(dz.chunks_exact(self.geometry.out_pixels())) {
                        *db += sum(dz);
                    }
                }
            },
        );
    }

    fn chunk_gradients(
        &self,
        xs: &[T],
        dzs: &[T],
        mut dw: Option<&mut [T]>,
        dst: Dst,
        mut dxs: Option<&mut [T]>,
        parallelism: Parallelism,
    ) {
        let geometry = self.geometry;
        if is_small(geometry) {
            return self.small_gradients(xs, dzs, dw, dst, dxs, is_shared(parallelism));
        }
        let (patch, pixels, channels) =
            (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
        let images = xs.len() / geometry.in_image();
        let columns = images * pixels;
        let mut patches = Patches::new(geometry, columns);
        let mut gathered =
            if images == 1 { Pooled::none() } else { Pooled::new(channels * columns) };
        for group in 0..geometry.groups {
            let dz = if images == 1 {
                &dzs[group * channels * pixels..][..channels * pixels]
            } else {
                gather(geometry, dzs, group, columns, &mut gathered);
                &*gathered
            };
            let dz = Mat::new(dz, channels, columns);
            let weights = group * channels * patch..(group + 1) * channels * patch;
            if let Some(dw) = &mut dw {
                let patches = Mat::new(patches.of(xs, group), patch, columns);
                matmul(&mut dw[weights.clone()], dst, dz, patches.t(), parallelism);
            }
            if let Some(dxs) = &mut dxs {
                let weight = Mat::new(&self.weight[weights], channels, patch);
                let dpatches = patches.memory();
                matmul(dpatches, Dst::Overwrite, weight.t(), dz, parallelism);
                fold_all(geometry, dpatches, group, columns, dxs);
            }
        }
    }
}

fn is_shared(parallelism: Parallelism) -> bool {
    !matches!(parallelism, Parallelism::None)
}

/// Some images of a backward pass, and where their gradients go.
struct Part<'a, T> {
    xs: &'a [T],
    reference: &'a [T],
    dys: &'a mut [T],
    dxs: Option<&'a mut [T]>,
    dw: Option<&'a mut [T]>,
    db: Option<&'a mut [T]>,
}

/// The patches of some images.
struct Patches<'a, T: Float> {
    geometry: &'a Geometry,
    columns: usize,
    memory: Pooled<T>,
}

impl<'a, T: Float> Patches<'a, T> {
    fn new(geometry: &'a Geometry, columns: usize) -> Self {
        Self { geometry, columns, memory: Pooled::new(geometry.patch() * columns) }
    }

    /// Those of a group (K x columns).
    fn of<'b>(&'b mut self, xs: &'b [T], group: usize) -> &'b [T] {
        let Self { geometry, columns, memory } = self;
        let group_size = geometry.in_image() / geometry.groups;
        let images = xs.chunks_exact(geometry.in_image());
        if images.len() == 1 && geometry.is_pointwise() {
            return &xs[group * group_size..][..group_size];
        }
        for (image, x) in images.enumerate() {
            let x = &x[group * group_size..][..group_size];
            let first = image * geometry.out_pixels();
            simd(
                #[inline(always)]
                || unfold(geometry, x, memory, *columns, first),
            );
        }
        memory
    }

    /// Room for their gradients.
    fn memory(&mut self) -> &mut [T] {
        &mut self.memory
    }
}

/// The gradients of a group's output channels side by side (O x columns).
fn gather<T: Float>(
    geometry: &Geometry,
    dzs: &[T],
    group: usize,
    columns: usize,
    gathered: &mut [T],
) {
    let (pixels, channels) = (geometry.out_pixels(), geometry.group_channels());
    for (image, dz) in dzs.chunks_exact(geometry.out_image()).enumerate() {
        let dz = dz[group * channels * pixels..].chunks_exact(pixels);
        for (row, dz) in gathered.chunks_exact_mut(columns).zip(dz) {
            row[image * pixels..][..pixels].copy_from_slice(dz);
        }
    }
}

/// The gradients of the images from those of a group's patches.
fn fold_all<T: Float>(
    geometry: &Geometry,
    dpatches: &[T],
    group: usize,
    columns: usize,
    dxs: &mut [T],
) {
    let group_size = geometry.in_image() / geometry.groups;
    for (image, dx) in dxs.chunks_exact_mut(geometry.in_image()).enumerate() {
        let dx = &mut dx[group * group_size..][..group_size];
        let first = image * geometry.out_pixels();
        simd(
            #[inline(always)]
            || fold(geometry, dpatches, columns, first, dx),
        );
    }
}
