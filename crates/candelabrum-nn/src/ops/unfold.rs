//! The elements of all windows of an image, and the reverse, by candle's own operations. The composites of
//! convolution and pooling use this.
//!
//! Each axis is one `index_select`, whose backward adds up the gradients of elements that lie in
//! several windows. candle's own window operations are not suitable. `conv2d` takes one stride for
//! both axes, and its backward fails if the stride leaves different remainders of height and width.
//! The backward of `avg_pool2d` and `max_pool2d` refuses windows that overlap, and the gradient of
//! `max_pool2d` is too small by the size of the window.

use candle_core::{Result, Tensor};

/// The windows along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowAxis {
    /// The number of windows.
    pub(super) out: usize,
    /// The number of elements of a window.
    pub(super) kernel: usize,
    /// The distance from a window to the next.
    pub(super) stride: usize,
    /// The distance from an element of a window to the next.
    pub(super) dilation: usize,
    /// The padding on each side.
    pub(super) padding: usize,
}

/// The values of windows beyond the edges of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeValues {
    Zeros,
    /// The nearest element of the image.
    Nearest,
}

/// (N, C, H, W) -> (N, C, KH, OH, KW, OW)
pub(super) fn unfold(
    xs: &Tensor,
    [rows, columns]: [WindowAxis; 2],
    edge: EdgeValues,
) -> Result<Tensor> {
    let (batch, channels, _, _) = xs.dims4()?;
    let xs = columns.unfold(&rows.unfold(xs, 2, edge)?, 3, edge)?;
    xs.reshape(&[batch, channels, rows.kernel, rows.out, columns.kernel, columns.out][..])
}

/// (N, C, KH, OH, KW, OW) -> (N, C, H, W): the sum of all elements of windows at each place of an image of these
/// sizes, which is what [`unfold`] with zeros beyond the edges is differentiated by.
pub(super) fn fold(
    windows: &Tensor,
    [rows, columns]: [WindowAxis; 2],
    (height, width): (usize, usize),
) -> Result<Tensor> {
    let &[batch, channels, ..] = windows.dims() else { unreachable!("windows of images") };
    let (down, across) = (rows.kernel * rows.out, columns.kernel * columns.out);
    let windows = windows.reshape((batch, channels, down, across))?;
    columns.fold(&rows.fold(&windows, 2, height)?, 3, width)
}

impl WindowAxis {
    /// The reverse of [`Self::unfold`]: the dimension of `kernel * out` elements becomes one of `size` sums.
    fn fold(self, windows: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
        let mut shape = windows.dims().to_vec();
        shape[dim] = size + 2 * self.padding;
        let places = Tensor::from_iter(self.places().map(|place| place as u32), windows.device())?;
        let sums = Tensor::zeros(shape, windows.dtype(), windows.device())?;
        sums.index_add(&places, &windows.contiguous()?, dim)?.narrow(dim, self.padding, size)
    }

    /// The place of each element of each window, in an image with padding.
    fn places(self) -> impl Iterator<Item = usize> {
        let Self { out, kernel, stride, dilation, .. } = self;
        (0..kernel).flat_map(move |k| (0..out).map(move |o| o * stride + k * dilation))
    }

    /// The dimension becomes one of `kernel * out` elements.
    fn unfold(self, xs: &Tensor, dim: usize, edge: EdgeValues) -> Result<Tensor> {
        let padding = self.padding;
        let (xs, size) = match edge {
            EdgeValues::Zeros => (&xs.pad_with_zeros(dim, padding, padding)?, None),
            EdgeValues::Nearest => (xs, Some(xs.dim(dim)?)),
        };
        let place = |place: usize| match size {
            None => place as u32,
            Some(size) => place.saturating_sub(padding).min(size - 1) as u32,
        };
        let places = Tensor::from_iter(self.places().map(place), xs.device())?;
        xs.index_select(&places, dim)
    }
}
