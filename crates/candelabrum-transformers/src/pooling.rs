//! How the states of a text become its embedding: `modules.json` of sentence-transformers and what it names.

use candelabrum_nn::ops;
use candle_core::{Result as CandleResult, Tensor};
use serde_json::Value;

use crate::companions::{Companions, MODULES, TEXT_CONFIG};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::neutral;

/// What the library says of a text beside its modules.
pub(crate) const SENTENCE_CONFIG: &str = "config_sentence_transformers.json";

/// One way to make a vector of the states of a text's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolingMode {
    First,
    Last,
    Max,
    Mean,
    /// The sum divided by the root of the number of tokens.
    MeanSqrt,
    /// The mean with the weights 1, 2, 3 and so on.
    Weighted,
}

/// The names of the modes, and the older keys that switch them on, in the order in which several are put together.
const MODES: [(&str, &str, PoolingMode); 6] = [
    ("cls", "pooling_mode_cls_token", PoolingMode::First),
    ("max", "pooling_mode_max_tokens", PoolingMode::Max),
    ("mean", "pooling_mode_mean_tokens", PoolingMode::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrt),
    ("weightedmean", "pooling_mode_weightedmean_tokens", PoolingMode::Weighted),
    ("lasttoken", "pooling_mode_lasttoken", PoolingMode::Last),
];

/// The way from states to an embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pooling {
    modes: Vec<PoolingMode>,
    /// Whether an embedding is divided by its length.
    normalizes: bool,
    /// The largest number of tokens of a text.
    pub(crate) longest: usize,
}

impl Pooling {
    /// What the folder of a model of `width` features says, or the mean divided by its length if the folder is not one of
    /// sentence-transformers. The files of modules are added to the companions.
    ///
    /// # Errors
    /// A module or a setting that is not supported.
    pub(crate) fn from_companions(companions: &mut Companions, width: usize) -> Result<Self> {
        let mut pooling =
            Self { modes: vec![PoolingMode::Mean], normalizes: true, longest: usize::MAX };
        for name in [TEXT_CONFIG, SENTENCE_CONFIG] {
            if let Some(json) = companions.json(name)? {
                pooling.longest = json.size("max_seq_length")?.unwrap_or(pooling.longest);
                json.finish(&[neutral::SENTENCES])?;
            }
        }
        let Some(bytes) = companions.bytes(MODULES) else { return Ok(pooling) };
        let path = companions.path_of(MODULES);
        let modules: Vec<Value> = serde_json::from_slice(bytes)
            .map_err(|error| Error::file(&path, format!("is no list of modules: {error}")))?;
        pooling = Self { modes: Vec::new(), normalizes: false, ..pooling };
        for (number, module) in modules.into_iter().enumerate() {
            let module = Config::new(&path, module);
            let kind = module.needed_text("type")?;
            let folder = module.text("path")?.unwrap_or_default().to_owned();
            match (number, kind.rsplit('.').next().unwrap_or(kind)) {
                (0, "Transformer") if folder.is_empty() => {}
                (1, "Pooling") => {
                    let name = format!("{folder}/config.json");
                    companions.add(&name)?;
                    let missing = || {
                        module.fault(format!("names {name}, which is missing: download it, too"))
                    };
                    let config = companions.json(&name)?.ok_or_else(missing)?;
                    pooling.modes = modes(&config, width)?;
                }
                (2, "Normalize") => pooling.normalizes = true,
                _ => {
                    let what = format!(
                        "has the module {kind} at place {number} (folder {folder:?}): a Transformer in the folder itself, \
                         Pooling and Normalize are supported, in this order. To use the mean of the states instead, remove \
                         modules.json"
                    );
                    return Err(module.fault(what));
                }
            }
        }
        if pooling.modes.is_empty() {
            return Err(Error::file(
                path,
                "has no module Pooling: without one a text has no embedding",
            ));
        }
        Ok(pooling)
    }

    /// The embeddings of states (N, T, width), of which those with `is_token` (N, T) = 1 are of tokens, and those with 0 of
    /// padding.
    pub(crate) fn embeddings(&self, states: &Tensor, is_token: &Tensor) -> CandleResult<Tensor> {
        let one = |mode: &PoolingMode| mode.pooled(states, is_token);
        let parts = self.modes.iter().map(one).collect::<CandleResult<Vec<_>>>()?;
        let whole = match &parts[..] {
            [part] => part.clone(),
            parts => ops::cat(&parts.iter().collect::<Vec<_>>(), 1)?,
        };
        if !self.normalizes {
            return Ok(whole);
        }
        let length = whole.sqr()?.sum_keepdim(1)?.sqrt()?.clamp(1e-12, f64::MAX)?;
        whole.broadcast_div(&length)
    }
}

/// The modes of `1_Pooling/config.json`, in its new or in its older form.
fn modes(config: &Config, width: usize) -> Result<Vec<PoolingMode>> {
    for key in ["word_embedding_dimension", "embedding_dimension"] {
        if let Some(other) = config.size(key)?.filter(|other| *other != width) {
            let what = format!("has {key} = {other}, and the model has {width} features");
            return Err(config.fault(what));
        }
    }
    let mut older = Vec::new();
    for (_, key, mode) in MODES {
        if config.flag(key)?.unwrap_or(false) {
            older.push(mode);
        }
    }
    let names = match config.get("pooling_mode") {
        None => None,
        Some(Value::String(name)) => Some(vec![name.clone()]),
        Some(_) => config.texts("pooling_mode")?,
    };
    config.finish(&[neutral::POOLING])?;
    let Some(names) = names else {
        return Ok(if older.is_empty() { vec![PoolingMode::Mean] } else { older });
    };
    let mode = |name: &String| {
        let known = MODES.iter().find(|(known, ..)| known == name).map(|(.., mode)| *mode);
        known.ok_or_else(|| config.fault(format!("has pooling_mode = {name:?}, which is unknown")))
    };
    names.iter().map(mode).collect()
}

impl PoolingMode {
    /// `(N, T, width) -> (N, width)`.
    fn pooled(self, states: &Tensor, is_token: &Tensor) -> CandleResult<Tensor> {
        if self == Self::Max {
            // -1e30 for padding: no state is less.
            let hidden = is_token.affine(1e30, -1e30)?.unsqueeze(2)?;
            return states.broadcast_add(&hidden.to_dtype(states.dtype())?)?.max(1);
        }
        let count = is_token.sum_keepdim(1)?.clamp(1.0, f64::MAX)?;
        let place = (is_token.cumsum(1)? * is_token)?; // 1, 2, 3 and so on for tokens, 0 for padding
        let shares = match self {
            Self::First => place.eq(1.0)?.to_dtype(is_token.dtype())?,
            Self::Last => place.broadcast_eq(&count)?.to_dtype(is_token.dtype())?,
            Self::MeanSqrt => is_token.broadcast_div(&count.sqrt()?)?,
            Self::Weighted => place.broadcast_div(&place.sum_keepdim(1)?.clamp(1.0, f64::MAX)?)?,
            Self::Mean | Self::Max => is_token.broadcast_div(&count)?,
        };
        let shares = shares.unsqueeze(1)?.to_dtype(states.dtype())?; // (N, 1, T)
        shares.contiguous()?.matmul(states)?.squeeze(1)
    }
}
