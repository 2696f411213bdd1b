// A decoder as a program of candle has it. Which crate `nn` is, the module that includes this file says.

use candle_core::{D, Module, Result, Tensor};
use nn::{Embedding, Linear, RmsNorm, VarBuilder, embedding, linear_no_bias, ops, rms_norm, rotary_emb};

const WIDTH: usize = 16;
const HEADS: usize = 2;

pub(super) struct Decoder {
    tokens: Embedding,
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    norm: RmsNorm,
    head: Linear,
}

impl Decoder {
    pub(super) fn new(vocabulary: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let square = |name: &str| linear_no_bias(WIDTH, WIDTH, vb.pp(name));
        Ok(Self {
            tokens: embedding(vocabulary, WIDTH, vb.pp("tokens"))?,
            attention_norm: rms_norm(WIDTH, 1e-5, vb.pp("attention_norm"))?,
            query: square("query")?,
            key: square("key")?,
            value: square("value")?,
            output: square("output")?,
            gate: linear_no_bias(WIDTH, 2 * WIDTH, vb.pp("gate"))?,
            up: linear_no_bias(WIDTH, 2 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(2 * WIDTH, WIDTH, vb.pp("down"))?,
            norm: rms_norm(WIDTH, 1e-5, vb.pp("norm"))?,
            head: linear_no_bias(WIDTH, vocabulary, vb.pp("head"))?,
        })
    }

    /// (batch, steps) -> (batch, steps, vocabulary)
    pub(super) fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let xs = self.tokens.forward(tokens)?;
        let xs = (&xs + self.attend(&self.attention_norm.forward(&xs)?)?)?;
        let ys = self.norm.forward(&xs)?;
        let ys = (ops::silu(&self.gate.forward(&ys)?)? * self.up.forward(&ys)?)?;
        self.head.forward(&(xs + self.down.forward(&ys)?)?)
    }

    fn attend(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, steps, _) = xs.dims3()?;
        let heads = |layer: &Linear| -> Result<Tensor> {
            let ys = layer.forward(xs)?.reshape((batch, steps, HEADS, WIDTH / HEADS))?;
            ys.transpose(1, 2)?.contiguous()
        };
        let width = WIDTH / HEADS / 2;
        let places = Tensor::arange(0_f32, steps as f32, xs.device())?.reshape((steps, 1))?;
        let rates = Tensor::arange(0_f32, width as f32, xs.device())?.reshape((1, width))?;
        let angles = places.broadcast_mul(&(rates * -1.0)?.exp()?)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let query = rotary_emb::rope(&heads(&self.query)?, &cos, &sin)?;
        let key = rotary_emb::rope(&heads(&self.key)?, &cos, &sin)?;
        let scores = (query.matmul(&key.t()?)? / ((WIDTH / HEADS) as f64).sqrt())?;
        let future: Vec<f32> = (0..steps * steps)
            .map(|at| if at % steps > at / steps { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let scores = scores.broadcast_add(&Tensor::from_vec(future, (steps, steps), xs.device())?)?;
        let ys = ops::softmax_last_dim(&scores)?.matmul(&heads(&self.value)?)?;
        let ys = ys.transpose(1, 2)?.flatten_from(D::Minus2)?;
        self.output.forward(&ys)
    }
}
