//! What a `config.json` says of rotary positions, in the form of `transformers` 5 (`rope_parameters`) or the older one
//! (`rope_theta` and `rope_scaling`).

use candelabrum_nn::ops::{Rotary, RotaryScaling};

use crate::config::Config;
use crate::error::Result;
use crate::neutral::ROTARY;

/// Rotary positions, and the factor of the scores that their scaling asks for.
///
/// # Errors
/// A scaling that is not supported or lacks a number, or both forms with different values.
pub(super) fn rotary(config: &Config) -> Result<(Rotary, f64)> {
    let (new, old) = (config.object("rope_parameters")?, config.object("rope_scaling")?);
    if let (Some(new), Some(old)) = (&new, &old)
        && new.json() != old.json()
    {
        let what = "has rope_parameters and other values in rope_scaling: remove one of them";
        return Err(config.fault(what.to_owned()));
    }
    let Some(own) = new.or(old) else {
        let base = config.real("rope_theta")?.unwrap_or(10_000.0);
        return Ok((Rotary { base, offset: 0, scaling: RotaryScaling::None }, 1.0));
    };
    let base = match (own.real("rope_theta")?, config.real("rope_theta")?) {
        (Some(own), Some(other)) if own != other => {
            let what = format!("has rope_theta = {other}, and {own} in the rotary parameters");
            return Err(config.fault(what));
        }
        (own, other) => own.or(other).unwrap_or(10_000.0),
    };
    let kind = match (own.text("rope_type")?, own.text("type")?) {
        (Some(kind), Some(other)) if kind != other => {
            let what =
                format!("has rotary positions of the rope_type {kind:?} and of the type {other:?}");
            return Err(config.fault(what));
        }
        (kind, other) => kind.or(other).unwrap_or("default"),
    };
    let real = |key: &str| {
        own.real(key)?.ok_or_else(|| {
            config.fault(format!("has scaled rotary positions ({kind}) without {key}"))
        })
    };
    let original = || match own.real("original_max_position_embeddings")? {
        Some(original) => Ok(original),
        None => config.needed("max_position_embeddings").map(|original| original as f64),
    };
    let mut temperature = 1.0;
    let scaling = match kind {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear { factor: real("factor")? },
        "llama3" => RotaryScaling::Llama3 {
            factor: real("factor")?,
            low: real("low_freq_factor")?,
            high: real("high_freq_factor")?,
            original: original()?,
        },
        "yarn" => {
            let factor = real("factor")?;
            temperature = match own.real("attention_factor")? {
                Some(temperature) => temperature,
                None => RotaryScaling::yarn_temperature(factor),
            };
            RotaryScaling::Yarn {
                factor,
                fast: own.real("beta_fast")?.unwrap_or(32.0),
                slow: own.real("beta_slow")?.unwrap_or(1.0),
                original: original()?,
            }
        }
        other => {
            let what = format!(
                "has rotary positions of the kind {other:?}: default, linear, llama3 and yarn are supported"
            );
            return Err(config.fault(what));
        }
    };
    own.finish(&[ROTARY])?;
    Ok((Rotary { base, offset: 0, scaling }, temperature * temperature))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn of(json: Value) -> Result<(Rotary, f64)> {
        rotary(&Config::new(Path::new("config.json"), json))
    }

    #[test]
    fn both_forms_of_rotary_positions_say_the_same() -> Result<()> {
        let new =
            json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}});
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
        assert_eq!(of(new)?, of(old)?);
        assert_eq!(of(json!({"rope_scaling": null}))?, (Rotary::default(), 1.0));
        Ok(())
    }

    #[test]
    fn rotary_positions_that_are_not_understood_are_refused_by_name() {
        let linear = json!({"rope_type": "linear", "factor": 2.0});
        for (json, words) in [
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "dynamic"),
            (json!({"rope_scaling": {"type": "linear"}}), "without factor"),
            (
                json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "original_max_position_embeddings": 8}}),
                "`rope_scaling.mscale` = 1.0",
            ),
            (
                json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
                "`rope_parameters.partial_rotary_factor` = 0.5",
            ),
            (
                json!({"rope_parameters": linear, "rope_scaling": {"type": "linear", "factor": 4.0}}),
                "other values in rope_scaling",
            ),
            (
                json!({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}),
                "rope_theta = 5, and 6",
            ),
            (
                json!({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4.0}}),
                "the type \"yarn\"",
            ),
        ] {
            let error = of(json).unwrap_err().to_string();
            assert!(error.starts_with("config.json: ") && error.contains(words), "{error}");
        }
    }
}
