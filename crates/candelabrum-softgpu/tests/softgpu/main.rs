//! The software GPU itself: candle's operations give the CPU's numbers on it, and planted mistakes
//! show. `cargo xtask gpu-test` runs these tests.
//!
//! Each planted mistake runs in a child process, because some of them end the process: the child is
//! this program again, with the mistake's name in a variable.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "children tell their results")]

mod child;
mod compare;
mod graph;
mod kernels;
mod mistakes;
mod modes;
mod operations;
mod products;
