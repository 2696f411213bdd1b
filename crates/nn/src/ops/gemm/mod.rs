//! Matrix products of our own, for operands that another operation has just computed into a buffer of
//! its own: there, the operands are made in the form in which the kernel reads them, and nothing is
//! packed. For all other products see [`matmul`](super::matmul).

mod lanes;
mod product;
mod tile;

pub(super) use self::lanes::Lanes;
pub(super) use self::product::Product;
pub(super) use self::tile::{Left, Rows, Runs, Size, rows_of_a_tile};
