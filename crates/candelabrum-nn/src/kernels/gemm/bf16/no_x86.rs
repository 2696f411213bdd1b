//! Other processors than those of x86-64 have no instructions for bf16 that are used here.

use std::ops::Range;

use super::line::{HALF, Line, LineForm, Place};
use super::operand::Operand;
use super::runs::{SIDE, TileRuns};
use crate::kernels::mat_mut::MatMut;

/// Has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Avx512 {}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        None
    }

    pub(super) fn is_fast(self) -> bool {
        match self {}
    }

    pub(super) fn pack(
        self,
        _: (Operand<'_, f32>, LineForm),
        _: Range<usize>,
        _: Range<usize>,
        _: &mut [Line],
        _: Place,
    ) {
        match self {}
    }

    pub(super) fn tile<const VECTORS: usize>(
        self,
        _: &[[f32; HALF]],
        _: [&[Line]; VECTORS],
        _: MatMut<'_, f32>,
        _: bool,
    ) {
        match self {}
    }

    pub(super) fn store(self, _: &[[f32; SIDE]; SIDE], _: MatMut<'_, f32>, _: bool) {
        match self {}
    }

    pub(super) fn store_turned(self, _: &[[f32; SIDE]; SIDE], _: MatMut<'_, f32>) {
        match self {}
    }

    pub(super) fn prefetch(self, _: &mut MatMut<'_, f32>) {
        match self {}
    }
}

/// Has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amx {
    pub(super) vectors: Avx512,
}

impl Amx {
    pub(super) fn detect() -> Option<Self> {
        None
    }

    pub(super) fn tiles(self) -> TileRegisters {
        match self.vectors {}
    }
}

/// Has no values.
pub(super) struct TileRegisters(Avx512);

impl TileRegisters {
    pub(super) fn multiply(&self, _: [bool; 2], _: &TileRuns<'_>, _: MatMut<'_, f32>) {
        match self.0 {}
    }
}
