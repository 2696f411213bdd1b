//! AMX: products of tiles.
//!
//! A *tile* is a register of 16 lines of 64 bytes. `tdpbf16ps` multiplies a tile of 16 rows × 16 pairs by a tile of
//! 16 pairs × 16 columns, and adds the products to a tile of 16 × 16 sums in f32. A processor has 8 tiles. Four of them
//! have sums, so each tile that is loaded serves two products.
//!
//! A thread sets the sizes of its tiles before it uses them ([`Tiles`]), and a process asks the system for the
//! permission to use tiles at all ([`Amx::detect`]): the state of a thread grows by 8 KiB.
//!
//! Intel, *Intrinsics Guide*, has what the instructions compute: `tdpbf16ps` adds the products of all first elements of
//! 16 pairs, then those of all second ones, then both to the sum.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::line::{LANES, Line};
use super::permission;
use crate::kernels::mat_mut::MatMut;

/// The evidence that this process may use tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amx(());

/// What a tile register holds.
pub(super) type Tile = [Line; LANES];

/// The sizes of the tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Sizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_of_a_row: [u16; 16],
    rows: [u8; 16],
}

static WHOLE_TILES: Sizes = Sizes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_of_a_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

impl Amx {
    /// `None` if the processor has no tiles for bf16, or the system does not let this process use them. Asks once.
    pub(super) fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let found = *FOUND.get_or_init(|| {
            const AMX_BF16: u32 = 1 << 22;
            const AMX_TILE: u32 = 1 << 24;
            let features = __cpuid_count(7, 0).edx;
            features & AMX_BF16 != 0 && features & AMX_TILE != 0 && permission::asked()
        });
        found.then_some(Self(()))
    }

    /// Sets the sizes of this thread's tiles.
    pub(super) fn tiles(self) -> Tiles {
        // SAFETY: by the evidence the processor has the instruction, and the process may use it.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE_TILES, options(nostack, readonly))
        };
        Tiles(PhantomData)
    }
}

/// This thread's tiles, as long as the value lives. Nothing else in this thread uses tiles meanwhile: the functions
/// that have the value call no code but that of this folder.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: this thread has set the sizes.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

impl Tiles {
    /// Writes the sums of the products of `ROWS` × `COLUMNS` tiles, each 1 or 2, over as many tiles of the depth as the
    /// factors have. `out` has 16 rows and columns for each tile.
    #[inline]
    pub(super) fn multiply<const ROWS: usize, const COLUMNS: usize>(
        &self,
        left: [&[Tile]; ROWS],
        right: [&[Tile]; COLUMNS],
        mut out: MatMut<'_, f32>,
    ) {
        let depth = left[0].len();
        assert!(left.iter().chain(&right).all(|tiles| tiles.len() == depth) && depth > 0);
        assert_eq!((out.rows(), out.cols()), (ROWS * LANES, COLUMNS * LANES), "sums of tiles");
        let [a0, b0] = [left[0].as_ptr(), right[0].as_ptr()];
        let a1 = left.get(1).map_or(a0, |left| left.as_ptr());
        let b1 = right.get(1).map_or(b0, |right| right.as_ptr());
        let row = out.row_stride() * size_of::<f32>();
        let out = out.as_mut_ptr();
        let below = out.wrapping_byte_add(LANES * row);
        // SAFETY: each pointer of a factor has `depth` tiles of 1 KiB, and the loops read them and nothing behind them.
        // `out` and, for two rows, `below` have 16 rows of 64 bytes for each column. The sizes of this thread's tiles
        // have been set.
        unsafe {
            match (ROWS, COLUMNS) {
                (2, 2) => asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "2:",
                    "tileloadd tmm4, [{a0} + {line}]",
                    "tileloadd tmm6, [{b0} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b1} + {line}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{a1} + {line}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {a0}, 1024", "add {a1}, 1024", "add {b0}, 1024", "add {b1}, 1024",
                    "dec {depth}",
                    "jnz 2b",
                    "tilestored [{out} + {row}], tmm0",
                    "tilestored [{out} + {row} + 64], tmm1",
                    "tilestored [{below} + {row}], tmm2",
                    "tilestored [{below} + {row} + 64], tmm3",
                    a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _, below = in(reg) below,
                    b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _,
                    depth = inout(reg) depth => _, out = in(reg) out,
                    line = in(reg) 64_usize, row = in(reg) row,
                    options(nostack),
                ),
                (1, 2) => asm!(
                    "tilezero tmm0", "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{a0} + {line}]",
                    "tileloadd tmm6, [{b0} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b1} + {line}]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {a0}, 1024", "add {b0}, 1024", "add {b1}, 1024",
                    "dec {depth}",
                    "jnz 2b",
                    "tilestored [{out} + {row}], tmm0",
                    "tilestored [{out} + {row} + 64], tmm1",
                    a0 = inout(reg) a0 => _, b0 = inout(reg) b0 => _, b1 = inout(reg) b1 => _,
                    depth = inout(reg) depth => _, out = in(reg) out,
                    line = in(reg) 64_usize, row = in(reg) row,
                    options(nostack),
                ),
                (2, 1) => asm!(
                    "tilezero tmm0", "tilezero tmm2",
                    "2:",
                    "tileloadd tmm4, [{a0} + {line}]",
                    "tileloadd tmm6, [{b0} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{a1} + {line}]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "add {a0}, 1024", "add {a1}, 1024", "add {b0}, 1024",
                    "dec {depth}",
                    "jnz 2b",
                    "tilestored [{out} + {row}], tmm0",
                    "tilestored [{below} + {row}], tmm2",
                    a0 = inout(reg) a0 => _, a1 = inout(reg) a1 => _, b0 = inout(reg) b0 => _, below = in(reg) below,
                    depth = inout(reg) depth => _, out = in(reg) out,
                    line = in(reg) 64_usize, row = in(reg) row,
                    options(nostack),
                ),
                _ => asm!(
                    "tilezero tmm0",
                    "2:",
                    "tileloadd tmm4, [{a0} + {line}]",
                    "tileloadd tmm6, [{b0} + {line}]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "add {a0}, 1024", "add {b0}, 1024",
                    "dec {depth}",
                    "jnz 2b",
                    "tilestored [{out} + {row}], tmm0",
                    a0 = inout(reg) a0 => _, b0 = inout(reg) b0 => _,
                    depth = inout(reg) depth => _, out = in(reg) out,
                    line = in(reg) 64_usize, row = in(reg) row,
                    options(nostack),
                ),
            }
        }
    }
}
