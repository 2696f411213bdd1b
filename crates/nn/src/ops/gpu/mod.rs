//! The kernels of the operations on a GPU, one file of Rust and one of CUDA C++ for each family. An
//! operation without kernels runs there as its composite.

pub(super) mod activations;
pub(super) mod batch_norm2d;
pub(super) mod channels;
pub(super) mod columns;
pub(super) mod conv2d;
pub(super) mod linear;
pub(super) mod pools;
