//! The loader over every kind of data: the same global batches for any number of ranks and threads,
//! exact positions, windows of shuffling, parts, and errors in their places.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside test functions")]

mod contents;
mod failures;
mod kinds;
mod order;
mod parts;
mod positions;
mod promise;
