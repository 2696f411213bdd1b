//! The conversion of bytes to floats.

use std::borrow::Cow;

use crate::error::{Error, Result};

/// The conversion of an image's bytes to floats.
///
/// ```
/// use candelabrum_datasets::Scaling;
///
/// // A mean and a standard deviation for each of three channels, in units of [0, 1].
/// let cifar10 = Scaling::standardized([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]);
/// # drop(cifar10);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Scaling {
    /// `x / 255`, in \[0, 1\], as in SINGA's MNIST example.
    #[default]
    Unit,
    /// `(x / 255 - mean) / std`, with a mean and a standard deviation for each channel. The number
    /// of each must equal the images' number of channels.
    Standardized {
        /// The means to subtract, in units of \[0, 1\].
        mean: Cow<'static, [f32]>,
        /// The standard deviations to divide by, in units of \[0, 1\].
        std: Cow<'static, [f32]>,
    },
}

impl Scaling {
    /// Mean and standard deviation of the MNIST training set, as in PyTorch's example.
    pub const MNIST: Self =
        Self::Standardized { mean: Cow::Borrowed(&[0.1307]), std: Cow::Borrowed(&[0.3081]) };

    /// The means and standard deviations of ImageNet's red, green and blue, as in torchvision.
    pub const IMAGENET: Self = Self::Standardized {
        mean: Cow::Borrowed(&[0.485, 0.456, 0.406]),
        std: Cow::Borrowed(&[0.229, 0.224, 0.225]),
    };

    /// `(x / 255 - mean) / std` for images of `C` channels.
    pub fn standardized<const C: usize>(mean: [f32; C], std: [f32; C]) -> Self {
        let [mean, std] = [mean, std].map(|values| Cow::Owned(values.to_vec()));
        Self::Standardized { mean, std }
    }

    /// Refuses numbers by which images with `channels` channels cannot be scaled.
    pub(crate) fn check(&self, channels: usize) -> Result<()> {
        let Self::Standardized { mean, std } = self else { return Ok(()) };
        if mean.len() != channels || std.len() != channels {
            let (means, stds) = (mean.len(), std.len());
            return Err(Error::argument(format!(
                "the scaling has {means} means and {stds} standard deviations, the images have \
                 {channels} channel(s): give one of each for every channel"
            )));
        }
        let numbers = mean.iter().all(|x| x.is_finite());
        if !numbers || !std.iter().all(|&x| x.is_finite() && x > 0.0) {
            return Err(Error::argument(format!(
                "scaling by the means {mean:?} and the standard deviations {std:?}: all must be \
                 finite, and deviations above 0"
            )));
        }
        Ok(())
    }

    /// Appends the scaled pixels of an image (C, H, W).
    pub(crate) fn extend(&self, to: &mut Vec<f32>, image: &[u8]) {
        match self {
            Self::Unit => to.extend(image.iter().map(|&pixel| f32::from(pixel) / 255.0)),
            Self::Standardized { mean, std } => {
                let planes = image.chunks_exact(image.len() / mean.len());
                for ((plane, mean), std) in planes.zip(&**mean).zip(&**std) {
                    to.extend(plane.iter().map(|&pixel| (f32::from(pixel) / 255.0 - mean) / std));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_channel_has_its_own_mean_and_deviation() {
        let scaling = Scaling::standardized([0.0, 0.5, 1.0], [1.0, 0.25, 0.5]);
        scaling.check(3).unwrap();
        let mut scaled = Vec::new();
        scaling.extend(&mut scaled, &[0, 255, 0, 255, 0, 255]);
        assert_eq!(scaled, [0.0, 1.0, -2.0, 2.0, -2.0, 0.0]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let message = |scaling: Scaling, channels| scaling.check(channels).unwrap_err().to_string();
        let text = message(Scaling::IMAGENET, 1);
        assert!(text.contains("3 means") && text.contains("1 channel"), "{text}");
        assert!(message(Scaling::MNIST, 3).contains("3 channel"));
        let uneven = Scaling::Standardized { mean: vec![0.5].into(), std: vec![].into() };
        assert!(message(uneven, 1).contains("0 standard deviations"));
        for std in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(message(Scaling::standardized([0.5], [std]), 1).contains("above 0"), "{std}");
        }
        assert!(message(Scaling::standardized([f32::NAN], [1.0]), 1).contains("finite"));
        Scaling::Unit.check(7).unwrap();
    }
}
