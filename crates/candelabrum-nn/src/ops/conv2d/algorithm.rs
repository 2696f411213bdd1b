//! Which algorithm computes a convolution. docs/log/2026-11-21-im2col.md and
//! docs/log/2026-11-23-convolution.md have the measurements behind the choice.

use super::conv::{Conv, Gradients};
use super::geometry::Geometry;
use super::images::Images;
use super::{depthwise, direct, interleaved, tiles, winograd};
use crate::kernels::float::Float;
use crate::kernels::gemm::bf16::Amx;
use crate::kernels::scratch::Pooled;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvAlgorithm {
    /// The tiles of a processor that multiplies matrices in bf16, over pixels with their channels: `tiles.rs`.
    Tiles(Amx),
    /// Winograd's minimal filtering, for 3 × 3 kernels: `winograd/`.
    Winograd,
    /// One channel after the other, for depthwise convolutions: `depthwise.rs`.
    Depthwise,
    /// Products that read the image itself: `direct.rs`.
    Direct,
    /// Products that read 16 interleaved images: `interleaved/`.
    Interleaved,
    /// Products that read a matrix of patches: `im2col/`.
    Im2col,
}

impl ConvAlgorithm {
    fn from_geometry<T: Float>(geometry: &Geometry) -> Self {
        if let Some(amx) = tiles::applies::<T>(geometry) {
            return Self::Tiles(amx);
        }
        match geometry {
            geometry if winograd::applies(geometry) => Self::Winograd,
            geometry if depthwise::applies(geometry) => Self::Depthwise,
            geometry if direct::applies(geometry) => Self::Direct,
            geometry if interleaved::applies::<T>(geometry) => Self::Interleaved,
            _ => Self::Im2col,
        }
    }
}

impl<T: Float> Conv<'_, T> {
    /// Computes `ys` (N, O, OH, OW) from `xs` (N, C, H, W) and `bias` (O).
    pub(super) fn forward(&self, xs: Images<'_, T>, bias: Option<&[T]>, ys: &mut [T]) {
        let mut memory = Pooled::none();
        match ConvAlgorithm::from_geometry::<T>(self.geometry) {
            ConvAlgorithm::Tiles(amx) => self.forward_by_tiles(amx, xs, bias, ys),
            ConvAlgorithm::Depthwise => self.forward_depthwise(xs, bias, ys),
            ConvAlgorithm::Direct => self.forward_direct(xs, bias, ys),
            ConvAlgorithm::Im2col => self.forward_by_im2col(xs, bias, ys),
            ConvAlgorithm::Winograd => self.forward_by_winograd(xs.whole(&mut memory), bias, ys),
            ConvAlgorithm::Interleaved => self.forward_interleaved(xs.whole(&mut memory), bias, ys),
        }
    }

    /// The gradients, from `dys` (N, O, OH, OW), which is overwritten. The activation computes its derivative from
    /// `reference`.
    pub(super) fn backward(
        &self,
        xs: Images<'_, T>,
        reference: &[T],
        dys: &mut [T],
        gradients: Gradients<'_, T>,
    ) {
        if self.geometry.batch == 0 {
            let sums = [gradients.dw, gradients.db];
            return sums.into_iter().flatten().for_each(|sum| sum.fill(T::zero()));
        }
        let mut memory = Pooled::none();
        match ConvAlgorithm::from_geometry::<T>(self.geometry) {
            ConvAlgorithm::Tiles(amx) => {
                self.backward_by_tiles(amx, xs, reference, dys, gradients);
            }
            ConvAlgorithm::Depthwise => self.backward_depthwise(xs, reference, dys, gradients),
            ConvAlgorithm::Direct => self.backward_direct(xs, reference, dys, gradients),
            ConvAlgorithm::Im2col => self.backward_by_im2col(xs, reference, dys, gradients),
            ConvAlgorithm::Winograd => {
                self.backward_by_winograd(xs.whole(&mut memory), reference, dys, gradients);
            }
            ConvAlgorithm::Interleaved => {
                self.backward_interleaved(xs.whole(&mut memory), reference, dys, gradients);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use candle_core::Shape;

    use super::*;
    use crate::kernels::gemm::on_each_instruction_set;
    use crate::ops::conv2d::Conv2dConfig;

    fn numbers(len: usize, seed: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 31 + seed) * 7919 % 101) as f64 / 50.0 - 1.0).collect()
    }

    /// The result, and the gradients of input and weight, by the chosen algorithm or by im2col.
    fn step(geometry: &Geometry, by_im2col: bool) -> [Vec<f64>; 3] {
        let (batch, weight) = (geometry.batch, numbers(geometry.weight(), 1));
        let xs = numbers(batch * geometry.in_image(), 2);
        let conv = Conv { geometry, weight: &weight, activation: None };
        let mut ys = vec![f64::NAN; batch * geometry.out_image()];
        let mut dys = numbers(ys.len(), 3);
        let (mut dxs, mut dw) = (vec![f64::NAN; xs.len()], vec![f64::NAN; weight.len()]);
        let images = Images::plain(&xs);
        let gradients = Gradients { dxs: Some(&mut dxs), dw: Some(&mut dw), db: None };
        if by_im2col {
            conv.forward_by_im2col(images, None, &mut ys);
            conv.backward_by_im2col(images, &[], &mut dys, gradients);
        } else {
            conv.forward(images, None, &mut ys);
            conv.backward(images, &[], &mut dys, gradients);
        }
        [ys, dxs, dw]
    }

    #[test]
    fn each_algorithm_is_that_of_im2col_on_every_instruction_set() {
        let plain = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
        for (algorithm, xs, weight, config) in [
            (ConvAlgorithm::Winograd, [3, 17, 9, 13], [19, 17, 3, 3], plain),
            (
                ConvAlgorithm::Depthwise,
                [2, 7, 9, 8],
                [14, 1, 3, 3],
                Conv2dConfig { groups: 7, ..plain },
            ),
            (
                ConvAlgorithm::Direct,
                [2, 9, 25, 27],
                [7, 9, 3, 3],
                Conv2dConfig { stride: (2, 3), ..plain },
            ),
            (
                ConvAlgorithm::Direct,
                [1, 5, 31, 64],
                [20, 5, 5, 3],
                Conv2dConfig { dilation: (2, 1), ..plain },
            ),
            (ConvAlgorithm::Interleaved, [16, 20, 12, 12], [50, 20, 5, 5], Conv2dConfig::default()),
            (ConvAlgorithm::Interleaved, [29, 7, 5, 9], [3, 7, 4, 5], plain),
            // Rows of the kernel that meet only padding.
            (
                ConvAlgorithm::Interleaved,
                [27, 9, 2, 6],
                [13, 9, 5, 5],
                Conv2dConfig { padding: (2, 3), ..plain },
            ),
        ] {
            let geometry = Geometry::new(&Shape::from(&xs[..]), &Shape::from(&weight[..]), config);
            let geometry = geometry.unwrap();
            assert_eq!(ConvAlgorithm::from_geometry::<f64>(&geometry), algorithm);
            let expected = step(&geometry, true);
            let worst = RefCell::new(0.0_f64);
            on_each_instruction_set(|| {
                for (actual, expected) in step(&geometry, false).iter().zip(&expected) {
                    let errors = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
                    let largest = errors.fold(0.0, f64::max);
                    worst.replace_with(|worst| worst.max(largest));
                    assert!(actual.iter().all(|x| x.is_finite()));
                }
            });
            assert!(*worst.borrow() < 1e-11, "{algorithm:?}: {}", worst.borrow());
        }
    }
}
