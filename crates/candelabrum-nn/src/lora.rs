//! Low-rank adapters: LoRA (Hu et al., arXiv:2106.09685) and DoRA (Liu et al., arXiv:2402.09353).
//!
//! ```text
//! LoRA   y = x W^T + b + s (drop(x) A^T) B^T                      s = alpha / rank
//! DoRA   y = (m / |W + s B A|) (x W^T + s (x A^T) B^T) + b        |..| is the norm of each row, without a gradient
//! ```
//!
//! `W` (outputs, inputs) is frozen, `A` (rank, inputs) and `B` (outputs, rank) are trained. `B` starts at zero, so a
//! new adapter changes nothing. The names of the parameters are those of Python's `peft`.

use std::sync::Arc;

use candle_core::{DType, Module, Result as CandleResult, Tensor};
use parking_lot::Mutex;

use crate::autograd::fused::widen;
use crate::layers::Dropout;
use crate::ops::BaseWeight;
use crate::params::{Adapter, WeightMatrix, layer_of};
use crate::{Error, Init, Param, Params, Result, Weight, ops};

/// Which layers get an adapter, and of which kind.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The rank of the matrices that are added: the rows of `A`.
    pub rank: usize,
    /// The adapter's result is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// The probability of dropout of the adapter's input in training.
    pub dropout: f32,
    /// The layers: a pattern is the end of a layer's name from a dot on, as `q_proj` for
    /// `model.layers.0.self_attn.q_proj`, or the whole name. `*` stands for any characters. `all-linear` stands for all
    /// linear layers but the [output layer](crate::layers::Linear::output) and those that [`trained`](Self::trained)
    /// names. Embeddings get no adapters.
    pub targets: Vec<String>,
    /// The layers that are trained as a whole beside the adapters, by patterns: a new head of a classifier, for
    /// instance. Hugging Face's `modules_to_save`.
    pub trained: Vec<String>,
    /// Whether the adapter also learns the norm of each row of the weight: DoRA.
    pub dora: bool,
}

impl Default for LoraConfig {
    /// Rank 8 and alpha 16 without dropout, in all linear layers.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            dropout: 0.0,
            targets: vec![ALL_LINEAR.to_owned()],
            trained: Vec::new(),
            dora: false,
        }
    }
}

/// The pattern of all linear layers.
const ALL_LINEAR: &str = "all-linear";

impl LoraConfig {
    fn check(&self) -> Result<()> {
        let Self { rank, alpha, dropout, dora, targets, .. } = self;
        let fault = if *rank == 0 {
            "a rank of 0, which adds nothing".to_owned()
        } else if !(alpha.is_finite() && *alpha > 0.0) {
            format!("an alpha of {alpha}, which is not a positive number")
        } else if !(0.0..1.0).contains(dropout) {
            format!("a dropout of {dropout}, which is not from 0 to below 1")
        } else if *dora && *dropout != 0.0 {
            "DoRA with dropout: set one of them to none".to_owned()
        } else if targets.is_empty() {
            format!("no layers: name them, or take {ALL_LINEAR:?}")
        } else {
            return Ok(());
        };
        Err(Error::Lora { what: fault })
    }

    fn is_target(&self, weight: &Weight) -> bool {
        let named = |pattern: &String| is_layer(weight.layer(), pattern);
        let all = self.targets.iter().any(|pattern| pattern == ALL_LINEAR) && !weight.is_output;
        self.targets.iter().any(named) || all && !self.trained.iter().any(named)
    }
}

/// Whether `pattern` names the layer: its whole name, or the end of the name from a dot on.
fn is_layer(layer: &str, pattern: &str) -> bool {
    let ends = layer.match_indices('.').map(|(place, _)| &layer[place + 1..]);
    std::iter::once(layer).chain(ends).any(|name| fits(name, pattern))
}

/// Whether `name` is `pattern`, where `*` stands for any characters.
fn fits(name: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(name) = name.strip_prefix(start) else { return false };
    let places = name.char_indices().map(|(place, _)| place).chain([name.len()]);
    places.into_iter().any(|place| fits(&name[place..], rest))
}

/// The layers that have adapters.
#[derive(Clone, Debug)]
pub struct LoraLayers {
    config: LoraConfig,
    adapters: Vec<(Weight, Arc<LoraAdapter>)>,
    /// The parameters of all adapters, and those that are trained beside them.
    trained: Vec<Param>,
}

impl LoraLayers {
    /// Attaches new adapters to the layers of `params` that `config` names, and [freezes](Param::freeze) all other
    /// parameters. The model must have created its parameters: see [`Model::compile`](crate::Model::compile). Call this
    /// function before the first step of an optimizer, on all ranks.
    ///
    /// The parameters of an adapter are `lora_A.weight` `(rank, inputs)` and `lora_B.weight` `(outputs, rank)` below
    /// the layer's name, and with DoRA `lora_magnitude_vector` `(outputs)`.
    ///
    /// # Errors
    /// [`Error::Lora`] for a meaningless configuration, a pattern that no layer has, a model that has adapters, a layer that
    /// would get one and be trained as a whole, and for parameters that the model's files do not have and that would be
    /// frozen.
    pub fn attach(params: &Params, config: &LoraConfig) -> Result<Self> {
        config.check()?;
        let all = params.weights();
        let patterns = config.targets.iter().filter(|pattern| *pattern != ALL_LINEAR);
        for pattern in patterns.chain(&config.trained) {
            let has = |name: &str| is_layer(layer_of(name), pattern);
            let trains = config.trained.contains(pattern)
                && params.list().iter().any(|param| has(param.name()));
            if !trains && !all.iter().any(|weight| has(weight.name())) {
                let names = all.iter().map(Weight::layer).take(8).collect::<Vec<_>>().join(", ");
                let what = format!(
                    "the pattern {pattern:?}, which no linear layer has; there are {names}, .."
                );
                return Err(Error::Lora { what });
            }
        }
        if let Some(weight) = all.iter().find(|weight| weight.has_adapter()) {
            let what = format!(
                "a second set of adapters, which would freeze those of the first one: `{}` has one",
                weight.layer()
            );
            return Err(Error::Lora { what });
        }
        let weights: Vec<Weight> =
            all.into_iter().filter(|weight| config.is_target(weight)).collect();
        let is_trained =
            |layer: &str| config.trained.iter().any(|pattern| is_layer(layer, pattern));
        if let Some(weight) = weights.iter().find(|weight| is_trained(weight.layer())) {
            let layer = weight.layer();
            let what = format!("`{layer}` both among its targets and trained as a whole");
            return Err(Error::Lora { what });
        }
        let is_lost = |param: &&Param| param.is_drawn() && !is_trained(layer_of(param.name()));
        if let Some(param) = params.list().iter().find(is_lost) {
            let name = param.name();
            let what = format!(
                "`{name}` frozen: the model's files do not have it, so its numbers are random; name the layer `{}` in \
                 `trained`, or open files that have it",
                layer_of(name)
            );
            return Err(Error::Lora { what });
        }
        params.freeze(|name| !is_trained(layer_of(name)));
        let mut adapters = Vec::new();
        for weight in weights {
            let adapter = Arc::new(LoraAdapter::new(params, &weight, config)?);
            weight.set_adapter(adapter.clone());
            adapters.push((weight, adapter));
        }
        Ok(Self { config: config.clone(), adapters, trained: params.trainable() })
    }

    /// How the adapters were made.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// What is trained: the parameters of the adapters, and of the layers that are trained as a whole.
    pub fn trained(&self) -> &[Param] {
        &self.trained
    }

    /// The names of the layers with an adapter.
    pub fn names(&self) -> Vec<&str> {
        self.adapters.iter().map(|(weight, _)| weight.layer()).collect()
    }

    /// Adds the adapters to the weights, so that the layers compute as fast as without adapters. The model's results
    /// stay the same up to rounding. A copy of the weights is kept for [`unmerge`](Self::unmerge). Until then nothing
    /// trains the adapters: a step is an error. Where ranks keep shards of the weights, all ranks call it together, and
    /// [`unmerge`](Self::unmerge) too.
    ///
    /// # Errors
    /// [`Error::Lora`] for a quantised weight, to which nothing can be added.
    pub fn merge(&self) -> Result<()> {
        let mut weights = self.adapters.iter().map(|(weight, _)| weight);
        if let Some(weight) = weights.find(|weight| weight.quantized().is_some()) {
            let what = format!(
                "a merge into `{}`, whose weight is quantised: load the model dequantised",
                weight.layer()
            );
            return Err(Error::Lora { what });
        }
        for (weight, adapter) in &self.adapters {
            adapter.merge(weight)?;
        }
        Ok(())
    }

    /// Undoes [`merge`](Self::merge): the weights have the bits that they had before.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn unmerge(&self) -> Result<()> {
        for (weight, adapter) in &self.adapters {
            adapter.unmerge(weight)?;
        }
        Ok(())
    }
}

/// The adapter of a weight.
#[derive(Debug)]
struct LoraAdapter {
    a: Param,
    b: Param,
    magnitude: Option<Param>,
    scale: f64,
    dropout: Option<Dropout>,
    before_merge: Mutex<Option<BeforeMerge>>,
}

/// The weight before the merge, while the adapter is merged.
#[derive(Debug)]
struct BeforeMerge {
    values: Tensor,
    /// Whether the weight had the values of the model's files. Then the weight is constant again after the merge is undone.
    is_constant: bool,
}

impl LoraAdapter {
    fn new(params: &Params, weight: &Weight, config: &LoraConfig) -> Result<Self> {
        let (outputs, inputs) = weight.dims();
        let scope = params.root().pp(weight.layer());
        // PyTorch's `kaiming_uniform_(a=sqrt(5))`, as in `peft`.
        let bound = 1.0 / (inputs as f64).sqrt();
        let init = Init::Uniform { low: -bound, high: bound };
        let a = scope.pp("lora_A").param("weight", (config.rank, inputs), init)?;
        let b = scope.pp("lora_B").param("weight", (outputs, config.rank), Init::ZEROS)?;
        let dropout = (config.dropout != 0.0)
            .then(|| Dropout::new(&scope.pp("lora_dropout"), config.dropout));
        let magnitude = || scope.param("lora_magnitude_vector", outputs, Init::Const(1.0));
        let magnitude = config.dora.then(magnitude).transpose()?;
        let scale = config.alpha / config.rank as f64;
        let before_merge = Mutex::default();
        let adapter = Self { a, b, magnitude, scale, dropout, before_merge };
        if let Some(magnitude) = &adapter.magnitude {
            let norms = adapter.norms(weight)?.to_dtype(magnitude.var().dtype())?;
            magnitude.set(&norms)?;
        }
        Ok(adapter)
    }

    /// The norm of each row of the weight with the adapter, `(outputs)`, without a gradient.
    fn norms(&self, weight: &Weight) -> CandleResult<Tensor> {
        norms(&self.sum(weight)?)
    }

    /// `W + s B A` in f32 or f64, outside of the graph.
    fn sum(&self, weight: &Weight) -> CandleResult<Tensor> {
        let base = match &weight.matrix {
            WeightMatrix::Param(param) => wide(param)?,
            WeightMatrix::Quantized(matrix) => {
                matrix.dequantize(DType::F32, self.a.var().device())?
            }
        };
        let change = wide(&self.b)?.matmul(&wide(&self.a)?)?;
        base + (change * self.scale)?
    }

    fn merge(&self, weight: &Weight) -> CandleResult<()> {
        let WeightMatrix::Param(param) = &weight.matrix else { return Ok(()) };
        let mut before = self.before_merge.lock();
        if before.is_some() {
            return Ok(());
        }
        let mut merged = self.sum(weight)?;
        if let Some(magnitude) = &self.magnitude {
            let factors = (wide(magnitude)? / norms(&merged)?)?.unsqueeze(1)?;
            merged = merged.broadcast_mul(&factors)?;
        }
        let values = param.var().as_detached_tensor().copy()?;
        let is_constant = param.is_constant();
        param.set(&merged.to_dtype(param.dtype())?)?;
        *before = Some(BeforeMerge { values, is_constant });
        self.note_merged(param, true);
        Ok(())
    }

    fn unmerge(&self, weight: &Weight) -> CandleResult<()> {
        let Some(before) = self.before_merge.lock().take() else { return Ok(()) };
        let WeightMatrix::Param(param) = &weight.matrix else { return Ok(()) };
        self.note_merged(param, false);
        param.set(&before.values)?;
        if before.is_constant {
            param.note_pretrained();
        }
        Ok(())
    }

    fn note_merged(&self, weight: &Param, merged: bool) {
        let own = [weight, &self.a, &self.b].into_iter().chain(&self.magnitude);
        own.for_each(|param| param.note_merged(merged));
    }
}

impl Adapter for LoraAdapter {
    fn is_merged(&self) -> bool {
        self.before_merge.lock().is_some()
    }

    fn product(
        &self,
        weight: &Weight,
        xs: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> CandleResult<Tensor> {
        let drops = self.dropout.as_ref().is_some_and(Dropout::is_active);
        if !drops && self.magnitude.is_none() && xs.device().is_cpu() {
            let base = match &weight.matrix {
                WeightMatrix::Param(param) => BaseWeight::Dense(param.tensor()),
                WeightMatrix::Quantized(matrix) => BaseWeight::Quantized(matrix),
            };
            let adapter = ([self.a.tensor(), self.b.tensor()], self.scale);
            return ops::linear_lora(xs, base, bias, adapter, residual);
        }
        let dropped = self.dropout.as_ref().map(|dropout| dropout.forward(xs)).transpose()?;
        let inner = ops::linear(dropped.as_ref().unwrap_or(xs), self.a.tensor(), None, None)?;
        let inner = ops::scale(&inner, self.scale)?;
        // DoRA scales the rows of the weight, and not those of the bias.
        let below = if self.magnitude.is_some() { None } else { bias };
        let ys = weight.product_alone(xs, below)?;
        let mut ys = ops::linear_add(&inner, self.b.tensor(), None, &ys)?;
        if let Some(magnitude) = &self.magnitude {
            let norms = self.norms(weight)?.to_dtype(ys.dtype())?;
            ys = ops::mul(&ys, &ops::mul(&norms.recip()?, magnitude.tensor())?)?;
            if let Some(bias) = bias {
                ys = ops::add(&ys, bias, None)?;
            }
        }
        if let Some(residual) = residual { ops::add(&ys, residual, None) } else { Ok(ys) }
    }
}

/// The norm of each row.
fn norms(matrix: &Tensor) -> CandleResult<Tensor> {
    matrix.sqr()?.sum(1)?.sqrt()
}

/// The values of a parameter in f32 or f64, outside of the graph.
fn wide(param: &Param) -> CandleResult<Tensor> {
    param.gather()?;
    widen(&param.var().as_detached_tensor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_end_of_a_name_from_a_dot_on() {
        let layer = "model.layers.3.self_attn.q_proj";
        for pattern in ["q_proj", "self_attn.q_proj", layer, "*_proj", "layers.*.q_proj", "*"] {
            assert!(is_layer(layer, pattern), "{pattern}");
        }
        for pattern in ["proj", "q_pro", "k_proj", "layers.4.*", "self_attn", ""] {
            assert!(!is_layer(layer, pattern), "{pattern}");
        }
    }
}
