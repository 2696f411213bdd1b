//! Matrix products of our own, for operands that another operation has just computed into a buffer of
//! its own: there, the operands are made in the form in which the kernel reads them, and nothing is
//! packed. For all other products see [`matmul`](super::matmul).

pub(crate) mod bf16;
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

pub(crate) use self::dispatch::dispatch;
#[cfg(test)]
pub(crate) use self::dispatch::on_each_instruction_set;
pub(crate) use self::few_rows::{few_rows_apply, product_of_few_rows};
pub(crate) use self::lanes::VectorLanes;
pub(crate) use self::panels::Panels;
pub(crate) use self::product::Product;
pub(crate) use self::tile::{
    LeftMatrix, MOST_ROWS, MatrixRows, ProductSize, RowRuns, rows_of_a_tile,
};
