//! The settings of strategies.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Settings of strategies, the same on every rank. Each strategy reads only the ones that it knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StrategyConfig {
    /// Whether a sparse strategy adds the elements that it did not send to the next gradient (error
    /// feedback). This is SINGA's `corr`.
    pub corr: bool,
    /// The magnitude to which each element of the gradient is clipped before fp16 or bf16.
    pub clip: Option<f32>,
    /// Options of a single strategy, by name: `--strategy-option KEY=VALUE`.
    pub options: StrategyOptions,
}

impl Default for StrategyConfig {
    /// Error feedback, no clipping, no options.
    fn default() -> Self {
        Self { corr: true, clip: None, options: StrategyOptions::default() }
    }
}

/// Named options of a strategy.
///
/// ```
/// use candelabrum_dist::strategy::StrategyOptions;
///
/// let mut options = StrategyOptions::default();
/// options.set("levels=16")?;
/// assert_eq!(options.get("levels", 4)?, 16);
/// assert_eq!(options.get("seed", 0)?, 0); // its default
/// options.only(&["levels", "seed"])?; // no others
/// # Ok::<(), candelabrum_dist::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrategyOptions(BTreeMap<String, String>);

impl StrategyOptions {
    /// Adds an option in the form `key=value`.
    ///
    /// # Errors
    /// [`Error::StrategyOption`] for a text without `=`, or a key that was given before.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let refuse = |why: &str| Err(error(text, why));
        let Some((key, value)) = text.split_once('=') else {
            return refuse("it must be KEY=VALUE");
        };
        match self.0.insert(key.trim().to_owned(), value.trim().to_owned()) {
            None => Ok(()),
            Some(_) => refuse("it was given before"),
        }
    }

    /// The value of `key`, or `default` if the key was not given.
    ///
    /// # Errors
    /// [`Error::StrategyOption`] if the value cannot be read as a `T`.
    pub fn get<T: FromStr>(&self, key: &str, default: T) -> Result<T> {
        let Some(value) = self.0.get(key) else { return Ok(default) };
        let expected = std::any::type_name::<T>();
        value.parse().map_err(|_| error(&format!("{key}={value}"), &format!("not a {expected}")))
    }

    /// Returns an error for any option that is not in `known`. A strategy calls it, so that a
    /// mistyped name is an error.
    ///
    /// # Errors
    /// [`Error::StrategyOption`], with the known options.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.0.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) if known.is_empty() => Err(error(key, "this strategy has no options")),
            Some(key) => Err(error(key, &format!("this strategy has {}", known.join(", ")))),
        }
    }
}

fn error(option: &str, why: &str) -> Error {
    Error::StrategyOption { option: option.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_options_are_named() {
        let mut options = StrategyOptions::default();
        options.set("rank = 4").unwrap();
        assert_eq!(options.get("rank", 1).unwrap(), 4);
        let says = |result: Result<()>| result.unwrap_err().to_string();
        assert!(says(options.set("rank")).contains("KEY=VALUE"));
        assert!(says(options.set("rank=5")).contains("`rank=5`"));
        assert!(says(options.get("rank", false).map(drop)).contains("not a bool"));
        assert!(says(options.only(&["levels"])).contains("`rank`: this strategy has levels"));
        assert!(says(options.only(&[])).contains("no options"));
    }
}
