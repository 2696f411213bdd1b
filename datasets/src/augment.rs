//! Random crops and flips of training images. Off by default.
//!
//! The method of He et al. (2015, arXiv:1512.03385, section 4.2): pad every side, take a random window of
//! the old size, mirror half of the images. torchvision's `RandomCrop` pads with zeros. SINGA's
//! `augmentation` mirrors the image at its edges, and changes every training image in this way, digits
//! included. The random numbers of a sample depend only on (seed, epoch, sample), so neither the number of
//! ranks nor the timing of threads can change them.

use std::fmt;

use crate::rng::{Purpose, below, rng};

/// The changes of training images.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Augmentation {
    /// The rows and columns that are added on every side of the image before a random window of the image's
    /// size is taken. With 0 the image is not moved.
    pub crop_padding: usize,
    /// What is added, and which windows may come.
    pub crop: Crop,
    /// Whether to mirror half of the images left to right.
    pub horizontal_flip: bool,
}

/// A way to crop an image at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Crop {
    /// torchvision's `RandomCrop(size, padding)`: zeros around the image. The window begins in any row and
    /// column from 0 to twice the padding, both included.
    #[default]
    RandomCrop,
    /// SINGA's: the image continues as its mirror image, the row at its edge first (`np.pad` with
    /// `'symmetric'`). The window begins in a row and a column from 0 to twice the padding, without the
    /// latter (`np.random.randint(8)` for a padding of 4), so no image moves by 4 to the left or upwards.
    Singa,
}

impl Augmentation {
    /// torchvision's `RandomCrop` with padding 4, and flips, as usual for CIFAR.
    ///
    /// Mirrored digits are not digits, so [`crop_only`](Self::crop_only) is better for MNIST.
    pub const fn crop_and_flip() -> Self {
        Self { crop_padding: 4, crop: Crop::RandomCrop, horizontal_flip: true }
    }

    /// torchvision's `RandomCrop` with padding 4, and no flips.
    pub const fn crop_only() -> Self {
        Self { horizontal_flip: false, ..Self::crop_and_flip() }
    }

    /// The `augmentation` of SINGA's CNN example: mirrored padding by 4, windows that begin in rows and
    /// columns 0 to 7, and flips.
    pub const fn singa() -> Self {
        Self { crop: Crop::Singa, ..Self::crop_and_flip() }
    }

    /// Draws the transform of one sample in one epoch. `index` is the index in the whole dataset.
    pub(crate) fn draw(self, seed: u64, epoch: u64, index: u64) -> Transform {
        let mut rng = rng(seed, Purpose::Augment, epoch, index);
        let (both_sides, is_mirrored) =
            (self.crop_padding.saturating_mul(2), self.crop == Crop::Singa);
        let offsets = match self.crop {
            Crop::RandomCrop => both_sides.saturating_add(1),
            Crop::Singa => both_sides.max(1),
        };
        let offsets = u32::try_from(offsets).unwrap_or(u32::MAX);
        // Always three draws: switching one effect off does not change the others.
        let down = below(&mut rng, offsets) as isize;
        let right = below(&mut rng, offsets) as isize;
        let flip = below(&mut rng, 2) == 1;
        let padding = self.crop_padding as isize;
        let flip = flip && self.horizontal_flip;
        Transform { down: down - padding, right: right - padding, is_mirrored, flip }
    }
}

impl fmt::Debug for Augmentation {
    /// The text is a part of fingerprints, which a checkpoint keeps. That of zeros has never changed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Augmentation");
        text.field("crop_padding", &self.crop_padding);
        if self.crop != Crop::RandomCrop {
            text.field("crop", &self.crop);
        }
        text.field("horizontal_flip", &self.horizontal_flip).finish()
    }
}

/// The offset of the window from the image, from `-crop_padding` to `crop_padding`, what is outside the
/// image, and whether to mirror the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transform {
    down: isize,
    right: isize,
    /// Whether the image continues as its mirror image, and not as zeros.
    is_mirrored: bool,
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
                let from_row =
                    self.source(y, self.down, height).map(|y| &from[y * width..(y + 1) * width]);
                self.apply_row(from_row, to_row);
            }
        }
    }

    fn apply_row(self, from: Option<&[u8]>, to: &mut [u8]) {
        to.fill(0);
        let Some(from) = from else { return };
        let width = to.len();
        // The part of the window in which the image itself is seen.
        let shift = self.right.unsigned_abs().min(width);
        let kept = width - shift;
        let outside = if self.right >= 0 {
            to[..kept].copy_from_slice(&from[shift..]);
            kept..width
        } else {
            to[shift..].copy_from_slice(&from[..kept]);
            0..shift
        };
        for x in outside {
            to[x] = self.source(x, self.right, width).map_or(0, |x| from[x]);
        }
        if self.flip {
            to.reverse();
        }
    }

    /// The row or column of the image that is seen at this place of a window with this offset, if one is.
    fn source(self, place: usize, offset: isize, len: usize) -> Option<usize> {
        let inside = place.checked_add_signed(offset).filter(|&place| place < len);
        if inside.is_some() || !self.is_mirrored {
            return inside;
        }
        // The image and its mirror image take turns.
        let place = (place as isize + offset).rem_euclid(2 * len as isize) as usize;
        Some(if place < len { place } else { 2 * len - 1 - place })
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
            let Transform { down, right, flip, .. } =
                Augmentation::crop_and_flip().draw(0, 0, index);
            seen[(down + 4) as usize][(right + 4) as usize] += 1;
            flips += usize::from(flip);
        }
        assert!(seen.as_flattened().iter().all(|count| (50..160).contains(count)), "{seen:?}");
        assert!((3_800..4_300).contains(&flips), "{flips}");
    }

    #[test]
    fn a_flip_is_an_involution() {
        let image: Vec<u8> = (0..24).collect();
        let flip = Transform { down: 0, right: 0, is_mirrored: false, flip: true };
        let once = apply(flip, &image, [2, 3, 4]);
        assert_eq!(once[..4], [3, 2, 1, 0]);
        assert_eq!(apply(flip, &once, [2, 3, 4]), image);
    }

    #[test]
    fn a_crop_moves_the_window_over_zeros() {
        let image = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let check = |down, right, expected: [u8; 9]| {
            let transform = Transform { down, right, is_mirrored: false, flip: false };
            assert_eq!(apply(transform, &image, [1, 3, 3]), expected);
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
    /// numpy's `np.pad(image, 4, 'symmetric')`, by its definition: a row at a time, then a column.
    fn padded(image: &[Vec<u8>]) -> Vec<Vec<u8>> {
        fn pad<T: Clone>(items: &[T]) -> Vec<T> {
            let mut all: Vec<T> = items.to_vec();
            // Each item outside is the one that lies as far inside, seen from the edge.
            while all.len() < items.len() + 4 {
                let place = all.len() - items.len();
                all.push(all[items.len() - 1 - place].clone());
            }
            let mut before: Vec<T> = items[..4].to_vec();
            before.reverse();
            before.extend(all);
            before
        }
        let rows: Vec<Vec<u8>> = image.iter().map(|row| pad(row)).collect();
        pad(&rows)
    }

    #[test]
    fn singas_window_is_one_of_the_symmetrically_padded_image() {
        let image: Vec<Vec<u8>> = (0..5).map(|y| (0..6).map(|x| 10 * y + x).collect()).collect();
        let wide = padded(&image);
        // The first rows of `np.pad(image, 4, 'symmetric')`.
        assert_eq!(wide[0], [33, 32, 31, 30, 30, 31, 32, 33, 34, 35, 35, 34, 33, 32]);
        assert_eq!(wide[3], [3, 2, 1, 0, 0, 1, 2, 3, 4, 5, 5, 4, 3, 2]);
        assert_eq!(wide[12], [13, 12, 11, 10, 10, 11, 12, 13, 14, 15, 15, 14, 13, 12]);
        let planes = [image.concat(), image.concat()].concat();
        for (down, right, flip) in
            (0..8).flat_map(|d| (0..8).map(move |r| (d, r, (d + r) % 3 == 0)))
        {
            let mut window: Vec<Vec<u8>> =
                wide[down..down + 5].iter().map(|row| row[right..right + 6].to_vec()).collect();
            if flip {
                window.iter_mut().for_each(|row| row.reverse());
            }
            let [down, right] = [down, right].map(|offset| offset as isize - 4);
            let found =
                apply(Transform { down, right, is_mirrored: true, flip }, &planes, [2, 5, 6]);
            assert_eq!(found, [window.concat(), window.concat()].concat(), "{down}, {right}");
        }
    }

    #[test]
    fn singas_windows_begin_at_0_to_7() {
        let mut seen = [[0; 8]; 8];
        for index in 0..6_400 {
            let Transform { down, right, is_mirrored, .. } =
                Augmentation::singa().draw(0, 0, index);
            assert!(is_mirrored);
            seen[(down + 4) as usize][(right + 4) as usize] += 1;
        }
        assert!(seen.as_flattened().iter().all(|count| (50..160).contains(count)), "{seen:?}");
    }

    #[test]
    fn an_image_smaller_than_its_padding_is_mirrored_again() {
        // np.pad([1, 2], 4, 'symmetric') is 1, 2, 2, 1, 1, 2, 2, 1, 1, 2.
        for (right, expected) in
            [(-4, [1, 2]), (-3, [2, 2]), (-1, [1, 1]), (2, [2, 1]), (3, [1, 1])]
        {
            let transform = Transform { down: 0, right, is_mirrored: true, flip: false };
            assert_eq!(apply(transform, &[1, 2], [1, 1, 2]), expected, "{right}");
        }
        let none = Augmentation { crop_padding: 0, ..Augmentation::singa() };
        assert_eq!((none.draw(0, 0, 0).down, none.draw(0, 0, 0).right), (0, 0));
    }

    #[test]
    fn the_text_of_a_fingerprint_tells_the_ways_apart_and_is_the_old_one_for_zeros() {
        let text = |augmentation: Augmentation| format!("{augmentation:?}");
        assert_eq!(
            text(Augmentation::crop_only()),
            "Augmentation { crop_padding: 4, horizontal_flip: false }"
        );
        assert_eq!(
            text(Augmentation::singa()),
            "Augmentation { crop_padding: 4, crop: Singa, horizontal_flip: true }"
        );
    }
}
