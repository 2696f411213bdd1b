//! Datasets from files, tables, shards and functions to batches, on one thread and on several ranks.
//!
//! `limits` and `memory` are programs of their own, because they measure or bound the memory of their
//! process.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside test functions")]

mod auto;
mod batches;
mod cifar;
mod download;
mod folder;
mod loader;
mod mnist;
mod mnist_files;
mod record_io;
mod records;
mod sampler;
mod synthetic;
mod table;
mod tar_shards;
mod texts;
