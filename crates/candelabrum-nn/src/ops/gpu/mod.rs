//! What the kernels of several operations share on a GPU. An operation's own are in its folder: `gpu.rs` and its text in
//! CUDA C++. An operation without kernels runs there as its composite.
//!
//! packs.cu, gradient.cu, rows.cu, indices.cu and sigmoid.cu are the common beginning of several operations' texts,
//! because the compiler on a GPU's host finds no files to include.

pub(super) mod channels;
pub(super) mod columns;
pub(super) mod gradient;
pub(super) mod indices;
pub(super) mod launch;
pub(super) mod packs;
pub(super) mod rows;
