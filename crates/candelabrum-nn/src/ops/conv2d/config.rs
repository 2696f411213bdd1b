//! The options of a convolution.

/// The name in errors.
pub(super) const NAME: &str = "conv2d";

/// The options of a 2-d convolution, each pair as (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2dConfig {
    /// The step between two windows.
    pub stride: (usize, usize),
    /// Zeros added on both sides.
    pub padding: (usize, usize),
    /// The step between two elements of a window.
    pub dilation: (usize, usize),
    /// The number of independent convolutions into which the channels are split.
    pub groups: usize,
}

impl Default for Conv2dConfig {
    fn default() -> Self {
        Self { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 }
    }
}
