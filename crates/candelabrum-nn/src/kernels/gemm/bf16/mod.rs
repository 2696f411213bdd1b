//! Products of f32 numbers that are rounded to bf16, with sums in f32.
//!
//! Rounding is a part of packing, so it costs no pass of its own. [`multiply`] packs matrices and
//! multiplies them. A convolution packs its factors itself, and calls [`product`].

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod instructions;
#[cfg(target_arch = "x86_64")]
mod instructions;
#[cfg(target_arch = "x86_64")]
mod packing;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod permission;
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
#[path = "no_permission.rs"]
mod permission;
#[cfg(target_arch = "x86_64")]
mod pixels;
#[cfg(target_arch = "x86_64")]
mod tile_product;
#[cfg(target_arch = "x86_64")]
mod vectors;

mod line;
mod multiply;
mod operand;
mod packed;
#[cfg(test)]
mod plain;
mod product;
mod vector_product;

pub(crate) use self::instructions::Instructions;
pub(crate) use self::multiply::{DEPTH, LeftOperand, multiply};
pub(crate) use self::operand::{Lines, Operand, Starts};
pub(crate) use self::packed::Packed;
#[cfg(target_arch = "x86_64")]
pub(crate) use self::pixels::{CHANNELS, Pixels, Tap, WindowGradient, window_product};
pub(crate) use self::product::product;
