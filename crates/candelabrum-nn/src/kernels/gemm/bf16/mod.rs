//! Products of f32 numbers that are rounded to bf16, with sums in f32.
//!
//! Rounding is a part of packing, so it costs no pass of its own. [`multiply`] packs matrices and
//! multiplies them. A convolution packs its factors itself, and calls [`product`].

mod f32_packing;
mod f32_product;
mod instruction_set;
mod line;
mod line_memory;
mod multiply;
mod operand;
mod packed;
mod pixels;
#[cfg(test)]
mod plain;
mod product;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "what only kernels of x86-64 processors read")
)]
mod runs;
mod tile_product;
mod vector_product;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_x86.rs"]
mod x86;

pub(crate) use self::instruction_set::InstructionSet;
pub(crate) use self::multiply::{DEPTH, LeftOperand, multiply};
pub(crate) use self::operand::{Operand, OperandLines, Starts, f32s, f32s_mut};
pub(crate) use self::packed::PackedFactor;
pub(crate) use self::pixels::{CHANNELS, Pixels, WindowGradient, WindowTap, window_product};
pub(crate) use self::product::product;
pub(crate) use self::x86::Amx;
