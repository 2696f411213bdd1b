//! The kernels of the operations on a GPU, one file of Rust and one of CUDA C++ for each family. An
//! operation without kernels runs there as its composite.
//!
//! packs.cu, gradient.cu, rows.cu, indices.cu and sigmoid.cu are the common beginning of several families' texts,
//! because the compiler on a GPU's host finds no files to include.

pub(super) mod activations;
mod attention;
pub(super) mod batch_norm2d;
pub(super) mod channels;
pub(super) mod columns;
pub(super) mod conv2d;
mod conv_transpose2d;
mod dropout;
mod embedding;
mod gradient;
mod indices;
mod last_step;
pub(super) mod linear;
mod mul;
mod packs;
pub(super) mod pools;
mod recurrent;
mod row_norm;
mod rows;
mod softmax;
