//! The convolution of the networks for images.

use candelabrum_nn::layers::Conv2d;
use candelabrum_nn::{Init, Scope};

/// A convolution without bias, because a normalisation follows. It keeps the size at stride 1.
pub(crate) fn conv(scope: &Scope, channels: usize, kernel: usize) -> Conv2d {
    let conv = Conv2d::new(scope, channels, kernel).no_bias().padding(kernel / 2);
    conv.init(Init::he_normal(channels * kernel * kernel))
}
