//! What the families have in common: masks and positions of their tokens, and new layers.

use candelabrum_nn::layers::{Dropout, Linear};
use candelabrum_nn::{Init, Scope, ops};
use candle_core::{DType, Module, Result, Tensor};

use crate::config::Config;

/// The number of the token with which texts of an encoder are padded. `None` for a model of another kind.
pub(crate) fn pad_token_id(config: &Config) -> crate::Result<Option<usize>> {
    let default = match config.text("model_type")? {
        Some("bert" | "distilbert") => 0,
        Some("roberta") => 1,
        _ => return Ok(None),
    };
    Ok(Some(config.size("pad_token_id")?.unwrap_or(default)))
}

/// The distribution of the weights that no file has: Hugging Face's `initializer_range`.
pub(super) fn new_layer_init() -> Init {
    Init::Normal { std: 0.02 }
}

/// A linear layer `name`, whose weight has the [distribution](new_layer_init) of new layers where a file has none.
pub(super) fn linear(scope: &Scope, name: &str, outputs: usize, bias: bool) -> Linear {
    let layer = Linear::new(&scope.pp(name), outputs).init(new_layer_init());
    if bias { layer } else { layer.no_bias() }
}

/// The end of a residual branch: `residual + dropout(layer(xs))`, in one operation if nothing is dropped.
pub(super) fn add_to_residual(
    layer: &Linear,
    dropout: Option<&Dropout>,
    xs: &Tensor,
    residual: &Tensor,
) -> Result<Tensor> {
    match dropout {
        None => layer.forward_add(xs, residual),
        Some(dropout) => ops::add(&dropout.forward(&layer.forward(xs)?)?, residual, None),
    }
}

/// A mask `(Tq, Tk)` that hides the keys `window` and more positions before each query. `None` where no key is so far
/// away. The last query is at the position of the last key.
pub(super) fn causal_window(q: &Tensor, k: &Tensor, window: usize) -> Result<Option<Tensor>> {
    let (queries, keys) = (q.dim(1)?, k.dim(1)?);
    if keys <= window {
        return Ok(None);
    }
    let shift = keys - queries;
    let hides = (0..queries).flat_map(|query| {
        (0..keys)
            .map(move |key| if key + window <= query + shift { f32::NEG_INFINITY } else { 0.0 })
    });
    let mask = Tensor::from_iter(hides, q.device())?.reshape((queries, keys))?;
    mask.to_dtype(q.dtype()).map(Some)
}

/// 1 for the tokens (N, T) of a text, and 0 for the padding, which is the run of `padding` at the end: a text may have this
/// token, too. A row of nothing else is a text.
pub(super) fn is_token(tokens: &Tensor, padding: u32) -> Result<Tensor> {
    let other = tokens.ne(padding)?.to_dtype(DType::F32)?;
    let before = (other.cumsum(1)? - &other)?;
    other.sum_keepdim(1)?.clamp(1.0, f64::MAX)?.broadcast_gt(&before)
}

/// A mask `(N, 1, 1, T)` that hides the padding behind `tokens` (N, T). `None` if the host knows that there is none.
pub(super) fn padding_mask(tokens: &Tensor, padding: u32, dtype: DType) -> Result<Option<Tensor>> {
    let is_padding = is_token(tokens, padding)?.eq(0_u8)?;
    if tokens.device().is_cpu() && is_padding.flatten_all()?.max(0)?.to_scalar::<u8>()? == 0 {
        return Ok(None);
    }
    let zeros = Tensor::zeros(tokens.shape(), dtype, tokens.device())?;
    let hidden =
        Tensor::full(f32::NEG_INFINITY, tokens.shape(), tokens.device())?.to_dtype(dtype)?;
    is_padding.where_cond(&hidden, &zeros)?.unsqueeze(1)?.unsqueeze(1).map(Some)
}

/// RoBERTa's positions (N, T): those of the tokens count from `padding + 1` on, and that of the padding is `padding`.
pub(super) fn positions_behind_padding(tokens: &Tensor, padding: u32) -> Result<Tensor> {
    let is_token = tokens.ne(padding)?.to_dtype(DType::F32)?;
    let counted = (is_token.cumsum(1)? * &is_token)?;
    (counted + f64::from(padding))?.to_dtype(DType::U32)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn positions_and_masks_know_the_padding() -> Result<()> {
        let tokens = Tensor::new(&[[5_u32, 7, 1, 1], [5, 6, 7, 8]], &Device::Cpu)?;
        let positions = positions_behind_padding(&tokens, 1)?.to_vec2::<u32>()?;
        assert_eq!(positions, [[2, 3, 1, 1], [2, 3, 4, 5]]);
        let mask = padding_mask(&tokens, 1, DType::F32)?.expect("there is padding");
        assert_eq!(mask.dims(), [2, 1, 1, 4]);
        let hidden = f32::NEG_INFINITY;
        assert_eq!(mask.flatten_all()?.to_vec1::<f32>()?, [0., 0., hidden, hidden, 0., 0., 0., 0.]);
        assert!(padding_mask(&tokens, 9, DType::F32)?.is_none());
        // A text may have the token itself, and a row may be empty.
        let tokens = Tensor::new(&[[1_u32, 7, 1, 8], [5, 1, 1, 1], [1, 1, 1, 1]], &Device::Cpu)?;
        let is_token = is_token(&tokens, 1)?.to_vec2::<u8>()?;
        assert_eq!(is_token, [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]);
        Ok(())
    }
}
