//! GPT in candle.
//!
//! candle-nn's fused layer norm and softmax have no backward. Its layer norm without a bias consists of
//! differentiable operations, and so does its `softmax`.

use candelabrum::models::GptConfig;
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::ops::softmax;
use candle_nn::{Embedding, Func, Init, Linear, VarBuilder, func, layer_norm_no_bias, linear};

pub(crate) fn gpt(vb: &VarBuilder<'_>, config: GptConfig) -> Result<Func<'static>> {
    let GptConfig { vocabulary, context, layers, width, heads, .. } = config;
    let init = Init::Randn { mean: 0.0, stdev: 0.02 };
    let tokens = vb.get_with_hints((vocabulary, width), "tokens", init)?;
    let positions = vb.get_with_hints((context, width), "positions", init)?;
    let mask = causal_mask(context)?;
    let block = |index| block(width, heads, &mask, &vb.pp("blocks").pp(index));
    let blocks: Vec<_> = (0..layers).map(block).collect::<Result<_>>()?;
    let norm = layer_norm(width, &vb.pp("norm"))?;
    let (embedding, head) = (Embedding::new(tokens.clone(), width), Linear::new(tokens, None));
    Ok(func(move |xs| {
        let ys = embedding.forward(xs)?.broadcast_add(&positions.narrow(0, 0, xs.dim(1)?)?)?;
        let ys = blocks.iter().try_fold(ys, |ys, block| block.forward(&ys))?;
        head.forward(&norm.forward(&ys)?)
    }))
}

fn block(width: usize, heads: usize, mask: &Tensor, vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let norm1 = layer_norm(width, &vb.pp("norm1"))?;
    let qkv = linear(width, 3 * width, vb.pp("attention").pp("qkv"))?;
    let out = linear(width, width, vb.pp("attention").pp("out"))?;
    let norm2 = layer_norm(width, &vb.pp("norm2"))?;
    let up = linear(width, 4 * width, vb.pp("up"))?;
    let down = linear(4 * width, width, vb.pp("down"))?;
    let mask = mask.clone();
    Ok(func(move |xs| {
        let ys = attention(&qkv.forward(&norm1.forward(xs)?)?, heads, &mask)?;
        let xs = (xs + out.forward(&ys)?)?;
        let ys = down.forward(&up.forward(&norm2.forward(&xs)?)?.gelu_erf()?)?;
        xs + ys
    }))
}

/// Queries, keys and values side by side, `(N, T, 3 C)`, become `(N, T, C)`.
fn attention(qkv: &Tensor, heads: usize, mask: &Tensor) -> Result<Tensor> {
    let (count, length, features) = qkv.dims3()?;
    let size = features / 3 / heads;
    let part = |index| {
        let part = qkv.narrow(D::Minus1, index * heads * size, heads * size)?;
        // (N, T, C) -> (N, heads, T, C / heads)
        part.reshape((count, length, heads, size))?.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = (part(0)?, part(1)?, part(2)?);
    let scores = (q * (size as f64).powf(-0.5))?.matmul(&k.t()?)?;
    let mask = mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
    let weights = softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
    weights.matmul(&v)?.transpose(1, 2)?.reshape((count, length, heads * size))
}

/// Zero, and minus infinity where a key is behind its query, `(length, length)`.
fn causal_mask(length: usize) -> Result<Tensor> {
    let score = |i| if i % length > i / length { f32::NEG_INFINITY } else { 0.0 };
    let scores: Vec<f32> = (0..length * length).map(score).collect();
    Tensor::from_vec(scores, (length, length), &Device::Cpu)
}

fn layer_norm(width: usize, vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let norm = layer_norm_no_bias(width, 1e-5, vb.clone())?;
    let bias = vb.get_with_hints(width, "bias", Init::Const(0.0))?;
    Ok(func(move |xs| norm.forward(xs)?.broadcast_add(&bias)))
}
