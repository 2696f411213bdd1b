//! Random crops and flips of training images. Off by default.
//!
//! The method of He et al. (2015, arXiv:1512.03385, section 4.2): pad every side with zeros, take a
//! random window of the old size, mirror half of the images. SINGA's `augmentation` does this with
//! every training image, digits included. The random numbers of a sample depend only on (seed,
//! epoch, sample), so neither the number of ranks nor the timing of threads can change them.

use crate::rng::{Purpose, below, rng};

/// The changes of training images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Augmentation {
    /// Rows and columns of zeros around the image, from which a random window of the image's size
    /// is taken. With 0 the image is not moved.
    pub crop_padding: usize,
    /// Whether to mirror half of the images left to right.
    pub horizontal_flip: bool,
}

impl Augmentation {
    /// Padding 4 and flips, as in SINGA's CNN example.
    ///
    /// Mirrored digits are not digits, so [`crop_only`](Self::crop_only) is better for MNIST.
    pub const fn crop_and_flip() -> Self {
        Self { crop_padding: 4, horizontal_flip: true }
    }

    /// Padding 4 and no flips.
    pub const fn crop_only() -> Self {
        Self { crop_padding: 4, horizontal_flip: false }
    }

    /// Draws the transform of one sample in one epoch. `index` is the index in the whole dataset.
    pub(crate) fn draw(self, seed: u64, epoch: u64, index: u64) -> Transform {
        let mut rng = rng(seed, Purpose::Augment, epoch, index);
        // Always three draws: switching one effect off does not change the others.
        let offsets = u32::try_from(self.crop_padding.saturating_mul(2).saturating_add(1))
            .unwrap_or(u32::MAX);
        let down = below(&mut rng, offsets) as isize;
        let right = below(&mut rng, offsets) as isize;
        let flip = below(&mut rng, 2) == 1;
        let padding = self.crop_padding as isize;
        let flip = flip && self.horizontal_flip;
        Transform { down: down - padding, right: right - padding, flip }
    }
}

/// The offset of the window from the image, from `-crop_padding` to `crop_padding`, and whether to
/// mirror the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transform {
    down: isize,
    right: isize,
    flip: bool,
}

impl Transform {
    /// Writes the transformed image into `to`.
    ///
    /// # Shapes
    /// `from` and `to` are (C, H, W) with `shape` = \[C, H, W\].
    pub(crate) fn apply(self, from: &[u8], shape: [usize; 3], to: &mut [u8]) {
        let [_, height, width] = shape;
        let planes = from.chunks_exact(height * width).zip(to.chunks_exact_mut(height * width));
        for (from, to) in planes {
            for (y, to_row) in to.chunks_exact_mut(width).enumerate() {
                let from_row = y
                    .checked_add_signed(self.down)
                    .filter(|&y| y < height)
                    .map(|y| &from[y * width..(y + 1) * width]);
                self.apply_row(from_row, to_row);
            }
        }
    }

    fn apply_row(self, from: Option<&[u8]>, to: &mut [u8]) {
        to.fill(0);
        let Some(from) = from else { return };
        let shift = self.right.unsigned_abs();
        if shift < from.len() {
            let kept = from.len() - shift;
            if self.right >= 0 {
                to[..kept].copy_from_slice(&from[shift..]);
            } else {
                to[shift..].copy_from_slice(&from[..kept]);
            }
        }
        if self.flip {
            to.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(transform: Transform, from: &[u8], shape: [usize; 3]) -> Vec<u8> {
        let mut to = vec![99; from.len()];
        transform.apply(from, shape, &mut to);
        to
    }

    #[test]
    fn every_crop_offset_comes_and_none_outside_the_padding() {
        let mut seen = [[0; 9]; 9];
        let mut flips = 0;
        for index in 0..8_100 {
            let Transform { down, right, flip } = Augmentation::crop_and_flip().draw(0, 0, index);
            seen[(down + 4) as usize][(right + 4) as usize] += 1;
            flips += usize::from(flip);
        }
        assert!(seen.as_flattened().iter().all(|count| (50..160).contains(count)), "{seen:?}");
        assert!((3_800..4_300).contains(&flips), "{flips}");
    }

    #[test]
    fn a_flip_is_an_involution() {
        let image: Vec<u8> = (0..24).collect();
        let flip = Transform { down: 0, right: 0, flip: true };
        let once = apply(flip, &image, [2, 3, 4]);
        assert_eq!(once[..4], [3, 2, 1, 0]);
        assert_eq!(apply(flip, &once, [2, 3, 4]), image);
    }

    #[test]
    fn a_crop_moves_the_window_over_zeros() {
        let image = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let check = |down, right, expected: [u8; 9]| {
            assert_eq!(apply(Transform { down, right, flip: false }, &image, [1, 3, 3]), expected);
        };
        check(0, 0, image);
        check(1, 0, [4, 5, 6, 7, 8, 9, 0, 0, 0]);
        check(-1, 1, [0, 0, 0, 2, 3, 0, 5, 6, 0]);
        check(0, -2, [0, 0, 1, 0, 0, 4, 0, 0, 7]);
        check(4, 0, [0; 9]);
        check(0, -4, [0; 9]);
    }

    #[test]
    fn what_is_drawn_follows_from_seed_epoch_and_index_alone() {
        let draw = |seed, epoch, index| Augmentation::crop_and_flip().draw(seed, epoch, index);
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        let differs = |other: fn(u64) -> (u64, u64, u64)| {
            (0..50).any(|i| {
                let (seed, epoch, index) = other(i);
                draw(seed, epoch, index) != draw(0, 0, i)
            })
        };
        assert!(differs(|i| (1, 0, i)));
        assert!(differs(|i| (0, 1, i)));
        assert!(differs(|i| (0, 0, i + 50)));
        // Without flips the crops do not change.
        let crop = Augmentation::crop_only().draw(1, 2, 3);
        assert_eq!(crop, Transform { flip: false, ..draw(1, 2, 3) });
    }
}
