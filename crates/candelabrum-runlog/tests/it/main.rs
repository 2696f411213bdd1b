//! Logs from the first event to their readers: ours, and TensorBoard's.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log;
mod tensorboard;
