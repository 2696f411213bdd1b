//! The activations that layers can apply inside their own pass.
//!
//! `Conv2d` and `Linear` take an optional [`Activation`]; it runs while the result is still in
//! cache and its backward needs nothing but the saved result. Any other function goes after the
//! layer, as in every candle program.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A function applied element by element to the result of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`, with gradient 0 at exactly 0; NaN stays NaN.
    Relu,
}

impl Activation {
    /// Every activation, in the order in which error messages list them.
    pub const ALL: &[Self] = &[Self::Relu];

    /// The name that [`FromStr`] reads back.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Upper and lower case are equal: SINGA writes `RELU`, candle `relu`.
impl FromStr for Activation {
    type Err = ParseActivationError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let matches = |activation: &&Self| activation.name().eq_ignore_ascii_case(s);
        let found = Self::ALL.iter().find(matches).copied();
        found.ok_or_else(|| ParseActivationError { name: s.to_owned() })
    }
}

/// A name that is no [`Activation`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown activation `{name}`, expected one of: {}", choices())]
pub struct ParseActivationError {
    name: String,
}

fn choices() -> String {
    Activation::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_written_in_lower_case() {
        for name in ["relu", "RELU", "ReLU"] {
            assert_eq!(name.parse(), Ok(Activation::Relu));
        }
        for activation in Activation::ALL {
            assert_eq!(activation.to_string().parse(), Ok(*activation));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_choices() {
        let error = "gelu".parse::<Activation>().unwrap_err();
        assert_eq!(error.to_string(), "unknown activation `gelu`, expected one of: relu");
    }
}
