//! What a processor with tiles multiplies and sums in one go.

use std::marker::PhantomData;

use super::line::{LANES, PairLine};
use crate::kernels::mat_mut::MatMut;

/// Tiles to multiply and sum: of two neighbouring rows of tiles of a left factor, and of two columns of tiles of a right
/// one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TileRun<'a> {
    left: [*const PairLine; 2],
    right: [*const PairLine; 2],
    lines: PhantomData<&'a PairLine>,
}

/// The runs of one product, with the same number of tiles along the depth.
///
/// **Invariant** Each pointer of a run leads to the lines of so many tiles.
pub(super) struct TileRuns<'a> {
    runs: Vec<TileRun<'a>>,
    steps: usize,
    left_step: usize,
}

impl<'a> TileRuns<'a> {
    /// No runs, of `steps` tiles each. From one tile to the next it is `left_step` lines in a left factor. In a right one
    /// they follow each other.
    pub(super) fn new(steps: usize, left_step: usize) -> Self {
        assert!(steps > 0, "runs without tiles");
        Self { runs: Vec::new(), steps, left_step }
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Adds the tiles that begin the lines. Where there is one row or one column, it is given twice.
    pub(super) fn push(&mut self, left: [&'a [PairLine]; 2], right: [&'a [PairLine]; 2]) {
        let (left_len, right_len) = ((self.steps - 1) * self.left_step + LANES, self.steps * LANES);
        assert!(left.iter().all(|lines| lines.len() >= left_len), "a left factor ends too early");
        assert!(
            right.iter().all(|lines| lines.len() >= right_len),
            "a right factor ends too early"
        );
        let (left, right) = (left.map(<[PairLine]>::as_ptr), right.map(<[PairLine]>::as_ptr));
        self.runs.push(TileRun { left, right, lines: PhantomData });
    }

    pub(super) fn runs(&self) -> &[TileRun<'a>] {
        &self.runs
    }

    /// The tiles of a run.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// The lines from one tile of a left factor to the next.
    pub(super) fn left_step(&self) -> usize {
        self.left_step
    }
}

/// Rows and columns of 2 × 2 tiles.
pub(super) const SIDE: usize = 2 * LANES;

/// Sums on their way to a result of which they are a part, or to which they are added.
#[repr(C, align(64))]
pub(super) struct PartialSums(pub(super) [[f32; SIDE]; SIDE]);

impl PartialSums {
    pub(super) fn new() -> Self {
        Self([[0.0; SIDE]; SIDE])
    }

    /// The place of so many rows and columns.
    pub(super) fn part(&mut self, [rows, columns]: [usize; 2]) -> MatMut<'_, f32> {
        MatMut::strided(self.0.as_flattened_mut(), rows, columns, SIDE)
    }
}
