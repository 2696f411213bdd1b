//! The generated digits in color, in the middle of larger images.
//!
//! A digit has one of ten inks, a little different in each image, on dark paper of a random color. Only
//! integers are computed with, so the images are the same everywhere.

use crate::{
    error::Result,
    image_dataset::ImageDataset,
    rng::{Purpose, below, rng},
};

/// The inks: red, green and blue.
const INKS: [[i32; 3]; 10] = [
    [235, 60, 60],
    [240, 150, 40],
    [240, 230, 70],
    [70, 205, 70],
    [40, 200, 200],
    [80, 120, 245],
    [150, 80, 230],
    [245, 110, 200],
    [235, 235, 235],
    [150, 110, 70],
];

/// By how much a channel of an ink differs from image to image.
const INK_RANGE: u32 = 31;

/// The brightest paper.
const PAPER: u32 = 70;

/// Gray digits in color. `part` tells the training set from the test set. If the colors are classes, the
/// class of a digit d in ink i is 10 d + i.
///
/// # Shapes
/// (N, 1, H, W) -> (N, 3, S, S) with S = `side`, which is at least H and W
pub(crate) fn colored(
    digits: &ImageDataset,
    seed: u64,
    part: u64,
    side: usize,
    has_color_classes: bool,
) -> Result<ImageDataset> {
    let [_, height, width] = digits.image_shape();
    let (top, left) = ((side - height) / 2, (side - width) / 2);
    let (mut pixels, mut labels) = (Vec::new(), Vec::with_capacity(digits.len()));
    for (index, (gray, digit)) in (0..digits.len()).filter_map(|i| Some((i, digits.get(i)?))) {
        let mut rng = rng(seed, Purpose::SyntheticColors, part, index as u64);
        let color = below(&mut rng, INKS.len() as u32);
        for ink in INKS[color as usize] {
            let ink = ink + below(&mut rng, INK_RANGE) as i32 - (INK_RANGE / 2) as i32;
            let paper = below(&mut rng, PAPER) as i32;
            let start = pixels.len();
            pixels.resize(start + side * side, paper as u8);
            for (y, row) in gray.chunks_exact(width).enumerate() {
                let first = start + (top + y) * side + left;
                for (pixel, &shade) in pixels[first..first + width].iter_mut().zip(row) {
                    *pixel = (paper + (ink - paper) * i32::from(shade) / 255).clamp(0, 255) as u8;
                }
            }
        }
        labels.push(if has_color_classes { 10 * digit + color } else { digit });
    }
    let classes = if has_color_classes { 10 * digits.classes() } else { digits.classes() };
    ImageDataset::new(pixels, labels, [3, side, side], classes)
}
