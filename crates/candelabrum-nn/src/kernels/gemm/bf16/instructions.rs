//! By which instructions this processor multiplies in bf16.
//!
//! **Invariant** [`Instructions`] has a value only on a processor with AVX512F, AVX512BW and AVX512-BF16,
//! the instructions of packing and of the tiles in vector registers.

use std::arch::is_x86_feature_detected;
use std::ops::Range;

use super::amx::{Amx, SIDE};
use super::line::{Form, HALF, LANES, Line, Place};
use super::operand::Operand;
use super::{avx512, packing, vectors};
use crate::kernels::mat_mut::MatMut;

/// The evidence that this processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instructions {
    /// Tile registers, if they multiply.
    pub(super) amx: Option<Amx>,
}

impl Instructions {
    /// `None` if the processor does not have them.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        present.then(|| Self { amx: Amx::detect() })
    }

    /// All ways to multiply that this processor has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let best = Self::detect();
        let tiles = best.filter(|best| best.amx.is_some());
        best.map(|_| Self { amx: None }).into_iter().chain(tiles).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        if self.amx.is_some() { "AMX" } else { "AVX512-BF16" }
    }

    /// The form of a left factor, whose rows the tiles of AMX have as they are.
    pub(super) fn left_form(self) -> Form {
        if self.amx.is_some() { Form::Width } else { Form::Depth }
    }

    /// Packs rows or columns `width` and steps `depth` of a factor. `to` begins with a group of 16 rows or columns.
    #[inline]
    pub(super) fn pack(
        self,
        from: (Operand<'_, f32>, Form),
        width: Range<usize>,
        depth: Range<usize>,
        to: &mut [Line],
        place: Place,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { packing::pack(from, width, depth, to, place) }
    }

    /// One tile in vector registers: every second element of `left` has the pairs of its 8 rows. `out` has as many rows
    /// and columns as exist of the tile.
    #[inline]
    pub(super) fn tile<const VECTORS: usize>(
        self,
        left: &[[f32; HALF]],
        right: [&[Line]; VECTORS],
        out: MatMut<'_, f32>,
        add: bool,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { avx512::tile(left, right, out, add) }
    }

    /// Whether the processor multiplies tiles of 16 rows.
    pub(crate) fn has_tiles(self) -> bool {
        self.amx.is_some()
    }

    /// Writes the transposed sums of a tile to a result with as many rows and columns as exist.
    #[inline]
    pub(super) fn store_turned(self, sums: &[[f32; SIDE]; SIDE], out: MatMut<'_, f32>) {
        // SAFETY: the invariant of the module.
        unsafe { avx512::store_turned(sums, out) }
    }

    /// Fetches a result that will be written soon.
    #[inline]
    pub(super) fn prefetch(self, out: &mut MatMut<'_, f32>) {
        for row in 0..out.rows() {
            out.row(row).chunks(LANES).for_each(vectors::prefetch);
        }
    }

    /// Writes or adds the sums of a tile, which lie in rows of `WIDTH` numbers.
    #[inline]
    pub(super) fn store<const WIDTH: usize>(
        self,
        sums: &[[f32; WIDTH]],
        out: MatMut<'_, f32>,
        add: bool,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { avx512::store_tile(sums, out, add) }
    }
}
