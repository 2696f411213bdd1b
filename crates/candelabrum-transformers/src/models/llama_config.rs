//! The sizes and variants of the Llama family.

use candelabrum_nn::ops::{AttentionConfig, Rotary};

use crate::config::Config;
use crate::error::Result;

/// What a `config.json` of the Llama family says.
#[derive(Clone, Debug)]
pub(super) struct LlamaConfig {
    pub(super) vocabulary: usize,
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) eps: f64,
    rotary: Rotary,
    /// The factor of the scores beside `1 / sqrt(head_dim)`.
    temperature: f64,
    pub(super) tied: bool,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether queries and keys are normalised, each head for itself.
    pub(super) head_norms: bool,
    /// For each layer, the number of keys that a query sees, if they are limited.
    pub(super) windows: Vec<Option<usize>>,
}

impl LlamaConfig {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let family = config.model_type()?.to_owned();
        let width = config.needed("hidden_size")?;
        let heads = config.needed("num_attention_heads")?;
        let kv_heads = config.size("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let what = format!("has {kv_heads} heads of keys, which do not divide {heads} heads");
            return Err(config.fault(what));
        }
        let head_dim = match config.size("head_dim")? {
            Some(dim) if dim > 0 => dim,
            _ => width / config.heads("num_attention_heads", width)?,
        };
        if !matches!(config.text("hidden_act")?, None | Some("silu" | "swish")) {
            return Err(config.fault("has a hidden_act that is not silu".to_owned()));
        }
        let (rotary, temperature) = config.rotary()?;
        let bias = config.flag("attention_bias")?.unwrap_or(false);
        let layers = config.needed("num_hidden_layers")?;
        Ok(Self {
            vocabulary: config.needed("vocab_size")?,
            width,
            hidden: config.needed("intermediate_size")?,
            layers,
            heads,
            kv_heads,
            head_dim,
            eps: config.real("rms_norm_eps")?.unwrap_or(1e-6),
            rotary,
            temperature,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: bias || family == "qwen2",
            out_bias: bias && family != "qwen2",
            mlp_bias: config.flag("mlp_bias")?.unwrap_or(false),
            head_norms: family == "qwen3",
            windows: windows(config, &family, layers)?,
        })
    }

    pub(super) fn attention(&self) -> AttentionConfig {
        AttentionConfig {
            heads: self.heads,
            kv_heads: self.kv_heads,
            causal: true,
            rotary: Some(self.rotary),
            scale: Some(self.temperature / (self.head_dim as f64).sqrt()),
        }
    }
}

/// The window of each layer.
fn windows(config: &Config, family: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    // Llama has no windows, and Qwen's are off unless it says so.
    let uses = match family {
        "mistral" => true,
        "qwen2" | "qwen3" => config.flag("use_sliding_window")?.unwrap_or(false),
        _ => false,
    };
    let Some(window) = config.size("sliding_window")?.filter(|_| uses) else {
        return Ok(vec![None; layers]);
    };
    if window == 0 {
        return Err(config.fault("has sliding_window = 0".to_owned()));
    }
    let Some(types) = config.get("layer_types").and_then(serde_json::Value::as_array) else {
        // The first layers of a Qwen see all keys.
        let whole =
            if family == "mistral" { 0 } else { config.size("max_window_layers")?.unwrap_or(0) };
        return Ok((0..layers).map(|layer| (layer >= whole).then_some(window)).collect());
    };
    if types.len() != layers {
        return Err(config.fault(format!("has {} layer_types for {layers} layers", types.len())));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => Ok(Some(window)),
            _ => Err(config.fault(format!("has the layer type {kind}, which is not supported"))),
        })
        .collect()
}
