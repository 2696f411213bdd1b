//! Convolutions by matrices of patches (im2col): the matrix products, per group. `P` is the number of
//! pixels of an output channel of some images, `K` the number of elements of a patch, and `O` the number
//! of output channels:
//!
//! ```text
//! forward    y    (O x P) = w (O x K)  patches (K x P)
//! backward   dw   (O x K) = dz (O x P) patches^T (P x K), summed over the images
//!            dx           = col2im(w^T (K x O) dz (O x P))
//! ```
//!
//! A product covers one image, so that its patches stay in the second-level cache (on the MNIST
//! CNN, 8 images per product take 1.2 times as long, 32 take 1.4 times). If the images are small,
//! it covers many (`small_images.rs`).

pub(super) mod patches;
mod small_images;

use rayon::prelude::*;

use self::patches::{col2im, im2col};
use crate::kernels::elementwise::{activation_backward, add_assign};
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, LeftFactor, StridedMatrix, matmul};
use crate::kernels::scratch::Pooled;
use crate::ops::conv2d::conv::{Conv, Gradients};
use crate::ops::conv2d::geometry::Geometry;
use crate::ops::conv2d::images::Images;
use candelabrum_memory::simd::simd;
use candelabrum_memory::thread_pool;

/// From this number of weight elements on, the threads share each product instead of the images.
const LARGE: usize = 1 << 17;

/// The maximum number of parts into which the backward splits the images. It limits the memory for
/// partial weight gradients. It does not depend on the number of threads, so the bits of the result
/// do not either.
const MAX_PARTS: usize = 16;

/// [`MAX_PARTS`] for small images, whose weights are often large.
const MAX_SMALL_PARTS: usize = 4;

impl<T: Float> Conv<'_, T> {
    fn is_large(&self) -> bool {
        self.geometry.weight() >= LARGE
    }

    pub(in crate::ops::conv2d) fn forward_by_im2col(
        &self,
        xs: Images<'_, T>,
        bias: Option<&[T]>,
        ys: &mut [T],
    ) {
        let (geometry, chunk) = (self.geometry, self.geometry.chunk());
        let (in_chunk, out_chunk) = (chunk * geometry.in_image(), chunk * geometry.out_image());
        let chunks = geometry.batch.div_ceil(chunk);
        let weights = self.weights(false);
        if self.share_products(chunks) {
            for (number, y) in ys.chunks_mut(out_chunk).enumerate() {
                self.forward_chunk(&weights, xs.chunk(number, in_chunk), bias, y, true);
            }
        } else {
            thread_pool::for_each(ys.par_chunks_mut(out_chunk).enumerate(), |(number, y)| {
                self.forward_chunk(&weights, xs.chunk(number, in_chunk), bias, y, false);
            });
        }
    }

    /// The weight of each group (O x K), or transposed (K x O), as the left factor of a product for each
    /// image. Nothing for small images.
    fn weights(&self, transposed: bool) -> Vec<LeftFactor<'_, T>> {
        let geometry = self.geometry;
        if geometry.is_small() {
            return Vec::new();
        }
        let (channels, patch) = (geometry.group_channels(), geometry.patch());
        let groups = self.weight.chunks_exact(channels * patch);
        let matrices = groups.map(|weight| StridedMatrix::new(weight, channels, patch));
        let matrices = matrices.map(|weight| if transposed { weight.t() } else { weight });
        matrices.map(|weight| LeftFactor::new(weight, geometry.out_pixels())).collect()
    }

    /// Whether all threads work together on one product after the other, instead of one product
    /// each.
    fn share_products(&self, parts: usize) -> bool {
        let threads = thread_pool::threads();
        let few = if self.geometry.is_small() { parts < threads } else { self.is_large() };
        threads == 1 || parts == 1 || few
    }

    fn forward_chunk(
        &self,
        weights: &[LeftFactor<'_, T>],
        xs: Images<'_, T>,
        bias: Option<&[T]>,
        ys: &mut [T],
        shared: bool,
    ) {
        let geometry = self.geometry;
        let mut scratch = xs.scratch(xs.len());
        let xs = xs.read(0..xs.len(), &mut scratch);
        if geometry.is_small() {
            return self.forward_small(xs, bias, ys, shared);
        }
        let (patch, pixels, channels) =
            (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
        let mut patches = Patches::new(geometry);
        for (group, (weight, y)) in
            weights.iter().zip(ys.chunks_exact_mut(channels * pixels)).enumerate()
        {
            weight.times(
                StridedMatrix::new(patches.of(xs, group), patch, pixels),
                y,
                Destination::Overwrite,
            );
            self.finish(y, bias.map(|bias| &bias[group * channels..][..channels]), pixels);
        }
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(in crate::ops::conv2d) fn backward_by_im2col(
        &self,
        xs: Images<'_, T>,
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let geometry = self.geometry;
        let Gradients { dxs, mut dw, mut db } = gradients;
        let most = match (geometry.is_small(), self.is_large()) {
            (true, _) => MAX_SMALL_PARTS,
            (false, true) => 1,
            (false, false) => MAX_PARTS,
        };
        // Whole chunks, so that every product is as wide as possible.
        let part = geometry.batch.div_ceil(most).next_multiple_of(geometry.chunk());
        let parts = geometry.batch.div_ceil(part);
        let weights = dw.as_ref().map_or(0, |dw| dw.len());
        let sizes = weights + db.as_ref().map_or(0, |db| db.len());
        // The first part's sums are written to the place of the total.
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
        let inputs = |number: usize| xs.chunk(number, part * geometry.in_image());
        let mut works: Vec<ImagesPart<'_, T>> = dys
            .chunks_mut(part * geometry.out_image())
            .enumerate()
            .map(|(number, dys)| {
                let xs = inputs(number);
                let (dw, db) = sums_of_part();
                let dxs = dx_parts.as_mut().and_then(Iterator::next);
                let reference = references.next().unwrap_or_default();
                ImagesPart { xs, reference, dys, dxs, dw, db }
            })
            .collect();
        let turned = works.iter().any(|part| part.dxs.is_some()).then(|| self.weights(true));
        let turned = turned.unwrap_or_default();
        if self.share_products(parts) {
            works.iter_mut().for_each(|part| self.backward_part(&turned, part, true));
        } else {
            thread_pool::for_each(works.par_iter_mut(), |part| {
                self.backward_part(&turned, part, false);
            });
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

    /// `turned` are the transposed weights of the groups.
    fn backward_part(
        &self,
        turned: &[LeftFactor<'_, T>],
        part: &mut ImagesPart<'_, T>,
        shared: bool,
    ) {
        let (geometry, chunk) = (self.geometry, self.geometry.chunk());
        let (in_chunk, out_chunk) = (chunk * geometry.in_image(), chunk * geometry.out_image());
        let mut references = part.reference.chunks(out_chunk);
        let mut dx_chunks = part.dxs.as_mut().map(|dxs| dxs.chunks_mut(in_chunk));
        let mut scratch = part.xs.scratch(in_chunk);
        for (number, dzs) in part.dys.chunks_mut(out_chunk).enumerate() {
            let xs = part.xs.chunk(number, in_chunk);
            let xs = xs.read(0..xs.len(), &mut scratch);
            if let Some(activation) = self.activation {
                let reference = references.next().unwrap_or_default();
                activation_backward(dzs, reference, activation);
            }
            let dst = if number == 0 { Destination::Overwrite } else { Destination::Add };
            if let Some(db) = &mut part.db {
                self.bias_gradient(dzs, db, dst);
            }
            let dxs = dx_chunks.as_mut().and_then(Iterator::next);
            let dw = part.dw.as_deref_mut();
            if geometry.is_small() {
                self.small_gradients(xs, dzs, dw, dst, dxs, shared);
            } else {
                self.image_gradients(turned, xs, dzs, dw, dst, dxs);
            }
        }
    }

    fn image_gradients(
        &self,
        turned: &[LeftFactor<'_, T>],
        xs: &[T],
        dzs: &[T],
        mut dw: Option<&mut [T]>,
        dst: Destination,
        mut dxs: Option<&mut [T]>,
    ) {
        let geometry = self.geometry;
        let (patch, pixels, channels) =
            (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
        let mut patches = Patches::new(geometry);
        for (group, dz) in dzs.chunks_exact(channels * pixels).enumerate() {
            let dz = StridedMatrix::new(dz, channels, pixels);
            if let Some(dw) = &mut dw {
                let patches = StridedMatrix::new(patches.of(xs, group), patch, pixels);
                let dw = &mut dw[group * channels * patch..][..channels * patch];
                matmul(dw, dst, dz, patches.t());
            }
            if let (Some(dxs), Some(weight)) = (&mut dxs, turned.get(group)) {
                let size = dxs.len() / geometry.groups;
                let dx = &mut dxs[group * size..][..size];
                if geometry.is_pointwise() {
                    weight.times(dz, dx, Destination::Overwrite);
                } else {
                    weight.times(dz, &mut patches.memory, Destination::Overwrite);
                    patches.fold(dx);
                }
            }
        }
    }
}

/// Some images of a backward pass, and the places of their gradients.
struct ImagesPart<'a, T> {
    xs: Images<'a, T>,
    reference: &'a [T],
    dys: &'a mut [T],
    dxs: Option<&'a mut [T]>,
    dw: Option<&'a mut [T]>,
    db: Option<&'a mut [T]>,
}

/// The patches of an image, or their gradients, one group at a time.
struct Patches<'a, T: Float> {
    geometry: &'a Geometry,
    memory: Pooled<T>,
}

impl<'a, T: Float> Patches<'a, T> {
    fn new(geometry: &'a Geometry) -> Self {
        Self { geometry, memory: Pooled::new(geometry.patch() * geometry.out_pixels()) }
    }

    /// The patches of a group (K x P).
    fn of<'b>(&'b mut self, x: &'b [T], group: usize) -> &'b [T] {
        let Self { geometry, memory } = self;
        let group_size = x.len() / geometry.groups;
        let x = &x[group * group_size..][..group_size];
        if geometry.is_pointwise() {
            return x;
        }
        simd(
            #[inline(always)]
            || im2col(geometry, x, memory),
        );
        memory
    }

    /// Computes the gradient of a group of the image from the gradients of its patches.
    fn fold(&self, dx: &mut [T]) {
        let Self { geometry, memory } = self;
        simd(
            #[inline(always)]
            || col2im(geometry, memory, dx),
        );
    }
}
