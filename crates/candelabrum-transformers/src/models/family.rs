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
            ..Naming::default()
        },
        "bert" => Naming { base: "bert", is_known: Some(bert::is_known), ..Naming::default() },
        "roberta" => {
            Naming { base: "roberta", is_known: Some(bert::is_known), ..Naming::default() }
        }
        "distilbert" => {
            Naming { base: "distilbert", is_known: Some(distilbert::is_known), ..Naming::default() }
        }
        "vit" => Naming { base: "vit", is_known: Some(vit::is_known), ..Naming::default() },
        _ => Naming { base: "model", is_known: Some(llama::is_known), ..Naming::default() },
    })
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
