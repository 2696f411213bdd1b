//! A convolution as one matrix product per group, by candle's own operations.

use candle_core::{Result, Tensor};

use super::geometry::Geometry;
use crate::ops::unfold::{Edge, WindowAxis, unfold};

/// The convolution of `xs` (N, C, H, W) by `weight` (O, C / groups, KH, KW), without bias.
pub(super) fn convolution(geometry: &Geometry, xs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let &Geometry { batch, groups, out_channels, stride, padding, dilation, .. } = geometry;
    let ((oh, ow), (kh, kw)) = (geometry.out_size, geometry.kernel);
    let rows = WindowAxis {
        out: oh,
        kernel: kh,
        stride: stride.0,
        dilation: dilation.0,
        padding: padding.0,
    };
    let columns = WindowAxis {
        out: ow,
        kernel: kw,
        stride: stride.1,
        dilation: dilation.1,
        padding: padding.1,
    };
    let (inputs, outputs) = (geometry.in_channels / groups, out_channels / groups);
    let patches = unfold(xs, [rows, columns], Edge::Zeros)?
        .reshape(&[batch, groups, inputs, kh, oh, kw, ow][..])?
        .permute([1, 0, 4, 6, 2, 3, 5])? // (G, N, OH, OW, C/G, KH, KW)
        .reshape((groups, batch * oh * ow, inputs * kh * kw))?;
    let weight = weight.reshape((groups, outputs, inputs * kh * kw))?;
    let ys = patches.matmul(&weight.transpose(1, 2)?)?; // (G, N OH OW, O/G)
    let ys = ys.reshape((groups, batch, oh, ow, outputs))?.permute((1, 0, 4, 2, 3))?;
    ys.reshape((batch, out_channels, oh, ow))
}
