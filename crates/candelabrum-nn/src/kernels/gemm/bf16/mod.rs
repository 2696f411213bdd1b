//! Products of f32 numbers that are rounded to bf16, with sums in f32.
//!
//! Rounding is a part of packing, so it costs no pass of its own. [`multiply`] packs matrices and
//! multiplies them. A convolution packs its factors itself, and calls [`product`].

#[cfg(not(target_arch = "x86_64"))]
#[path = "absent.rs"]
mod instructions;
#[cfg(target_arch = "x86_64")]
#[path = "avx512.rs"]
mod instructions;

mod finish;
mod line;
mod multiply;
mod operand;
mod packed;
#[cfg(test)]
mod plain;
mod product;

pub(crate) use self::finish::Finish;
pub(crate) use self::instructions::Instructions;
pub(crate) use self::multiply::{DEPTH, LeftOperand, multiply};
pub(crate) use self::operand::{Lines, Operand, Starts};
pub(crate) use self::packed::Packed;
pub(crate) use self::product::product;
