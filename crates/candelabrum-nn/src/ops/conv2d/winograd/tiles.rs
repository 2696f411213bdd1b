//! The tiles of 2 × 2 output pixels into which images are divided.

use std::ops::Range;

/// The number of points of a transformed tile.
pub(super) const POINTS: usize = 16;

/// The points of a kernel that is turned by 180°, as numbers of the kernel's own points.
const TURNED: [usize; POINTS] = {
    const LINE: [usize; 4] = [3, 1, 2, 0];
    let mut points = [0; POINTS];
    let mut i = 0;
    while i < POINTS {
        points[i] = 4 * LINE[i / 4] + LINE[i % 4];
        i += 1;
    }
    points
};

/// The number of the point of a kernel that is multiplied by a point of the tiles.
pub(super) fn point_of(point: usize, turned: bool) -> usize {
    if turned { TURNED[point] } else { point }
}

/// A 3 × 3 convolution with stride 1, from `in_channels` to `out_channels`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WinogradProblem {
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    /// Height and width.
    pub(super) in_size: (usize, usize),
    pub(super) out_size: (usize, usize),
    pub(super) padding: (usize, usize),
}

/// Neighbouring tiles of one row of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileSpan {
    pub(super) image: usize,
    /// The row of tiles, and the first tile in it.
    pub(super) row: usize,
    pub(super) first: usize,
    pub(super) len: usize,
}

impl WinogradProblem {
    /// The convolution that computes the gradient of the input from that of the result.
    pub(super) fn backward(self) -> Self {
        Self {
            in_channels: self.out_channels,
            out_channels: self.in_channels,
            in_size: self.out_size,
            out_size: self.in_size,
            padding: (2 - self.padding.0, 2 - self.padding.1),
        }
    }

    /// The rows of tiles of an image, and the tiles in a row. Tiles at the end may reach over the image.
    pub(super) fn tiles(&self) -> (usize, usize) {
        (self.out_size.0.div_ceil(2), self.out_size.1.div_ceil(2))
    }

    pub(super) fn tiles_per_image(&self) -> usize {
        let (rows, columns) = self.tiles();
        rows * columns
    }

    pub(super) fn in_pixels(&self) -> usize {
        self.in_size.0 * self.in_size.1
    }

    pub(super) fn out_pixels(&self) -> usize {
        self.out_size.0 * self.out_size.1
    }

    /// The tiles with these numbers. All tiles of all images are numbered, image by image and row by
    /// row.
    pub(super) fn runs(&self, numbers: Range<usize>) -> impl Iterator<Item = TileSpan> + use<> {
        let (rows, columns) = self.tiles();
        let mut next = numbers.start;
        std::iter::from_fn(move || {
            let (row, first) = (next / columns, next % columns);
            let len = (columns - first).min(numbers.end.checked_sub(next)?);
            next += len;
            (len > 0).then_some(TileSpan { image: row / rows, row: row % rows, first, len })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_with_their_row_and_with_the_range() {
        let problem = WinogradProblem {
            in_channels: 1,
            out_channels: 1,
            in_size: (3, 5),
            out_size: (3, 5),
            padding: (1, 1),
        };
        assert_eq!(problem.tiles(), (2, 3));
        let run = |image, row, first, len| TileSpan { image, row, first, len };
        let runs: Vec<TileSpan> = problem.runs(2..10).collect();
        assert_eq!(runs, [run(0, 0, 2, 1), run(0, 1, 0, 3), run(1, 0, 0, 3), run(1, 1, 0, 1)]);
        assert_eq!(problem.runs(4..4).count(), 0);
    }
}
