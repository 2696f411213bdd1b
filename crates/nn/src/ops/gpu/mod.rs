//! The kernels of the operations on a GPU, one file of Rust and one of CUDA C++ for each family. An
//! operation without kernels runs there as its composite.

pub(super) mod activations;
pub(super) mod columns;
pub(super) mod linear;
