//! By which instructions this processor multiplies numbers that are rounded to bf16.

use std::ops::Range;

use super::f32_packing;
use super::line::{LineForm, PackedPlace, PairLine};
use super::operand::Operand;
use super::x86::{Amx, Avx512};

/// The fastest way to multiply. All round the factors in the same way, and sum in f32 in an order of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionSet {
    /// Tile registers.
    Amx(Amx),
    /// Vector registers, of pairs in bf16.
    Avx512(Avx512),
    /// The products of f32, for rounded numbers.
    F32,
}

impl InstructionSet {
    /// The fastest ones of this processor that this process may use.
    #[inline]
    pub(crate) fn detect() -> Self {
        let vectors = || Avx512::detect().filter(|vectors| vectors.is_fast());
        Amx::detect().map(Self::Amx).or_else(|| vectors().map(Self::Avx512)).unwrap_or(Self::F32)
    }

    /// All that this processor has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let tiles = Amx::detect().map(Self::Amx);
        let vectors = Avx512::detect().map(Self::Avx512);
        [Self::F32].into_iter().chain(vectors).chain(tiles).collect()
    }

    /// The name of the instructions. `None` for those of f32.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Amx(_) => Some("AMX"),
            Self::Avx512(_) => Some("AVX512-BF16"),
            Self::F32 => None,
        }
    }

    /// The tile registers, if they multiply.
    pub(crate) fn amx(self) -> Option<Amx> {
        if let Self::Amx(amx) = self { Some(amx) } else { None }
    }

    /// The form of a left factor, and of a right one.
    pub(super) fn forms(self) -> [LineForm; 2] {
        match self {
            // The rows of a left factor are those of tiles as they are.
            Self::Amx(_) => [LineForm::Width, LineForm::Depth],
            Self::Avx512(_) => [LineForm::Depth; 2],
            Self::F32 => f32_packing::FORMS,
        }
    }

    /// Packs rows or columns `width` and steps `depth` of a factor. `to` begins with a group of rows or columns.
    #[inline]
    pub(super) fn pack(
        self,
        from: (Operand<'_, f32>, LineForm),
        width: Range<usize>,
        depth: Range<usize>,
        to: &mut [PairLine],
        place: PackedPlace,
    ) {
        match self {
            Self::Amx(Amx { vectors }) | Self::Avx512(vectors) => {
                vectors.pack(from, width, depth, to, place);
            }
            Self::F32 => f32_packing::pack(from, width, depth, to, place),
        }
    }
}
