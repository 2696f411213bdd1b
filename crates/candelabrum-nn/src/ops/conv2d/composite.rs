//! A convolution as one matrix product per group, by candle's own operations.

use candle_core::{Result, Tensor};

use super::geometry::Geometry;
use crate::ops::unfold::{EdgeValues, unfold};

/// The convolution of `xs` (N, C, H, W) by `weight` (O, C / groups, KH, KW), without bias. Both may have other
/// shapes with the same elements in the same order.
pub(super) fn convolution(geometry: &Geometry, xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let &Geometry { batch, groups, out_channels, .. } = geometry;
    let ((oh, ow), (kh, kw)) = (geometry.out_size, geometry.kernel);
    let (inputs, outputs) = (geometry.in_channels / groups, out_channels / groups);
    let (height, width) = geometry.in_size;
    let xs = xs.reshape((batch, geometry.in_channels, height, width))?;
    let patches = unfold(&xs, geometry.axes(), EdgeValues::Zeros)?
        .reshape(&[batch, groups, inputs, kh, oh, kw, ow][..])?
        .permute([1, 0, 4, 6, 2, 3, 5])? // (G, N, OH, OW, C/G, KH, KW)
        .reshape((groups, batch * oh * ow, inputs * kh * kw))?;
    let weight = weight.reshape((groups, outputs, inputs * kh * kw))?;
    let ys = patches.matmul(&weight.transpose(1, 2)?)?; // (G, N OH OW, O/G)
    let ys = ys.reshape((groups, batch, oh, ow, outputs))?.permute((1, 0, 4, 2, 3))?;
    ys.reshape((batch, out_channels, oh, ow))
}
