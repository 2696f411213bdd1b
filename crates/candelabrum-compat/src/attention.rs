//! `candle_nn::attention`, whose kernels have no backward pass: they refuse tensors whose gradients are computed,
//! because everything before them would train without a word on a part of its gradient.

use candle_core::{Result, Tensor, WithDType, bail};
use num_traits::Float;

pub use candle_nn::attention::*;

/// Refuses inputs of a kernel without a backward pass.
pub(crate) fn refuse_gradients(kernel: &str, inputs: [&Tensor; 3]) -> Result<()> {
    if inputs.iter().any(|input| input.track_op()) {
        bail!(
            "{kernel} of candle-nn has no backward pass, so nothing before it would get a gradient: compute the attention by \
             `candelabrum::nn::ops::cross_attention` or by `matmul` and `softmax`, or give it `detach()`ed tensors where no \
             gradient is needed"
        );
    }
    Ok(())
}

/// Attention of one or several sequences, without gradients.
///
/// # Errors
/// Tensors whose gradients are computed, and those of `candle_nn`.
pub fn flash_attn<T: WithDType + Float>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    refuse_gradients("attention::flash_attn", [q, k, v])?;
    candle_nn::attention::flash_attn::<T>(q, k, v, softmax_scale, attn_mask, max_bias, softcap)
}

/// A function of packed sequences, with the arguments of candle's.
macro_rules! packed {
    ($name:ident) => {
        /// Attention of packed sequences, without gradients.
        ///
        /// # Errors
        /// Tensors whose gradients are computed, and those of `candle_nn`.
        #[expect(clippy::too_many_arguments, reason = "the signature is candle's")]
        pub fn $name(
            q: &Tensor,
            k: &Tensor,
            v: &Tensor,
            alibi_slopes: Option<&Tensor>,
            seqlens_q: &Tensor,
            seqlens_k: &Tensor,
            max_seqlen_q: usize,
            max_seqlen_k: usize,
            softmax_scale: f32,
            causal: bool,
            window_left: Option<usize>,
            window_right: Option<usize>,
        ) -> Result<Tensor> {
            refuse_gradients(concat!("attention::", stringify!($name)), [q, k, v])?;
            candle_nn::attention::$name(
                q,
                k,
                v,
                alibi_slopes,
                seqlens_q,
                seqlens_k,
                max_seqlen_q,
                max_seqlen_k,
                softmax_scale,
                causal,
                window_left,
                window_right,
            )
        }
    };
}

packed!(flash_attn_varlen_cpu);
packed!(flash_attn_varlen_unfused);
