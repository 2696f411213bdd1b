//! The families: their names in `config.json`, and how their files name what they have.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::neutral::{self, Neutral};
use crate::weights::Naming;

use super::{bert, distilbert, gpt2, llama, vit};

/// The values of `model_type` of language models.
pub(crate) const DECODERS: &[&str] = &["llama", "mistral", "qwen2", "qwen3", "gpt2"];

/// The values of `model_type` of encoders.
pub(crate) const ENCODERS: &[&str] = &["bert", "roberta", "distilbert", "vit"];

/// How the files of this family name their tensors.
pub(crate) fn naming(config: &Config) -> Result<Naming> {
    Ok(match config.model_type()? {
        "gpt2" => Naming {
            base: "transformer",
            is_transposed: Some(gpt2::is_transposed),
            is_known: Some(gpt2::is_known),
            tied: Some(("lm_head.weight", "transformer.wte.weight")),
            ..Naming::default()
        },
        "bert" => encoder("bert", bert::is_known),
        "roberta" => encoder("roberta", bert::is_known),
        "distilbert" => encoder("distilbert", distilbert::is_known),
        "vit" => encoder("vit", vit::is_known),
        _ => Naming {
            base: "model",
            is_known: Some(llama::is_known),
            tied: Some(("lm_head.weight", "model.embed_tokens.weight")),
            ..Naming::default()
        },
    })
}

fn encoder(base: &'static str, is_known: fn(&str) -> bool) -> Naming {
    Naming { base, is_known: Some(is_known), has_other_heads: true, ..Naming::default() }
}

/// The keys of a config of this family that change nothing.
pub(crate) fn neutral(config: &Config) -> Result<[&'static [Neutral]; 2]> {
    let own = match config.model_type()? {
        "gpt2" => neutral::GPT2,
        family if ENCODERS.contains(&family) => neutral::ENCODER,
        _ => neutral::LLAMA,
    };
    Ok([neutral::CONFIG, own])
}

/// The error of a `model_type` that is none of `known`.
pub(crate) fn unknown(config: &Config, model_type: &str, known: &[&str]) -> Error {
    let elsewhere = DECODERS.contains(&model_type) || ENCODERS.contains(&model_type);
    let known = known.join(", ");
    config.fault(if elsewhere {
        format!(
            "has the model_type {model_type:?}, which is of another kind: here {known} are possible"
        )
    } else {
        format!("has the unknown model_type {model_type:?}: {known} are supported")
    })
}
