//! The sizes of a 2-d convolution.

/// The sizes of a 2-d convolution without bias, each pair as (height, width). The input has the shape
/// (batch, `in_channels`, H, W), the weight (`out_channels`, `in_channels` / groups, KH, KW) and the
/// result (batch, `out_channels`, OH, OW) with `OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The number of images.
    pub batch: usize,
    /// The input channels of all groups together.
    pub in_channels: usize,
    /// The output channels of all groups together.
    pub out_channels: usize,
    /// The number of independent convolutions.
    pub groups: usize,
    /// The size of an input image.
    pub in_size: (usize, usize),
    /// The size of an output image.
    pub out_size: (usize, usize),
    /// The size of a window.
    pub kernel: (usize, usize),
    /// The step between two windows.
    pub stride: (usize, usize),
    /// The zeros on both sides.
    pub padding: (usize, usize),
    /// The step between two elements of a window.
    pub dilation: (usize, usize),
}

impl Convolution {
    /// The number of elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.in_size.0 * self.in_size.1
    }

    /// The number of elements of the weight.
    pub fn weight_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups) * self.kernel.0 * self.kernel.1
    }

    /// The number of elements of the result.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_size.0 * self.out_size.1
    }

    /// Whether all sizes and lengths are below 2^31, which is the limit of cuDNN.
    pub fn is_small_enough(&self) -> bool {
        let pairs = [self.stride, self.padding, self.dilation];
        let sizes = pairs.into_iter().flat_map(|(height, width)| [height, width]);
        let lengths = [self.input_len(), self.weight_len(), self.output_len()];
        sizes.chain(lengths).all(|size| i32::try_from(size).is_ok())
    }
}
