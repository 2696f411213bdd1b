//! What pictures of numbers have in common, for the pages and the dashboard of the command `candelabrum` and for
//! the pictures of the benchmarks: axes with round numbers at their ticks, short texts of numbers, and the
//! parts of an SVG picture.

#![forbid(unsafe_code)]

mod axis;
mod number;
mod svg;

pub use axis::{Axis, Scale};
pub use number::{bytes, mean, number, percent, seconds};
pub use svg::{Frame, Grid, path};
