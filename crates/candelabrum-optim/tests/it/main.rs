//! Optimizers beside PyTorch's, and properties that all of them have.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "how far apart two optimizers are, for --nocapture")]

mod properties;
mod pytorch;
mod whole;
