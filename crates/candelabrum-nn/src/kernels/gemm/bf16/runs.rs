//! What a processor with tiles multiplies and sums in one go.

use std::marker::PhantomData;

use super::line::{LANES, Line};
use crate::kernels::mat_mut::MatMut;

/// Tiles to multiply and sum: `steps` tiles of the depth of two neighbouring rows of tiles of a left factor and of two
/// columns of tiles of a right one. Lines are read `left_step` apart from one step to the next in the left factor, and
/// follow each other in the right one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    left: [*const Line; 2],
    right: [*const Line; 2],
    lines: PhantomData<&'a Line>,
}

/// Runs of the same number of steps.
pub(super) struct Runs<'a, 'b> {
    pub(super) runs: &'b [Run<'a>],
    pub(super) size: RunSize,
}

/// The steps of a run, and the lines from one tile of a left factor to that of the next step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RunSize {
    pub(super) steps: usize,
    pub(super) left_step: usize,
}

impl<'a> Run<'a> {
    /// The tiles that begin the lines. Where there is one row or one column, it is given twice.
    pub(super) fn new(size: RunSize, left: [&'a [Line]; 2], right: [&'a [Line]; 2]) -> Self {
        let RunSize { steps, left_step } = size;
        assert!(
            steps > 0 && left.iter().all(|lines| lines.len() >= (steps - 1) * left_step + LANES)
        );
        assert!(right.iter().all(|lines| lines.len() >= steps * LANES), "a run ends too early");
        Self {
            left: left.map(<[Line]>::as_ptr),
            right: right.map(<[Line]>::as_ptr),
            lines: PhantomData,
        }
    }
}

/// Rows and columns of 2 × 2 tiles.
pub(super) const SIDE: usize = 2 * LANES;

/// Sums on their way to a result of which they are a part, or to which they are added.
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; SIDE]; SIDE]);

impl Sums {
    pub(super) fn new() -> Self {
        Self([[0.0; SIDE]; SIDE])
    }

    /// The place of so many rows and columns.
    pub(super) fn part(&mut self, [rows, columns]: [usize; 2]) -> MatMut<'_, f32> {
        MatMut::strided(self.0.as_flattened_mut(), rows, columns, SIDE)
    }
}
