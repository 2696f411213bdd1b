//! The sizes of a convolution, checked once.

use std::ops::Range;

use candle_core::{Result, Shape, bail};

use super::super::sizes::sizes;
use super::super::unfold::WindowAxis;
use super::config::{Conv2dConfig, NAME};

/// From this number of result pixels on, the rows of one image are long enough.
const SMALL: usize = 64;

/// Columns of a product: a compromise between packing the weight again for every chunk of images
/// and patches that stay in the cache.
const COLUMNS: usize = 256;

/// [`COLUMNS`] where the patches are the images themselves.
const POINTWISE_COLUMNS: usize = 512;

/// The channels, height and width of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageSize {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl ImageSize {
    /// The number of elements.
    pub(super) fn len(self) -> usize {
        self.channels * self.height * self.width
    }

    /// The size with zeros around the image.
    pub(super) fn padded(self, padding: (usize, usize)) -> Self {
        let (height, width) = (self.height + 2 * padding.0, self.width + 2 * padding.1);
        Self { height, width, ..self }
    }
}

/// A convolution along its rows or along its columns.
struct Extent {
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Extent {
    /// The size of the result. `None` if the kernel is larger than the padded input.
    fn out(&self) -> Option<usize> {
        let window = self.dilation.checked_mul(self.kernel - 1)?.checked_add(1)?;
        let padded = self.padding.checked_mul(2)?.checked_add(self.size)?;
        padded.checked_sub(window).map(|rest| rest / self.stride + 1)
    }

    /// The elements of the kernel that meet the input anywhere.
    fn taps(&self) -> Range<usize> {
        let out = self.out().unwrap_or(0);
        let meets = |&tap: &usize| {
            let before = tap * self.dilation;
            let start = self.padding.saturating_sub(before).div_ceil(self.stride);
            let end = (self.size + self.padding).saturating_sub(before).div_ceil(self.stride);
            start < end.min(out)
        };
        let first = (0..self.kernel).find(meets).unwrap_or(0);
        first..(first..self.kernel).rev().find(meets).map_or(first, |last| last + 1)
    }
}

/// All sizes of one convolution. Every kernel relies on the checks in [`Geometry::new`].
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    /// Input channels of all groups together.
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) groups: usize,
    pub(crate) in_size: (usize, usize),
    pub(crate) out_size: (usize, usize),
    pub(crate) kernel: (usize, usize),
    pub(crate) stride: (usize, usize),
    pub(crate) padding: (usize, usize),
    pub(crate) dilation: (usize, usize),
    /// Rows and columns of the kernel that meet the image anywhere. Small images with padding omit
    /// some: a 3 x 3 kernel over a single pixel has only its middle left.
    pub(crate) taps: (Range<usize>, Range<usize>),
}

impl Geometry {
    pub(super) fn new(xs: &Shape, weight: &Shape, config: Conv2dConfig) -> Result<Self> {
        let Conv2dConfig { stride, padding, dilation, groups } = config;
        let [batch, in_channels, height, width] = sizes(NAME, "input", xs, "(N, C, H, W)")?;
        let [out_channels, channels_per_group, kernel_height, kernel_width] =
            sizes(NAME, "weight", weight, "(out, C / groups, KH, KW)")?;
        let positive = [stride.0, stride.1, dilation.0, dilation.1, groups];
        if positive.contains(&0) {
            bail!("{NAME}: stride, dilation and groups must be positive, got {config:?}");
        }
        let empty = [out_channels, kernel_height, kernel_width, in_channels, height, width];
        if empty.contains(&0) {
            bail!("{NAME}: empty weight or image, weight of shape {weight:?}, input {xs:?}");
        }
        if channels_per_group * groups != in_channels || out_channels % groups != 0 {
            bail!(
                "{NAME}: weight of shape {weight:?} does not fit input of shape {xs:?} in {groups} \
                 group(s)"
            );
        }
        let vertical = Extent {
            size: height,
            kernel: kernel_height,
            stride: stride.0,
            padding: padding.0,
            dilation: dilation.0,
        };
        let horizontal = Extent {
            size: width,
            kernel: kernel_width,
            stride: stride.1,
            padding: padding.1,
            dilation: dilation.1,
        };
        let (Some(out_height), Some(out_width)) = (vertical.out(), horizontal.out()) else {
            bail!("{NAME}: kernel of shape {weight:?} is larger than the padded input {xs:?}");
        };
        let mut taps = (vertical.taps(), horizontal.taps());
        if taps.0.is_empty() || taps.1.is_empty() {
            // The kernel meets only padding. This is rare, and no reason to allow matrices without
            // rows.
            taps = (0..kernel_height, 0..kernel_width);
        }
        Ok(Self {
            taps,
            batch,
            in_channels,
            out_channels,
            groups,
            in_size: (height, width),
            out_size: (out_height, out_width),
            kernel: (kernel_height, kernel_width),
            stride,
            padding,
            dilation,
        })
    }

    pub(super) fn output_shape(&self) -> Shape {
        Shape::from((self.batch, self.out_channels, self.out_size.0, self.out_size.1))
    }

    /// The windows along the height and the width.
    pub(in crate::ops) fn axes(&self) -> [WindowAxis; 2] {
        let Self { out_size, kernel, stride, dilation, padding, .. } = *self;
        let axis = |out, kernel, stride, dilation, padding| WindowAxis {
            out,
            kernel,
            stride,
            dilation,
            padding,
        };
        [
            axis(out_size.0, kernel.0, stride.0, dilation.0, padding.0),
            axis(out_size.1, kernel.1, stride.1, dilation.1, padding.1),
        ]
    }

    /// The number of pixels of one output channel: columns of the patch matrix.
    pub(crate) fn out_pixels(&self) -> usize {
        self.out_size.0 * self.out_size.1
    }

    /// The number of elements of one patch within a group, without those that meet only padding:
    /// rows of the patch matrix.
    pub(super) fn patch(&self) -> usize {
        self.in_channels / self.groups * self.taps.0.len() * self.taps.1.len()
    }

    /// Whether some of the kernel's elements meet only padding.
    pub(super) fn is_cropped(&self) -> bool {
        self.taps != (0..self.kernel.0, 0..self.kernel.1)
    }

    /// The number of weight elements that meet the image.
    pub(super) fn weight(&self) -> usize {
        self.out_channels * self.patch()
    }

    pub(super) fn input(&self) -> ImageSize {
        let (height, width) = self.in_size;
        ImageSize { channels: self.in_channels, height, width }
    }

    pub(super) fn output(&self) -> ImageSize {
        let (height, width) = self.out_size;
        ImageSize { channels: self.out_channels, height, width }
    }

    /// The number of elements of one input image.
    pub(super) fn in_image(&self) -> usize {
        self.in_channels * self.in_size.0 * self.in_size.1
    }

    /// The number of elements of one output image.
    pub(super) fn out_image(&self) -> usize {
        self.out_channels * self.out_pixels()
    }

    /// The number of output channels of one group.
    pub(super) fn group_channels(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Whether the patch matrix of an image is the image itself.
    pub(super) fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.padding) == ((1, 1), (1, 1), (0, 0))
    }

    /// Whether the images are small and numerous enough to lie side by side in a product.
    pub(super) fn is_small(&self) -> bool {
        self.out_pixels() < SMALL && self.batch >= 8
    }

    /// The number of images per product.
    pub(super) fn chunk(&self) -> usize {
        let columns = if self.is_pointwise() { POINTWISE_COLUMNS } else { COLUMNS };
        if self.is_small() { (columns / self.out_pixels()).clamp(1, self.batch) } else { 1 }
    }
}
