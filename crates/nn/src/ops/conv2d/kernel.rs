//! The matrix products of a convolution, per image and group, with `P` the pixels of an output
//! channel, `K` the elements of a patch and `O` the output channels:
//!
//! ```text
//! forward    y    (O x P) = w (O x K)  patches (K x P)
//! backward   dw   (O x K) = dz (O x P) patches^T (P x K), summed over the images
//!            dx           = fold(w^T (K x O) dz (O x P))
//! ```
//!
//! One image at a time: its patches stay in the second-level cache (on the MNIST CNN, 8 images per
//! product take 1.2 times as long, 32 take 1.4 times). Summing `dw` transposed, so that only the
//! smaller `dz` is packed, was tried: no gain for conv2, a loss for conv1.

use gemm::Parallelism;
use rayon::prelude::*;

use super::geometry::Geometry;
use super::patches::{fold, unfold};
use crate::activation::Activation;
use crate::ops::elementwise::{activate, activation_backward, add_assign, bias_activation, sum};
use crate::ops::float::Float;
use crate::ops::fused::Pooled;
use crate::ops::matmul::{Dst, Mat, all_threads, matmul};

/// Into how many parts the images are split at most in the backward. It bounds the memory for
/// partial weight gradients and does not depend on the number of threads, so neither do the bits
/// of the result.
const MAX_PARTS: usize = 16;

pub(super) fn forward<T: Float>(
    geometry: &Geometry,
    xs: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    activation: Option<Activation>,
    ys: &mut [T],
) {
    let images = xs.chunks(geometry.in_image());
    if geometry.batch == 1 || rayon::current_num_threads() == 1 {
        for (x, y) in images.zip(ys.chunks_mut(geometry.out_image())) {
            forward_image(geometry, x, weight, bias, activation, y, all_threads());
        }
    } else {
        let images = xs.par_chunks(geometry.in_image());
        images.zip(ys.par_chunks_mut(geometry.out_image())).for_each(|(x, y)| {
            forward_image(geometry, x, weight, bias, activation, y, Parallelism::None);
        });
    }
}

/// Where the gradients go that are wanted.
pub(super) struct Gradients<'a, T> {
    pub(super) dxs: Option<&'a mut [T]>,
    pub(super) dw: Option<&'a mut [T]>,
    pub(super) db: Option<&'a mut [T]>,
}

pub(super) fn backward<T: Float>(
    geometry: &Geometry,
    activation: Option<Activation>,
    xs: &[T],
    weight: &[T],
    ys: &[T],
    dys: &[T],
    gradients: Gradients<'_, T>,
) {
    let Gradients { dxs, dw, db } = gradients;
    let wanted = (dw.is_some(), db.is_some());
    let pass = Backward { geometry, wanted, activation, xs, weight, ys, dys };
    let part_images = geometry.batch.div_ceil(MAX_PARTS).max(1);
    let mut dx_parts = dxs.map(|dxs| dxs.chunks_mut(part_images * geometry.in_image()));
    let parts: Vec<Part<'_, T>> = (0..geometry.batch)
        .step_by(part_images)
        .map(|start| Part {
            start,
            end: geometry.batch.min(start + part_images),
            dxs: dx_parts.as_mut().and_then(Iterator::next),
        })
        .collect();
    let mut total = pass.empty_sums();
    if parts.len() == 1 || rayon::current_num_threads() == 1 {
        for (index, part) in parts.into_iter().enumerate() {
            let parallelism = if index == 0 { all_threads() } else { Parallelism::None };
            total.add(&pass.run(part, parallelism));
        }
    } else {
        let sums: Vec<Sums<T>> =
            parts.into_par_iter().map(|part| pass.run(part, Parallelism::None)).collect();
        sums.iter().for_each(|sums| total.add(sums));
    }
    if let Some(dw) = dw {
        dw.copy_from_slice(&total.weight);
    }
    if let Some(db) = db {
        db.copy_from_slice(&total.bias);
    }
}

/// The arguments of a backward pass.
struct Backward<'a, T> {
    geometry: &'a Geometry,
    /// Weight, bias.
    wanted: (bool, bool),
    activation: Option<Activation>,
    xs: &'a [T],
    weight: &'a [T],
    ys: &'a [T],
    dys: &'a [T],
}

/// Some images, and where their input gradients go.
struct Part<'a, T> {
    start: usize,
    end: usize,
    dxs: Option<&'a mut [T]>,
}

/// Gradients that are sums over images; empty if not wanted.
struct Sums<T: Float> {
    weight: Pooled<T>,
    bias: Pooled<T>,
}

impl<T: Float> Sums<T> {
    fn add(&mut self, other: &Self) {
        add_assign(&mut self.weight, &other.weight);
        add_assign(&mut self.bias, &other.bias);
    }
}

impl<T: Float> Backward<'_, T> {
    fn empty_sums(&self) -> Sums<T> {
        let zeros = |wanted, len| if wanted { Pooled::zeros(len) } else { Pooled::none() };
        Sums {
            weight: zeros(self.wanted.0, self.weight.len()),
            bias: zeros(self.wanted.1, self.geometry.out_channels),
        }
    }

    /// The gradients of the images of one part.
    fn run(&self, mut part: Part<'_, T>, parallelism: Parallelism) -> Sums<T> {
        let geometry = self.geometry;
        let (in_image, out_image) = (geometry.in_image(), geometry.out_image());
        let mut sums = self.empty_sums();
        let mut masked = Pooled::new(out_image);
        let mut patches = Pooled::new(geometry.patch() * geometry.out_pixels());
        for image in part.start..part.end {
            let x = &self.xs[image * in_image..][..in_image];
            let dz = &mut *masked;
            dz.copy_from_slice(&self.dys[image * out_image..][..out_image]);
            if let Some(activation) = self.activation {
                activation_backward(dz, &self.ys[image * out_image..][..out_image], activation);
            }
            for (db, dz) in sums.bias.iter_mut().zip(dz.chunks(geometry.out_pixels())) {
                *db += sum(dz);
            }
            if self.wanted.0 {
                let dst = if image == part.start { Dst::Overwrite } else { Dst::Add };
                weight_gradient(geometry, x, dz, &mut patches, &mut sums.weight, dst, parallelism);
            }
            if let Some(dxs) = &mut part.dxs {
                let dx = &mut dxs[(image - part.start) * in_image..][..in_image];
                dx.fill(T::zero());
                input_gradient(geometry, self.weight, dz, &mut patches, dx, parallelism);
            }
        }
        sums
    }
}

fn forward_image<T: Float>(
    geometry: &Geometry,
    x: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    activation: Option<Activation>,
    y: &mut [T],
    parallelism: Parallelism,
) {
    let (patch, pixels, channels) =
        (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
    let x_groups = x.chunks(x.len() / geometry.groups);
    let y_groups = y.chunks_mut(channels * pixels);
    let groups = x_groups.zip(weight.chunks(channels * patch)).zip(y_groups);
    for (group, ((x, weight), y)) in groups.enumerate() {
        let weight = Mat::new(weight, channels, patch);
        let mut product = |patches: &[T]| {
            let patches = Mat::new(patches, patch, pixels);
            matmul(y, Dst::Overwrite, weight, patches, parallelism);
        };
        if geometry.is_pointwise() {
            product(x);
        } else {
            let mut patches = Pooled::new(patch * pixels);
            unfold(geometry, x, &mut patches);
            product(&patches);
        }
        match bias {
            None => activate(y, activation),
            Some(bias) => {
                let bias = &bias[group * channels..];
                for (y, &bias) in y.chunks_mut(pixels).zip(bias) {
                    bias_activation(y, bias, activation);
                }
            }
        }
    }
}

fn weight_gradient<T: Float>(
    geometry: &Geometry,
    x: &[T],
    dz: &[T],
    patches: &mut [T],
    dw: &mut [T],
    dst: Dst,
    parallelism: Parallelism,
) {
    let (patch, pixels, channels) =
        (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
    let x_groups = x.chunks(x.len() / geometry.groups);
    let groups = x_groups.zip(dz.chunks(channels * pixels)).zip(dw.chunks_mut(channels * patch));
    for ((x, dz), dw) in groups {
        let patches = if geometry.is_pointwise() {
            x
        } else {
            unfold(geometry, x, patches);
            &*patches
        };
        let (dz, patches) = (Mat::new(dz, channels, pixels), Mat::new(patches, patch, pixels));
        matmul(dw, dst, dz, patches.t(), parallelism);
    }
}

fn input_gradient<T: Float>(
    geometry: &Geometry,
    weight: &[T],
    dz: &[T],
    patches: &mut [T],
    dx: &mut [T],
    parallelism: Parallelism,
) {
    let (patch, pixels, channels) =
        (geometry.patch(), geometry.out_pixels(), geometry.group_channels());
    let dx_groups = dx.chunks_mut(dx.len() / geometry.groups);
    let groups = weight.chunks(channels * patch).zip(dz.chunks(channels * pixels)).zip(dx_groups);
    for ((weight, dz), dx) in groups {
        let (weight, dz) = (Mat::new(weight, channels, patch), Mat::new(dz, channels, pixels));
        if geometry.is_pointwise() {
            matmul(dx, Dst::Overwrite, weight.t(), dz, parallelism);
        } else {
            matmul(patches, Dst::Overwrite, weight.t(), dz, parallelism);
            fold(geometry, patches, dx);
        }
    }
}
