//! Matrix products of our own, for operands that another operation has just computed into a buffer of
//! its own: there, the operands are made in the form in which the kernel reads them, and nothing is
//! packed. For all other products see [`matmul`](super::matmul).

pub(super) mod bf16;
#[cfg(not(test))]
mod dispatch;
#[cfg(test)]
#[path = "dispatch_in_tests.rs"]
mod dispatch;
mod few_rows;
mod lanes;
mod panels;
mod product;
mod tile;

pub(super) use self::dispatch::dispatch;
#[cfg(test)]
pub(super) use self::dispatch::on_each_instruction_set;
pub(super) use self::few_rows::{few_rows_apply, product_of_few_rows};
pub(super) use self::lanes::Lanes;
pub(super) use self::panels::Panels;
pub(super) use self::product::Product;
pub(super) use self::tile::{Left, MOST_ROWS, Rows, Runs, Size, rows_of_a_tile};
