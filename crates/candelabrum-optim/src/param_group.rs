//! Parameter groups: other settings for some parameters.
//!
//! Weight decay is usual for weights, but not for biases and the scales of norms. A pretrained part
//! often uses a lower learning rate than a new one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::AllowedRange;
use crate::{Error, ParamInfo, Result, Schedule};

/// The parameters of a selection, and their settings. All other parameters have the optimizer's
/// settings.
///
/// If several groups select a parameter, each setting is taken from the last group that has this
/// setting.
///
/// ```
/// use candelabrum_optim::{AdamW, ParamGroup};
///
/// let adamw = AdamW::new(1e-3)
///     .group(ParamGroup::below_dims(2).weight_decay(0.0)) // biases and norms
///     .group(ParamGroup::matching("encoder.*").lr_scale(0.1));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamGroup {
    selection: ParamSelection,
    pub(crate) lr: Option<Schedule>,
    pub(crate) lr_scale: Option<f64>,
    pub(crate) weight_decay: Option<f64>,
    pub(crate) trust_ratio: Option<bool>,
    #[serde(default)]
    pub(crate) muon: Option<bool>,
    #[serde(default)]
    pub(crate) state_8bit: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum ParamSelection {
    Names(String),
    BelowDims(usize),
}

impl ParamGroup {
    /// The parameters whose whole name fits `pattern`, where `*` stands for any characters, dots
    /// included, or none: `*.bias`, `encoder.*.weight`.
    pub fn matching(pattern: impl Into<String>) -> Self {
        Self::new(ParamSelection::Names(pattern.into()))
    }

    /// The parameters with fewer than `dims` dimensions: with 2, biases and the scales of norms.
    pub fn below_dims(dims: usize) -> Self {
        Self::new(ParamSelection::BelowDims(dims))
    }

    fn new(selection: ParamSelection) -> Self {
        let (lr, lr_scale, weight_decay) = (None, None, None);
        let (trust_ratio, muon, state_8bit) = (None, None, None);
        Self { selection, lr, lr_scale, weight_decay, trust_ratio, muon, state_8bit }
    }

    builder! { group:
        /// Replaces the optimizer's learning rate.
        lr(lr: impl Into<Schedule>) => group.lr = Some(lr.into());
        /// Multiplies the learning rate of the optimizer or of a group.
        lr_scale(scale: f64) => group.lr_scale = Some(scale);
        /// Replaces the optimizer's weight decay.
        weight_decay(weight_decay: f64) => group.weight_decay = Some(weight_decay);
        /// Whether [`Lamb`](crate::Lamb) and [`Lars`](crate::Lars) scale the rate by norms, which is
        /// not usual for biases and norms. Other optimizers ignore this setting.
        trust_ratio(on: bool) => group.trust_ratio = Some(on);
        /// Whether [`Muon`](crate::Muon) updates matrices by its own formula, as it does without a
        /// group, or leaves them to AdamW: embeddings and the last layer. Other optimizers ignore this
        /// setting.
        muon(on: bool) => group.muon = Some(on);
        /// Whether [`AdamW8bit`](crate::AdamW8bit) keeps its averages in 8 bits, as it does without a group, or in f32:
        /// embeddings (`optim_bits` of bitsandbytes). Other optimizers ignore this setting.
        state_8bit(on: bool) => group.state_8bit = Some(on);
    }

    pub(crate) fn selects(&self, param: &ParamInfo<'_>) -> bool {
        match &self.selection {
            ParamSelection::Names(pattern) => fits(pattern.as_bytes(), param.name.as_bytes()),
            ParamSelection::BelowDims(dims) => param.dims.len() < *dims,
        }
    }

    pub(crate) fn check(&self, owner: &'static str) -> Result<()> {
        let selection = &self.selection;
        if let Some(lr) = &self.lr {
            lr.check(owner, &format!("lr of the group {selection}"))?;
        }
        let settings = [("lr_scale", self.lr_scale), ("weight_decay", self.weight_decay)];
        for (setting, value) in settings {
            let setting = format!("{setting} of the group {selection}");
            value.map_or(Ok(()), |value| AllowedRange::NotNegative.check(owner, setting, value))?;
        }
        Ok(())
    }

    /// Refuses a group that selects none of `params`.
    pub(crate) fn check_selects(
        &self,
        owner: &'static str,
        params: &[ParamInfo<'_>],
    ) -> Result<()> {
        const SHOWN: usize = 40;
        if params.iter().any(|param| self.selects(param)) {
            return Ok(());
        }
        let shown: Vec<&str> = params.iter().take(SHOWN).map(|param| param.name).collect();
        let mut names = shown.join(", ");
        if params.len() > SHOWN {
            names += &format!(" and {} more", params.len() - SHOWN);
        }
        Err(Error::NothingMatches { owner, group: self.selection.to_string(), names })
    }
}

impl fmt::Display for ParamGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}:", self.selection)?;
        if let Some(lr) = &self.lr {
            write!(f, " lr={lr}")?;
        }
        if let Some(scale) = self.lr_scale {
            write!(f, " lr_scale={scale}")?;
        }
        if let Some(decay) = self.weight_decay {
            write!(f, " weight_decay={decay}")?;
        }
        if let Some(on) = self.trust_ratio {
            write!(f, " trust_ratio={on}")?;
        }
        if let Some(on) = self.muon {
            write!(f, " muon={on}")?;
        }
        if let Some(on) = self.state_8bit {
            write!(f, " state_8bit={on}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ParamSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names(pattern) => write!(f, "`{pattern}`"),
            Self::BelowDims(dims) => write!(f, "below {dims} dims"),
        }
    }
}

/// Whether `name` fits `pattern`, whose stars stand for any characters. Each star takes as few
/// characters as possible. If the rest does not fit, only the last star needs to take one more.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut last_star = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            last_star = Some((p + 1, n));
            p += 1;
        } else if p < pattern.len() && pattern[p] == name[n] {
            (p, n) = (p + 1, n + 1);
        } else if let Some((after, taken)) = last_star {
            last_star = Some((after, taken + 1));
            (p, n) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        let cases = [
            ("fc.bias", "fc.bias", true),
            ("fc.bias", "fc.bias2", false),
            ("*.bias", "a.b.bias", true),
            ("*.bias", "bias", false),
            ("*bias", "bias", true),
            ("a.*.weight", "a.b.c.weight", true),
            ("a.*.weight", "a.weight", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "xabyabzab", true),
            ("*ab*ab", "ab", false),
            ("*", "", true),
            ("**", "x", true),
            ("", "x", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
