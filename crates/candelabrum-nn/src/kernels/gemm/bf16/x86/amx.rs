//! AMX: products of tiles.
//!
//! A *tile* is a register of 16 lines of 64 bytes. `tdpbf16ps` multiplies a tile of 16 rows × 16 pairs by a tile of
//! 16 pairs × 16 columns, and adds the products to a tile of 16 × 16 sums in f32. A processor has 8 tiles. Four of them
//! have sums, so each tile that is loaded serves two products.
//!
//! A thread sets the sizes of its tiles before it uses them ([`TileRegisters`]), and a process asks the system for the
//! permission to use tiles at all ([`Amx::detect`]): the state of a thread grows by 8 KiB.
//!
//! Intel, *Intrinsics Guide*, has what the instructions compute: `tdpbf16ps` adds the products of all first elements of
//! 16 pairs, then those of all second ones, then both to the sum.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::super::line::{LANES, PairLine};
use super::super::runs::{SIDE, TileRuns};
use super::Avx512;
use super::permission;
use crate::kernels::mat_mut::MatMut;

/// The evidence that this process may use tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amx {
    /// The vectors with which factors are packed.
    pub(in super::super) vectors: Avx512,
}

/// The sizes of the tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct TileSizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_of_a_row: [u16; 16],
    rows: [u8; 16],
}

static WHOLE_TILES: TileSizes = TileSizes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_of_a_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Amx {
    /// `None` if the processor has no tiles for bf16, or the system does not let this process use them. Asks once.
    pub(in super::super) fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let found = *FOUND.get_or_init(|| {
            const AMX_BF16: u32 = 1 << 22;
            const AMX_TILE: u32 = 1 << 24;
            let features = __cpuid_count(7, 0).edx;
            features & AMX_BF16 != 0 && features & AMX_TILE != 0 && permission::asked()
        });
        let vectors = Avx512::detect()?;
        found.then_some(Self { vectors })
    }

    /// Sets the sizes of this thread's tiles.
    pub(in super::super) fn tiles(self) -> TileRegisters {
        // SAFETY: by the evidence the processor has the instruction, and the process may use it.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly));
        }
        TileRegisters(PhantomData)
    }
}

/// This thread's tiles, as long as the value lives. Nothing else in this thread uses tiles meanwhile: the functions
/// that have the value call no code but that of this folder.
pub(in super::super) struct TileRegisters(PhantomData<*const ()>);

impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: this thread has set the sizes.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// The loops over runs and their steps: what comes before them, what a step does, and what comes behind them. `{a0}` and
/// `{a1}` are the rows of a left factor, `{b0}` and `{b1}` the columns of a right one, and `{below}` is 16 rows below
/// `{out}`.
macro_rules! multiply {
    (
        ($runs:ident, $count:ident, $steps:ident, $left_step:ident, $out:ident, $row:ident)
        $($before:literal)*; $($step:literal)*; $($behind:literal)*
    ) => {
        // SAFETY: each of the `count` runs has pointers to `steps` tiles, by the invariant of `TileRuns`, and the loops read these
        // tiles and nothing else. `out` has 16 rows of 64 bytes for each tile. The sizes of this thread's tiles have been set.
        unsafe {
            asm!(
                $($before,)*
                "2:",
                "mov {a0}, [{runs}]",
                "mov {a1}, [{runs} + 8]",
                "mov {b0}, [{runs} + 16]",
                "mov {b1}, [{runs} + 24]",
                "mov {below}, {steps}",
                "3:",
                $($step,)*
                "add {a0}, {left_step}",
                "add {a1}, {left_step}",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {below}",
                "jnz 3b",
                "add {runs}, 32",
                "dec {count}",
                "jnz 2b",
                "mov {below}, {row}",
                "shl {below}, 4",
                "add {below}, {out}",
                $($behind,)*
                a0 = out(reg) _,
                a1 = out(reg) _,
                b0 = out(reg) _,
                b1 = out(reg) _,
                below = out(reg) _,
                runs = inout(reg) $runs => _,
                count = inout(reg) $count => _,
                steps = in(reg) $steps,
                left_step = in(reg) $left_step,
                out = in(reg) $out,
                row = in(reg) $row,
                line = in(reg) 64_usize,
                options(nostack),
            );
        }
    };
}

impl TileRegisters {
    /// Writes the sums of the products of one or two rows and columns of tiles, over all runs. `out` has 16 rows and
    /// columns for each tile.
    #[inline]
    pub(in super::super) fn multiply(
        &self,
        two: [bool; 2],
        runs: &TileRuns<'_>,
        mut out: MatMut<'_, f32>,
    ) {
        let size = two.map(|two| if two { SIDE } else { LANES });
        assert_eq!([out.rows(), out.cols()], size, "sums of tiles");
        assert!(!runs.runs().is_empty(), "a sum without products");
        let row = out.row_stride() * size_of::<f32>();
        let (steps, left_step) = (runs.steps(), runs.left_step() * size_of::<PairLine>());
        let (first, count) = (runs.runs().as_ptr(), runs.runs().len());
        let out = out.as_mut_ptr();
        match two {
            [true, true] => multiply!(
                (first, count, steps, left_step, out, row)
                "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3";
                "tileloadd tmm4, [{a0} + {line}]"
                "tileloadd tmm6, [{b0} + {line}]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm7, [{b1} + {line}]"
                "tdpbf16ps tmm1, tmm4, tmm7"
                "tileloadd tmm5, [{a1} + {line}]"
                "tdpbf16ps tmm2, tmm5, tmm6"
                "tdpbf16ps tmm3, tmm5, tmm7";
                "tilestored [{out} + {row}], tmm0"
                "tilestored [{out} + {row} + 64], tmm1"
                "tilestored [{below} + {row}], tmm2"
                "tilestored [{below} + {row} + 64], tmm3"
            ),
            [false, true] => multiply!(
                (first, count, steps, left_step, out, row)
                "tilezero tmm0" "tilezero tmm1";
                "tileloadd tmm4, [{a0} + {line}]"
                "tileloadd tmm6, [{b0} + {line}]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm7, [{b1} + {line}]"
                "tdpbf16ps tmm1, tmm4, tmm7";
                "tilestored [{out} + {row}], tmm0"
                "tilestored [{out} + {row} + 64], tmm1"
            ),
            [true, false] => multiply!(
                (first, count, steps, left_step, out, row)
                "tilezero tmm0" "tilezero tmm2";
                "tileloadd tmm4, [{a0} + {line}]"
                "tileloadd tmm6, [{b0} + {line}]"
                "tdpbf16ps tmm0, tmm4, tmm6"
                "tileloadd tmm5, [{a1} + {line}]"
                "tdpbf16ps tmm2, tmm5, tmm6";
                "tilestored [{out} + {row}], tmm0"
                "tilestored [{below} + {row}], tmm2"
            ),
            [false, false] => multiply!(
                (first, count, steps, left_step, out, row)
                "tilezero tmm0";
                "tileloadd tmm4, [{a0} + {line}]"
                "tileloadd tmm6, [{b0} + {line}]"
                "tdpbf16ps tmm0, tmm4, tmm6";
                "tilestored [{out} + {row}], tmm0"
            ),
        }
    }
}
