//! Convolutions of interleaved images.
//!
//! The rows of a small image are too short for whole vectors. Here 16 images lie interleaved: each pixel is
//! followed by the same pixel of the other images, `(H, C, W, 16)` instead of `(N, C, H, W)`. With stride 1,
//! the elements of a row of pixels that meet one element of the kernel are then one run of `16 OW` numbers.
//! So a row of pixels is a product that reads these runs where they are, and no patches are copied. With `K`
//! for the elements of a patch, `O` and `C` for the output and input channels:
//!
//! ```text
//! forward    y   (O x 16 OW)  = w (O x K)     runs of x (K x 16 OW)
//! backward   dx  (C x 16 OW) += w^T (C x KH O) dz (KH O x 16 OW), for each column of the kernel, whose
//!                               offset is that of the sum in the row of dx
//!            dw^T (O x KW C) += dz (O x P)    runs of x (P x KW C), for each row of the kernel and each
//!                               image as (H, W, C)
//! ```

mod forward;
mod input_gradient;
mod layout;
mod weight_gradient;

use rayon::prelude::*;

use self::forward::{forward, starts};
use self::input_gradient::{TurnedKernel, input_gradient};
use self::layout::IMAGES;
use self::weight_gradient::weight_gradient;
use super::conv::{Conv, Gradients};
use super::geometry::Geometry;
use crate::kernels::float::Float;
use crate::kernels::parallel::for_each;
use crate::kernels::product_precision;
use candelabrum_memory::thread_pool;

/// Smaller patches leave the products too little work for the changes of layout around them.
const SMALLEST_PATCH: usize = 64;

/// Numbers of one image. 16 larger ones do not stay in the second-level cache.
const LARGEST_IMAGE: usize = 1 << 14;

/// Whether this is the fastest way: the patches are not small, the images are, and at most a fifth of them
/// would be missing in the last sixteen.
pub(super) fn applies<T: Float>(geometry: &Geometry) -> bool {
    let &Geometry { batch, stride, dilation, groups, .. } = geometry;
    (stride, dilation, groups) == ((1, 1), (1, 1), 1)
        && !geometry.is_pointwise()
        && geometry.patch() >= SMALLEST_PATCH
        && geometry.in_image().max(geometry.out_image()) <= LARGEST_IMAGE
        && 4 * batch.next_multiple_of(IMAGES) <= 5 * batch
        && product_precision::bf16::<T>().is_none()
}

impl<T: Float> Conv<'_, T> {
    pub(super) fn forward_interleaved(&self, xs: &[T], bias: Option<&[T]>, ys: &mut [T]) {
        let (from, to) = (IMAGES * self.geometry.in_image(), IMAGES * self.geometry.out_image());
        let shared = self.share_images();
        let starts = starts(self.geometry);
        let images = xs.par_chunks(from).zip(ys.par_chunks_mut(to));
        for_each(!shared, images, |(xs, ys)| forward(self, &starts, xs, bias, ys, shared));
    }

    /// The gradients, from `dys`, which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward_interleaved(
        &self,
        xs: &[T],
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        let Gradients { dxs, dw, db } = gradients;
        self.differentiate_result(reference, dys, db);
        if let Some(dw) = dw {
            weight_gradient(self.geometry, xs, dys, dw);
        }
        if let Some(dxs) = dxs {
            let kernel = TurnedKernel::new(self.geometry, self.weight);
            let shared = self.share_images();
            let (from, to) =
                (IMAGES * self.geometry.out_image(), IMAGES * self.geometry.in_image());
            let images = dys.par_chunks(from).zip(dxs.par_chunks_mut(to));
            for_each(!shared, images, |(dys, dxs)| {
                input_gradient(self.geometry, &kernel, dys, dxs, shared);
            });
        }
    }

    /// Whether the threads share the rows of interleaved images instead of the images.
    fn share_images(&self) -> bool {
        self.geometry.batch.div_ceil(IMAGES) < thread_pool::threads()
    }
}
