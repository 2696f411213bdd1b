//! What a curve needs on a page and in a terminal: axes with round numbers, and short texts of numbers.

mod axis;
mod number;

pub(crate) use axis::{Axis, Scale};
pub(crate) use number::{bytes, number, percent};
