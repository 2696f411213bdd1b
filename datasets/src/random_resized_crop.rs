//! The random crop of Inception's training (Szegedy et al. 2015, arXiv:1409.4842, section 6): a window
//! of a random share of the image's area, with a random ratio of its sides, resized to the model's size.
//!
//! The draws follow torchvision's `RandomResizedCrop`. They depend on (seed, epoch, sample) and on the
//! image's size alone.

use crate::{
    error::{Error, Result},
    rng::{Purpose, below, rng, uniform},
};

/// Draws of a window before the largest possible one in the center is taken.
const ATTEMPTS: usize = 10;

/// A random window of an image, mirrored or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomResizedCrop {
    /// The range of the window's share of the image's area.
    pub scale: [f64; 2],
    /// The range of the window's ratio of width to height. Its logarithm is uniform.
    pub ratio: [f64; 2],
    /// Whether to mirror half of the windows left to right.
    pub horizontal_flip: bool,
}

/// A window of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: u32,
    pub(crate) top: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) flip: bool,
}

impl RandomResizedCrop {
    /// From 8% of the area, ratios from 3:4 to 4:3, and flips, as for Inception and ResNet.
    pub const fn inception() -> Self {
        Self { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], horizontal_flip: true }
    }

    /// Refuses ranges from which no window can be drawn.
    pub(crate) fn check(self) -> Result<()> {
        let Self { scale, ratio, .. } = self;
        let is_range = |[from, to]: [f64; 2]| from > 0.0 && from <= to && to.is_finite();
        if is_range(scale) && scale[1] <= 1.0 && is_range(ratio) {
            return Ok(());
        }
        Err(Error::argument(format!(
            "a crop with scales {scale:?} and ratios {ratio:?}: both need 0 < from <= to, and \
             scales at most 1"
        )))
    }

    /// Draws the window of one sample in one epoch. Both sides of the image are at least 1.
    pub(crate) fn draw(self, seed: u64, epoch: u64, sample: u64, size: [u32; 2]) -> Window {
        let mut rng = rng(seed, Purpose::RandomResizedCrop, epoch, sample);
        let flip = below(&mut rng, 2) == 1 && self.horizontal_flip;
        let [width, height] = size;
        let area = f64::from(width) * f64::from(height);
        // libm's logarithms are the same on every platform.
        let [low, high] = self.ratio.map(libm::log);
        for _ in 0..ATTEMPTS {
            let share = between(self.scale, uniform(&mut rng, 0.0, 1.0));
            let ratio = libm::exp(between([low, high], uniform(&mut rng, 0.0, 1.0)));
            let w = (area * share * ratio).sqrt().round() as u32;
            let h = (area * share / ratio).sqrt().round() as u32;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let top = below(&mut rng, height - h + 1);
                let left = below(&mut rng, width - w + 1);
                return Window { left, top, width: w, height: h, flip };
            }
        }
        let ratio = (f64::from(width) / f64::from(height)).clamp(self.ratio[0], self.ratio[1]);
        let w = ((f64::from(height) * ratio).round() as u32).clamp(1, width);
        let h = ((f64::from(width) / ratio).round() as u32).clamp(1, height);
        Window { left: (width - w) / 2, top: (height - h) / 2, width: w, height: h, flip }
    }
}

fn between([from, to]: [f64; 2], share: f32) -> f64 {
    from + (to - from) * f64::from(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_lie_in_the_image_and_have_the_areas_and_ratios_of_the_ranges() {
        let crop = RandomResizedCrop::inception();
        let mut flips = 0;
        let mut shares = [0; 10];
        for sample in 0..5000 {
            let Window { left, top, width, height, flip } = crop.draw(1, 2, sample, [500, 375]);
            assert!(left + width <= 500 && top + height <= 375);
            let ratio = f64::from(width) / f64::from(height);
            assert!((0.74..1.35).contains(&ratio), "{ratio}");
            let share = f64::from(width * height) / (500.0 * 375.0);
            assert!((0.078..=1.0).contains(&share), "{share}");
            shares[(share * 10.0).min(9.0) as usize] += 1;
            flips += usize::from(flip);
        }
        assert!((2300..2700).contains(&flips), "{flips}");
        // Large windows fit less often.
        assert!(shares[1..6].iter().all(|count| (600..850).contains(count)), "{shares:?}");
    }

    #[test]
    fn what_is_drawn_follows_from_seed_epoch_and_sample_and_never_changes() {
        let crop = RandomResizedCrop::inception();
        let draw = |seed, epoch, sample| crop.draw(seed, epoch, sample, [640, 480]);
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        assert!(![draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)].contains(&draw(1, 2, 3)));
        let first = Window { left: 1, top: 4, width: 629, height: 476, flip: false };
        let second = Window { left: 70, top: 102, width: 344, height: 343, flip: true };
        assert_eq!([draw(0, 0, 0), draw(0, 0, 1)], [first, second]);
        let plain = RandomResizedCrop { horizontal_flip: false, ..crop };
        let plain = plain.draw(0, 0, 1, [640, 480]);
        assert_eq!(
            plain,
            Window { flip: false, ..second },
            "without flips the crops do not change"
        );
    }

    #[test]
    fn images_of_any_size_have_a_window() {
        let crop = RandomResizedCrop::inception();
        for size in [[1, 1], [1, 1000], [1000, 1], [2, 3], [65_000, 65_000]] {
            for sample in 0..50 {
                let Window { left, top, width, height, .. } = crop.draw(0, 0, sample, size);
                assert!(width >= 1 && height >= 1);
                assert!(left + width <= size[0] && top + height <= size[1]);
            }
        }
        // The window of last resort has the largest possible area, and lies in the center.
        let Window { left, top, width, height, .. } = crop.draw(0, 0, 0, [1000, 10]);
        assert_eq!((left, top, width, height), (493, 0, 13, 10));
    }

    #[test]
    fn ranges_without_windows_are_refused() {
        let crop = RandomResizedCrop::inception();
        crop.check().unwrap();
        for scale in [[0.0, 1.0], [0.5, 0.4], [0.5, 1.1], [f64::NAN, 1.0]] {
            assert!(RandomResizedCrop { scale, ..crop }.check().is_err(), "{scale:?}");
        }
        for ratio in [[-1.0, 1.0], [2.0, 1.0], [1.0, f64::INFINITY]] {
            assert!(RandomResizedCrop { ratio, ..crop }.check().is_err(), "{ratio:?}");
        }
    }
}
