//! Fused operations. Each is a custom operation of candle with its own forward and backward, and
//! has a *composite* of candle's differentiable operations besides.
//!
//! Why not candle's own operations? candle computes the backward pass of a convolution as a
//! transposed convolution made of dot products. It computes the gradient of images even if nothing
//! uses it, and its bias gradients are scalar sums. Its max-pool backward scales the gradient by
//! `1/k^2`, and its relu passes the gradient at exactly 0. For every tie and edge case of finite
//! numbers, the reference here is PyTorch.
//!
//! In candle-nn, `LayerNorm`, `RmsNorm` and `ops::softmax_last_dim` have no backward, and
//! `BatchNorm` and `loss::cross_entropy` are graphs of many operations. Nothing of them is used
//! here.
//!
//! # candle's operations between these
//!
//! A network may mix the operations of this module with candle's in any way. Some of candle's are dear
//! in a training graph, because their backward clears a tensor, adds to it, pads, or adds number by
//! number:
//!
//! | candle | instead | the step with candle's takes |
//! |---|---|---|
//! | `broadcast_add` | [`add`], or a bias of [`linear`] | 2.9 to 7.0 times as long |
//! | `broadcast_mul` | [`mul`] | 4.5 to 6.3 times as long |
//! | `narrow`, `chunk` | [`split`], [`narrow`] | 1.36 times as long before one of candle's |
//! | `transpose`, `permute` of the last dimension | [`transpose`], [`permute`] | 2.1 times as long before one of candle's |
//! | `affine`, `xs * 0.5` | [`scale`] | 1.6 to 2.2 times as long |
//! | `where_cond` with a constant | [`masked_fill`] | 1.03 to 1.16 times as long |
//! | `Tensor::cat` | [`cat`] | 0.95 to 1.22 times as long |
//!
//! The figures are those of `benches/between.rs`, whose steps have a fused operation before and after the
//! one that is replaced (docs/log/2026-11-23-candle-operations.md). Two things cost nothing in the
//! backward pass on the CPU: candle's views of a result (`narrow`, `chunk`, `transpose`, `permute`,
//! `reshape`, `squeeze`) where the next operation is one of this module in f32 or f64, and `reshape`
//! of a contiguous tensor there.
//! Between one of ours and one of candle's, a view costs what candle spends on it. [`profile`] shows
//! the time of candle's operations in the backward pass.
//!
//! Of these replacements only [`add`] of equal shapes has a kernel on a GPU. The others run there as
//! candle's operations. In f16 and bf16 on the CPU, each of them converts its inputs to f32 and its result
//! back, and views are candle's own.
//!
//! Every operation of this module follows these rules:
//!
//! - Kernels run on the CPU, in f32, the fast type, and in f64, which gradient checks need. f16 and
//!   bf16 are converted to f32 for the kernel, and its result is rounded. Any other dtype on the CPU
//!   is [`candle_core::Error::UnsupportedDTypeForOp`].
//! - Products of f32 numbers on the CPU are computed in f32, or with factors in bf16 after
//!   [`set_product_precision`].
//! - On a GPU, kernels compute f32, f16 and bf16. Sums and functions are computed in f32.
//! - On a device or in a dtype without kernels, and on every device within [`with_composites`], the
//!   composite computes the operation, in each floating-point type that candle supports there. Its
//!   result is the kernel's result up to rounding, and parameters report their gradients in the same
//!   way.
//! - NaN and infinities: activations, poolings, sums and the softmax give PyTorch's results. A kernel of
//!   another operation may give NaN where PyTorch gives an infinity: a convolution by tiles of an infinite
//!   input, a normalisation with an infinite weight or bias (there also the reverse). In a causal
//!   [`attention`], a number of a hidden key that is not finite does not reach the result, whereas PyTorch's
//!   plain sums make it NaN; a NaN of a query also reaches the gradients of up to 15 keys that are hidden
//!   from it. In the cross entropies a class of weight 0 does not count, whatever its logit is. A NaN that
//!   reaches the loss or a gradient ends a training step of a `DistOpt` with an error.
//! - Inputs may be views. The operation makes them contiguous first.
//! - The gradient of a view of a result, or of a [`narrow`] or [`split`] of it, is written to its places
//!   only. Elements that no operation uses have the gradient 0.
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
mod attention;
mod attention_pool;
mod batch_norm2d;
mod broadcast;
mod cat;
mod conv1d;
mod conv2d;
mod conv_transpose2d;
mod cosine;
mod cross_entropy;
mod ctc;
mod dropout;
mod element_losses;
mod embedding;
mod feed_forward;
mod gpu;
mod group_norm;
mod gru;
mod last_step;
mod lengths;
mod linear;
mod linear_add;
mod linear_cross_entropy;
mod linear_lora;
mod linear_quantized;
mod local_response_norm;
mod lstm;
mod masked_fill;
mod mul;
mod narrow;
mod nll;
mod permute;
mod pool2d;
mod recurrent;
mod rnn;
mod row_norm;
mod scale;
mod silu_mul;
mod sizes;
mod softmax;
mod swiglu;
mod unfold;

pub use activations::{gelu, gelu_tanh, relu, relu6, sigmoid, silu, tanh};
pub use add::add;
pub use attention::{AttentionConfig, Rotary, RotaryScaling, attention, cross_attention};
pub use attention_pool::attention_pool;
pub(crate) use batch_norm2d::normalise;
pub use batch_norm2d::{
    BatchNorm, BatchNormConfig, RunningStatistics, batch_norm2d, batch_norm2d_add,
    batch_norm2d_conv2d, sync_batch_norm2d,
};
pub use cat::cat;
pub use conv_transpose2d::{ConvTranspose2dConfig, conv_transpose2d};
pub use conv1d::{Conv1dConfig, conv1d};
pub use conv2d::{Conv2dConfig, conv2d};
pub use cosine::cosine_similarity;
pub use cross_entropy::{CrossEntropyConfig, softmax_cross_entropy, softmax_cross_entropy_with};
pub use ctc::{CtcConfig, ctc_loss};
pub use dropout::dropout;
pub use element_losses::{
    Reduction, bce_with_logits_loss, cosine_embedding_loss, huber_loss, l1_loss, mse_loss,
    smooth_l1_loss,
};
pub use embedding::embedding;
pub use embedding::positions::embedding_with_positions;
pub use feed_forward::{HiddenUnits, feed_forward};

pub use crate::autograd::fused::with_composites;
pub use crate::autograd::profile;
pub use crate::kernels::matmul::with_independent_rows;
pub use crate::kernels::product_precision::{
    ProductPrecision, bf16_instructions, product_precision, set_product_precision,
};
pub use group_norm::group_norm;
pub use gru::{gru, gru_with};
pub use last_step::last_step;
pub use lengths::sequence_lengths;
pub use linear::linear;
pub use linear_add::linear_add;
pub use linear_cross_entropy::linear_cross_entropy;
pub(crate) use linear_lora::{BaseWeight, linear_lora};
pub use linear_quantized::linear_quantized;
pub use local_response_norm::{LocalResponseNormConfig, local_response_norm};
pub use lstm::{lstm, lstm_with};
pub use masked_fill::masked_fill;
pub use mul::mul;
pub use narrow::{narrow, split};
pub use nll::nll_loss;
pub use permute::{permute, transpose};
pub use pool2d::Pool2dConfig;
pub use pool2d::adaptive_avg::adaptive_avg_pool2d;
pub use pool2d::avg::{avg_pool2d, global_avg_pool2d};
pub use pool2d::max::max_pool2d;
pub use recurrent::{RecurrentWeights, SequenceSteps, final_state};
pub use rnn::rnn;
pub use row_norm::{layer_norm, rms_norm};
pub use scale::scale;
pub use silu_mul::silu_mul;
pub(crate) use sizes::{rows_and_last, sizes};
pub use softmax::{log_softmax, softmax};
pub use swiglu::swiglu;
