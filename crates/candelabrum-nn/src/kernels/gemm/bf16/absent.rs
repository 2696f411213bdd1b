//! On other processors than those with x86's instructions, there are none for products in bf16.

use std::ops::Range;

use super::finish::Finish;
use super::line::Line;
use super::operand::Operand;
use crate::kernels::mat_mut::MatMut;

/// Has no values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {}

impl Instructions {
    pub(crate) const NAME: &'static str = "none";

    pub(crate) fn detect() -> Option<Self> {
        None
    }

    pub(super) fn pack(
        self,
        _: Operand<'_, f32>,
        _: Range<usize>,
        _: Range<usize>,
        _: &mut [Line],
        _: usize,
    ) {
        match self {}
    }

    pub(super) fn tile<const VECTORS: usize>(
        self,
        _: &[[f32; super::line::HALF]],
        _: [&[Line]; VECTORS],
        _: MatMut<'_, f32>,
        _: Finish,
    ) {
        match self {}
    }
}
