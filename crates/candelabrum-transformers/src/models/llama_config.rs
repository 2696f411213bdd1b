//! The sizes and variants of the Llama family.

use candelabrum_nn::ops::{AttentionConfig, Rotary};

use super::rotary_config::rotary;
use crate::config::Config;
use crate::error::Result;

/// What a `config.json` of the Llama family says.
#[derive(Clone, Debug)]
pub(super) struct LlamaConfig {
    pub(super) vocabulary: usize,
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    /// The largest number of tokens of a sequence, if the config says one.
    pub(super) context: Option<usize>,
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
        let absent = match &*family {
            "mistral" => 8,
            "qwen2" | "qwen3" => 32,
            _ => heads,
        };
        let kv_heads = match config.size("num_key_value_heads")? {
            Some(count) => count,
            None if config.is_null("num_key_value_heads") => heads,
            None => absent,
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let what = format!("has {kv_heads} heads of keys, which do not divide {heads} heads");
            return Err(config.fault(what));
        }
        let head_dim = match config.size("head_dim")? {
            Some(0) => return Err(config.fault("has head_dim = 0".to_owned())),
            Some(dim) => dim,
            None if family == "qwen3" => 128,
            None => width / config.heads("num_attention_heads", width)?,
        };
        if !matches!(config.text("hidden_act")?, None | Some("silu" | "swish")) {
            return Err(config.fault("has a hidden_act that is not silu".to_owned()));
        }
        let (rotary, temperature) = rotary(config)?;
        let flag = |key: &str, families: &[&str]| match families.contains(&&*family) {
            true => config.flag(key).map(|flag| flag.unwrap_or(false)),
            false => Ok(false),
        };
        let bias = flag("attention_bias", &["llama", "qwen2", "qwen3"])?;
        let layers = config.layers("num_hidden_layers")?;
        Ok(Self {
            vocabulary: config.needed("vocab_size")?,
            width,
            hidden: config.needed("intermediate_size")?,
            layers,
            context: config.size("max_position_embeddings")?,
            heads,
            kv_heads,
            head_dim,
            eps: config.real("rms_norm_eps")?.unwrap_or(1e-6),
            rotary,
            temperature,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: bias || family == "qwen2",
            out_bias: bias && family != "qwen2",
            mlp_bias: flag("mlp_bias", &["llama"])?,
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

/// The window of each layer. A file that says nothing of windows has the defaults of transformers.
fn windows(config: &Config, family: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    let is_qwen = matches!(family, "qwen2" | "qwen3");
    if !is_qwen && family != "mistral" {
        return Ok(vec![None; layers]);
    }
    let window = match config.size("sliding_window")? {
        Some(0) => return Err(config.fault("has sliding_window = 0".to_owned())),
        Some(window) => Some(window),
        None if config.is_null("sliding_window") => None,
        None => Some(4096),
    };
    if !is_qwen {
        return Ok(vec![window; layers]);
    }
    let uses = config.flag("use_sliding_window")?.unwrap_or(false);
    let window = window.filter(|_| uses);
    // The first layers of a Qwen see all keys.
    let whole = config.size("max_window_layers")?.unwrap_or(28);
    let Some(types) = config.texts("layer_types")? else {
        return Ok((0..layers).map(|layer| window.filter(|_| layer >= whole)).collect());
    };
    if types.len() != layers {
        return Err(config.fault(format!("has {} layer_types for {layers} layers", types.len())));
    }
    let window_of = |kind: String| match (&*kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => Err(config.fault(
            "has layers of sliding_attention, and no sliding_window or use_sliding_window = false"
                .to_owned(),
        )),
        _ => Err(config.fault(format!("has the layer type {kind:?}, which is not supported"))),
    };
    types.into_iter().map(window_of).collect()
}
