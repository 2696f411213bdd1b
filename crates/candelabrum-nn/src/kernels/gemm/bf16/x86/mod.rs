//! The instructions of x86-64 processors for bf16.
//!
//! **Invariant** [`Avx512`] has a value only on a processor with AVX512F, AVX512BW and AVX512-BF16, the instructions of
//! packing and of the tiles in vector registers.

mod amx;
mod avx512;
mod packing;
#[cfg(target_os = "linux")]
mod permission;
#[cfg(not(target_os = "linux"))]
#[path = "no_permission.rs"]
mod permission;
mod vectors;

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::__cpuid;
use std::ops::Range;

pub(crate) use self::amx::Amx;
use super::line::{HALF, LANES, LineForm, PackedPlace, PairLine};
use super::operand::Operand;
use super::runs::SIDE;
use crate::kernels::mat_mut::MatMut;

/// The evidence that this processor has the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// `None` if the processor does not have them.
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        present.then_some(Self(()))
    }

    /// Whether products in bf16 are faster than those in f32. Intel's processors take two cycles for `vdpbf16ps` where
    /// AMD's take one (docs/log/2026-11-29-amx.md). A rule of the maker, because a measured choice would change bits from
    /// run to run.
    pub(super) fn is_fast(self) -> bool {
        let maker = __cpuid(0);
        [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).concat() != *b"GenuineIntel"
    }

    /// Packs rows or columns `width` and steps `depth` of a factor. `to` begins with a group of 16 rows or columns.
    #[inline]
    pub(super) fn pack(
        self,
        from: (Operand<'_, f32>, LineForm),
        width: Range<usize>,
        depth: Range<usize>,
        to: &mut [PairLine],
        place: PackedPlace,
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
        right: [&[PairLine]; VECTORS],
        out: MatMut<'_, f32>,
        add: bool,
    ) {
        // SAFETY: the invariant of the module.
        unsafe { avx512::tile(left, right, out, add) }
    }

    /// Writes or adds sums to a result with as many rows and columns as exist.
    #[inline]
    pub(super) fn store(self, sums: &[[f32; SIDE]; SIDE], out: MatMut<'_, f32>, add: bool) {
        // SAFETY: the invariant of the module.
        unsafe { avx512::store_tile(sums, out, add) }
    }

    /// Writes transposed sums to a result with as many rows and columns as exist.
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
}
