//! Activations that layers fuse into their own computation.
//!
//! `Conv2d` and `Linear` take an optional [`Activation`]. It runs while the result is still in the
//! cache, and its backward needs the result or one saved copy of its input. Call any other function
//! after the layer, as in every candle program.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A function applied element by element to the result of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `max(x, 0)`, with gradient 0 at exactly 0; NaN stays NaN.
    Relu,
    /// `min(max(x, 0), 6)`, with gradient 0 at exactly 0, at exactly 6 and at NaN; NaN stays NaN.
    Relu6,
    /// `x Phi(x)` with the normal distribution's `Phi`, exact: [`gelu`](crate::ops::gelu).
    Gelu,
    /// The approximation of `Gelu` by tanh: [`gelu_tanh`](crate::ops::gelu_tanh).
    GeluTanh,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// All activations, in the order in which error messages list them.
    pub const ALL: &[Self] = &[
        Self::Relu,
        Self::Relu6,
        Self::Gelu,
        Self::GeluTanh,
        Self::Silu,
        Self::Sigmoid,
        Self::Tanh,
    ];

    /// The name that [`FromStr`] parses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Silu => "silu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
        }
    }

    /// Whether the derivative is computed from the input. Otherwise it is computed from the result.
    pub(crate) const fn needs_input(self) -> bool {
        match self {
            Self::Relu | Self::Relu6 | Self::Sigmoid | Self::Tanh => false,
            Self::Gelu | Self::GeluTanh | Self::Silu => true,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ignores case: SINGA writes `RELU`, candle `relu`.
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
        let error = "maxout".parse::<Activation>().unwrap_err();
        let expected = "unknown activation `maxout`, expected one of: \
                        relu, relu6, gelu, gelu_tanh, silu, sigmoid, tanh";
        assert_eq!(error.to_string(), expected);
    }
}
