//! Training on a GPU: the same program, layers and step as on the CPU, with the same losses.
//!
//! Where no GPU is visible the tests pass and say that they were left out. `REQUIRE_GPUS=1` makes
//! that a failure.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "a test that was left out says so")]

mod absent;
mod announced;
mod attention;
mod calls;
mod convolutions;
mod device;
mod events;
mod failed_device;
mod graphs;
mod kernel_cache;
mod launches;
mod linear;
mod memory;
mod models;
mod optimizers;
mod precision;
mod ranks;
mod sparse;
mod tf32;
