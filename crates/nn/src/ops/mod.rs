//! Fused operations. Each is a custom operation of candle with its own forward and backward, and
//! has a *composite* of candle's differentiable operations besides.
//!
//! Why not candle's own operations? candle computes the backward pass of a convolution as a
//! transposed convolution made of dot products. It computes the gradient of images even if nothing
//! uses it, and its bias gradients are scalar sums. Its max-pool backward scales the gradient by
//! `1/k^2`, and its relu passes the gradient at exactly 0. For every tie and edge case, the
//! reference here is PyTorch.
//!
//! In candle-nn, `LayerNorm`, `RmsNorm` and `ops::softmax_last_dim` have no backward, and
//! `BatchNorm` and `loss::cross_entropy` are graphs of many operations. Nothing of them is used
//! here.
//!
//! Every operation of this module follows these rules:
//!
//! - Kernels run on the CPU, in f32, the fast type, and in f64, which gradient checks need. f16 and
//!   bf16 are converted to f32 for the kernel, and its result is rounded. Any other dtype on the CPU
//!   is [`candle_core::Error::UnsupportedDTypeForOp`].
//! - On a GPU, kernels compute f32, f16 and bf16. Sums and functions are computed in f32.
//! - On a device or in a dtype without kernels, and on every device within [`with_composites`], the
//!   composite computes the operation, in each floating-point type that candle supports there. Its
//!   result is the kernel's result up to rounding, and parameters report their gradients in the same
//!   way.
//! - Inputs may be views. The operation makes them contiguous first.
//! - An argument without a variable below it (images, labels) gets no gradient, and the kernel
//!   computes none.
//! - Work is split over the threads of the current rayon pool. The parts do not depend on the
//!   number of threads, and partial sums are added in a fixed order, so two runs give the same
//!   bits.
//! - As in candle, the stack of the thread that walks a graph limits the graph's depth. After a
//!   failed backward pass, [`FlatGradients`](crate::FlatGradients) and `DistOpt` can run another
//!   one on the same graph. For candle's own `backward`, build the graph again.

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
mod gpu;
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

pub use activations::{gelu, gelu_tanh, relu, relu6, sigmoid, silu, tanh};
pub use add::add;
pub use avg_pool2d::{avg_pool2d, global_avg_pool2d};
pub use batch_norm2d::{BatchNormConfig, RunningStatistics, batch_norm2d, sync_batch_norm2d};
pub use conv2d::{Conv2dConfig, conv2d};
pub use cross_entropy::{CrossEntropyConfig, softmax_cross_entropy, softmax_cross_entropy_with};
pub use dropout::dropout;
pub use embedding::embedding;
pub(crate) use fused::widen;
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
