//! Fused operations: candle custom ops, each with its own forward and backward, and each also as a
//! *composite* of candle's differentiable operations.
//!
//! Why not candle's own: its convolution backward is a transposed convolution made of dot
//! products, computes the gradient of images that nobody asked for, and its bias gradients are
//! scalar sums; its max-pool backward scales the gradient by `1/k^2`; its relu passes the
//! gradient at exactly 0. PyTorch is the reference here for every tie and edge.
//!
//! candle-nn's `LayerNorm`, `RmsNorm` and `ops::softmax_last_dim` have no backward, its `BatchNorm`
//! and `loss::cross_entropy` are graphs of many operations; none of them is used here.
//!
//! Rules that hold for every operation of this module:
//!
//! - Kernels run on the CPU, in f32, the fast type, and in f64, which gradient checks need; there any
//!   other dtype is [`candle_core::Error::UnsupportedDTypeForOp`].
//! - Where there is no kernel for a device, and on every device within [`with_composites`], the
//!   composite computes the operation, in each floating-point type that candle knows there. It gives
//!   what the kernel gives up to rounding; how parameters report their gradients does not change.
//! - Inputs may be views: they are made contiguous first.
//! - An argument without a variable below it (images, labels) gets no gradient, and a kernel computes
//!   none.
//! - Work is split over the threads of the current rayon pool into parts that do not depend on
//!   the number of threads, and partial sums are added in a fixed order: two runs give the same
//!   bits.
//! - As in candle, the depth of a graph is limited by the stack of the thread that walks it. A graph
//!   whose backward pass failed is good for another one through
//!   [`FlatGradients`](crate::FlatGradients) (so does `DistOpt`); make it again for a plain `backward`.

mod activations;
mod add;
mod avg_pool2d;
mod batch_norm2d;
mod column_sums;
mod conv2d;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod float;
mod fused;
mod gru;
mod last_step;
mod linear;
mod lstm;
mod math;
mod matmul;
mod max_pool2d;
mod moments;
mod parallel;
mod pool;
mod pool2d;
mod recurrent;
mod row_norm;
mod softmax;
mod unfold;

pub mod profile;

pub use activations::{gelu, gelu_tanh, relu, sigmoid, silu, tanh};
pub use add::add;
pub use avg_pool2d::{avg_pool2d, global_avg_pool2d};
pub use batch_norm2d::{BatchNormConfig, RunningStatistics, batch_norm2d, sync_batch_norm2d};
pub use conv2d::{Conv2dConfig, conv2d};
pub use cross_entropy::{CrossEntropyConfig, softmax_cross_entropy, softmax_cross_entropy_with};
pub use dropout::dropout;
pub use embedding::embedding;
pub use fused::with_composites;
pub use gru::gru;
pub use last_step::last_step;
pub use linear::linear;
pub use lstm::lstm;
pub use max_pool2d::max_pool2d;
pub use pool2d::Pool2dConfig;
pub use recurrent::RecurrentWeights;
pub use row_norm::{layer_norm, rms_norm};
pub use softmax::{log_softmax, softmax};
