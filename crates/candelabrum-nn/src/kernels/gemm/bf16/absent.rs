//! On other processors than those with x86's instructions, there are none for products in bf16.

use std::ops::Range;

use super::line::{Form, HALF, Line};
use super::operand::Operand;
use crate::kernels::mat_mut::MatMut;

/// Has no values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {}

impl Instructions {
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        Vec::new()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {}
    }

    pub(super) fn left_form(self) -> Form {
        match self {}
    }

    pub(super) fn fills_tiles(self) -> bool {
        match self {}
    }

    pub(super) fn pack(
        self,
        _: (Operand<'_, f32>, Form),
        _: Range<usize>,
        _: Range<usize>,
        _: &mut [Line],
        _: (usize, usize),
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
}
