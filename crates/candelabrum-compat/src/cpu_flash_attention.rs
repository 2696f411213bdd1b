//! The older name of [`attention::flash_attn`](crate::attention::flash_attn).

use candle_core::{Result, Tensor, WithDType};
use num_traits::Float;

use crate::attention::{AttnMask, flash_attn};

/// [`flash_attn`] with a mask as a tensor.
///
/// # Errors
/// Those of [`flash_attn`].
pub fn run_flash_attn_cpu<T: WithDType + Float + 'static>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    softmax_scale: f32,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let mask = mask.map_or(AttnMask::None, |mask| AttnMask::Mask(mask.clone()));
    flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
}
