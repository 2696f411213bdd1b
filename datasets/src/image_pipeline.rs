//! From the bytes of a PNG or JPEG file to the numbers of a model: decode, cut out, resize, augment,
//! scale.
//!
//! Images of a folder have different sizes, and a batch has one. In training, a random window may be
//! cut out. Otherwise, and in an evaluation, it is one in the center. The window is cut out of the
//! original and then resized, so that nothing is resized that is not needed.

use candle_core::{Device, Tensor};

use crate::{
    augment::Augmentation,
    decoded_image::DecodedImage,
    error::{Error, Result},
    image_error::ImageError,
    pass::Pass,
    random_resized_crop::{RandomResizedCrop, Window},
    scaling::Scaling,
};

/// The most rows or columns of a result.
const MOST: usize = 1 << 16;

/// What becomes of the bytes of an image file.
///
/// The formats are PNG and JPEG. The content shows which one it is. The decoder refuses images for
/// which it would need more than 512 MiB. A rotation that a camera has noted in the file is not
/// applied, as in torchvision.
///
/// ```
/// use candelabrum_datasets::{ImagePipeline, RandomResizedCrop, Resize, Scaling};
///
/// # fn main() -> candelabrum_datasets::Result<()> {
/// let imagenet = ImagePipeline::rgb([224, 224])?
///     .resized(Resize::Shorter(256))?
///     .cropped(RandomResizedCrop::inception())?
///     .scaled(Scaling::IMAGENET)?;
/// assert_eq!(imagenet.shape(), [3, 224, 224]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePipeline {
    shape: [usize; 3],
    resize: Resize,
    crop: Option<RandomResizedCrop>,
    augmentation: Option<Augmentation>,
    scaling: Scaling,
}

/// Which part of an image becomes the result where nothing is cut out at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resize {
    /// The whole image, with another ratio of its sides if necessary.
    Stretch,
    /// The largest window in the center that has the ratio of the result's sides.
    #[default]
    Cover,
    /// The window in the center that has the result's size if the image's shorter side is resized to so
    /// many pixels, up to rounding to whole pixels of the original. ImageNet's evaluations resize to 256
    /// pixels and cut out 224.
    Shorter(usize),
}

impl ImagePipeline {
    /// Images of three channels: red, green and blue. Others are converted. What an image shows outside of the
    /// largest window in its center that has the ratio of `size` is cut off, unless [`resized`](Self::resized) says
    /// otherwise.
    ///
    /// # Shapes
    /// `size` is \[H, W\], the result (3, H, W).
    ///
    /// # Errors
    /// A size of 0 or above 65,536.
    pub fn rgb(size: [usize; 2]) -> Result<Self> {
        Self::new(3, size)
    }

    /// Images of one channel, the brightness. Colored ones are converted.
    ///
    /// # Shapes
    /// `size` is \[H, W\], the result (1, H, W).
    ///
    /// # Errors
    /// A size of 0 or above 65,536.
    pub fn gray(size: [usize; 2]) -> Result<Self> {
        Self::new(1, size)
    }

    fn new(channels: usize, [height, width]: [usize; 2]) -> Result<Self> {
        if !(1..=MOST).contains(&height) || !(1..=MOST).contains(&width) {
            return Err(Error::argument(format!(
                "images of {height} x {width} pixels: both must be from 1 to {MOST}"
            )));
        }
        let (crop, augmentation) = (None, None);
        let shape = [channels, height, width];
        Ok(Self { shape, resize: Resize::Cover, crop, augmentation, scaling: Scaling::Unit })
    }

    /// Another part of the image for an evaluation, and for training without a random crop.
    ///
    /// # Errors
    /// A shorter side that is shorter than the result's longer side.
    pub fn resized(self, resize: Resize) -> Result<Self> {
        let [_, height, width] = self.shape;
        match resize {
            Resize::Shorter(shorter) if shorter < height.max(width) => {
                Err(Error::argument(format!(
                    "a shorter side of {shorter} pixels has no window of {height} x {width}: choose \
                     at least the longer of both"
                )))
            }
            _ => Ok(Self { resize, ..self }),
        }
    }

    /// A random window in training.
    ///
    /// # Errors
    /// Ranges from which no window can be drawn.
    pub fn cropped(self, crop: RandomResizedCrop) -> Result<Self> {
        crop.check()?;
        Ok(Self { crop: Some(crop), ..self })
    }

    /// Random shifts and flips of the resized image in training.
    #[must_use]
    pub fn augmented(self, augmentation: Augmentation) -> Self {
        Self { augmentation: Some(augmentation), ..self }
    }

    /// Another conversion of bytes to floats. At first it is [`Scaling::Unit`].
    ///
    /// # Errors
    /// A scaling for another number of channels, or numbers with which pixels cannot be computed.
    pub fn scaled(self, scaling: Scaling) -> Result<Self> {
        scaling.check(self.shape[0])?;
        Ok(Self { scaling, ..self })
    }

    /// Channels, height and width of the result.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The numbers of an image file with these bytes. `sample` is the number from which the random
    /// numbers of this pass follow.
    ///
    /// # Shapes
    /// (C, H, W), f32.
    ///
    /// # Errors
    /// Bytes that are no image.
    pub fn tensor(&self, encoded: &[u8], sample: usize, pass: &Pass) -> Result<Tensor> {
        let mut numbers = Vec::with_capacity(self.shape.iter().product());
        self.extend(&mut numbers, encoded, sample, pass)?;
        let [channels, height, width] = self.shape;
        Ok(Tensor::from_vec(numbers, (channels, height, width), &Device::Cpu)?)
    }

    /// Appends the numbers of an image file. After an error nothing is appended.
    pub(crate) fn extend(
        &self,
        to: &mut Vec<f32>,
        encoded: &[u8],
        sample: usize,
        pass: &Pass,
    ) -> Result<(), ImageError> {
        let image = DecodedImage::from_encoded(encoded, self.shape[0])?;
        let window = self.window([image.width, image.height], sample, pass);
        let mut pixels = self.pixels(&image, window);
        if let Some(augmentation) = self.augmentation.filter(|_| pass.training) {
            let mut augmented = vec![0; pixels.len()];
            let transform = augmentation.draw(pass.seed, pass.epoch, sample as u64);
            transform.apply(&pixels, self.shape, &mut augmented);
            pixels = augmented;
        }
        self.scaling.extend(to, &pixels);
        Ok(())
    }

    /// The part of an image of this width and height that becomes the result.
    fn window(&self, size: [u32; 2], sample: usize, pass: &Pass) -> Window {
        if let Some(crop) = self.crop.filter(|_| pass.training) {
            return crop.draw(pass.seed, pass.epoch, sample as u64, size);
        }
        let [_, height, width] = self.shape.map(|side| side as u64);
        let [image_width, image_height] = size.map(u64::from);
        let (w, h) = match self.resize {
            Resize::Stretch => (image_width, image_height),
            Resize::Cover if image_width * height > image_height * width => {
                (rounded(image_height * width, height), image_height)
            }
            Resize::Cover => (image_width, rounded(image_width * height, width)),
            Resize::Shorter(shorter) => {
                let side = image_width.min(image_height);
                (rounded(side * width, shorter as u64), rounded(side * height, shorter as u64))
            }
        };
        let (w, h) = (w.clamp(1, image_width) as u32, h.clamp(1, image_height) as u32);
        let (left, top) = ((size[0] - w) / 2, (size[1] - h) / 2);
        Window { left, top, width: w, height: h, flip: false }
    }

    /// The bytes of a window of an image in the result's size, (C, H, W).
    fn pixels(&self, image: &DecodedImage, window: Window) -> Vec<u8> {
        let [channels, height, width] = self.shape;
        let interleaved = image.resized(window, [width, height]);
        let mut planar = vec![0; interleaved.len()];
        for (place, pixel) in interleaved.chunks_exact(channels).enumerate() {
            let (y, x) = (place / width, place % width);
            let x = if window.flip { width - 1 - x } else { x };
            for (channel, &value) in pixel.iter().enumerate() {
                planar[(channel * height + y) * width + x] = value;
            }
        }
        planar
    }
}

/// `a / b`, rounded.
fn rounded(a: u64, b: u64) -> u64 {
    (2 * a + b) / (2 * b)
}
