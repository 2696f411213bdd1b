//! Images in bf16 whose pixels lie one after the other, and the products of a window over them.
//!
//! For each 32 channels there is a line for each pixel. 16 neighbouring pixels are a tile from every pixel on, so the
//! products of a convolution read the pixels where they are, and none is packed twice.

use super::line::{LANES, LineForm, PackedPlace, PairLine};
use super::line_memory::LineMemory;
use super::operand::{Operand, OperandLines, Starts};
use super::packed::PackedFactor;
use super::runs::{PartialSums, SIDE, TileRuns};
use super::x86::Amx;
use crate::kernels::mat_mut::MatMut;

/// The channels of a line.
pub(crate) const CHANNELS: usize = 2 * LANES;

/// Images in bf16.
pub(crate) struct Pixels {
    amx: Amx,
    memory: LineMemory,
    channels: usize,
    /// The lines of 32 channels: the pixels, and those that a tile of the last pixel reads.
    lines: usize,
}

impl Pixels {
    /// Space for so many pixels, with unspecified numbers.
    pub(crate) fn new(amx: Amx, channels: usize, pixels: usize) -> Self {
        let lines = pixels + SIDE;
        let memory = LineMemory::new(channels.div_ceil(CHANNELS) * lines);
        Self { amx, memory, channels, lines }
    }

    /// Packs channels from number `first` on, which is a multiple of 32, from pixel `to` on. The channels are `step`
    /// elements apart. Up to 15 pixels behind them become 0, so pixels are packed in their order.
    pub(crate) fn pack(
        &mut self,
        (channels, step): (&[f32], usize),
        pixels: usize,
        (first, to): (usize, usize),
    ) {
        let count = (self.channels - first).min(CHANNELS);
        let from = Operand::Across(OperandLines { data: channels, starts: Starts::Every(step) });
        let start = first / CHANNELS * self.lines + to;
        let place = PackedPlace { group: LANES, tile: self.lines, pair: 0 };
        let lines = &mut self.memory.lines_mut()[start..];
        self.amx.vectors.pack((from, LineForm::Width), 0..pixels, 0..count, lines, place);
    }

    /// The lines of the first channels from a pixel on, and those of the others.
    fn from(&self, pixel: usize) -> &[PairLine] {
        &self.memory.lines()[pixel..]
    }
}

/// A place of a window: how many pixels it is further on, and its weights (channels × columns).
pub(crate) struct WindowTap {
    pub(crate) offset: usize,
    pub(crate) weight: PackedFactor,
}

/// Writes the sums over a window, for pixels from number `first` on. `out` has a row for each of up to 32 columns of the
/// weights, from column `column` on, which is a multiple of 16, and a column for each pixel.
pub(crate) fn window_product(
    pixels: &Pixels,
    first: usize,
    taps: &[WindowTap],
    column: usize,
    mut out: MatMut<'_, f32>,
) {
    let (tiles, vectors) = (pixels.amx.tiles(), pixels.amx.vectors);
    let mut runs = TileRuns::new(pixels.channels.div_ceil(CHANNELS), pixels.lines);
    let group = column / LANES;
    let two = [true, out.rows() > LANES];
    let columns = if two[1] { SIDE } else { LANES };
    let mut sums = PartialSums::new();
    for start in (0..out.cols()).step_by(SIDE) {
        runs.clear();
        for WindowTap { offset, weight } in taps {
            let at = first + start + offset;
            let left = [pixels.from(at), pixels.from(at + LANES)];
            let lines = 0..weight.pairs().next_multiple_of(LANES);
            let right = weight.group(group, lines.clone());
            let next = weight.group(group + usize::from(two[1]), lines);
            runs.push(left, [right, next]);
        }
        tiles.multiply(two, &runs, sums.part([SIDE, columns]));
        let (rows, end) = (out.rows(), out.cols().min(start + SIDE));
        vectors.store_turned(&sums.0, out.part(0..rows, start..end));
    }
}

/// The factors of the gradient of the weights of a window: `left` has gradients of results and `right` the images, both
/// over pixels: `right` from the first pixel on, and where a tap has an odd offset once more, from the second pixel on.
/// `images` has the first pixel of each image in both, all even, and `pixels` is their number in an image, a multiple of
/// 32.
pub(crate) struct WindowGradient<'a> {
    pub(crate) amx: Amx,
    pub(crate) left: &'a PackedFactor,
    pub(crate) right: &'a [PackedFactor],
    pub(crate) images: &'a [[usize; 2]],
    pub(crate) pixels: usize,
}

/// Pixels whose products are summed for all taps before the next ones are read.
const PIXELS: usize = 512;

impl WindowGradient<'_> {
    /// Writes the sums for each offset of a tap, for 32 rows from `row` and 32 columns from `column` on, both multiples
    /// of 16.
    pub(crate) fn sums(&self, row: usize, column: usize, offsets: &[usize], sums: &mut [f32]) {
        let Self { amx, left, right, images, pixels } = self;
        let (tiles, vectors) = (amx.tiles(), amx.vectors);
        let last = |groups: usize| groups.saturating_sub(1);
        let rows = [row / LANES, (row / LANES + 1).min(last(left.width().div_ceil(LANES)))];
        let columns = right[0].width().div_ceil(LANES);
        let columns = [column / LANES, (column / LANES + 1).min(last(columns))];
        let mut tile = PartialSums::new();
        for first in (0..*pixels).step_by(PIXELS) {
            let steps = PIXELS.min(pixels - first) / CHANNELS;
            let mut runs = TileRuns::new(steps, LANES);
            for (&offset, sums) in offsets.iter().zip(sums.chunks_exact_mut(SIDE * SIDE)) {
                runs.clear();
                let right = &right[offset % 2];
                for &[a, b] in *images {
                    let (a, b) = ((a + first) / 2, (b + first + offset) / 2);
                    let lines = |start: usize| start..start + steps * LANES;
                    let left = rows.map(|group| left.group(group, lines(a)));
                    let right = columns.map(|group| right.group(group, lines(b)));
                    runs.push(left, right);
                }
                tiles.multiply([true, true], &runs, tile.part([SIDE, SIDE]));
                let out = MatMut::new(sums, SIDE, SIDE);
                vectors.store(&tile.0, out, first > 0);
            }
        }
    }
}
