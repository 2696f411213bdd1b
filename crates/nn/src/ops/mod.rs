//! Fused operations: candle custom ops, each with its own forward and backward.
//!
//! Why not candle's own: its convolution backward is a transposed convolution made of dot
//! products, computes the gradient of images that nobody asked for, and its bias gradients are
//! scalar sums; its max-pool backward scales the gradient by `1/k^2`; its relu passes the
//! gradient at exactly 0. PyTorch is the reference here for every tie and edge.
//!
//! Rules that hold for every operation of this module:
//!
//! - f32 is the fast type, f64 works the same way (gradient checks need it); any other dtype is
//!   [`candle_core::Error::UnsupportedDTypeForOp`].
//! - Inputs may be views: they are made contiguous first.
//! - An argument without a variable below it (images, labels) gets no gradient, and none is
//!   computed.
//! - Work is split over the threads of the current rayon pool into parts that do not depend on
//!   the number of threads, and partial sums are added in a fixed order: two runs give the same
//!   bits.
//! - CPU only so far: no operation implements `cuda_fwd`, so candle answers a CUDA tensor with
//!   an error that names the operation.

mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod float;
mod fused;
mod linear;
mod matmul;
mod max_pool2d;
mod relu;
mod simd;

pub mod profile;

pub use conv2d::{Conv2dConfig, conv2d};
pub use cross_entropy::softmax_cross_entropy;
pub use dropout::dropout;
pub use linear::linear;
pub use max_pool2d::{Pool2dConfig, max_pool2d};
pub use relu::relu;
