//! What a file of weights had, and what the model had.

use std::fmt;

use crate::{Error, Result};

/// The result of [`Params::load_weights`](crate::Params::load_weights).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The parameters and buffers that were set.
    pub loaded: Vec<String>,
    /// The parameters and buffers for which the file has nothing.
    pub missing: Vec<String>,
    /// The names of the file that the model does not have.
    pub unused: Vec<String>,
    /// The parameters and buffers of another shape than their values.
    pub unfit: Vec<ShapeMismatch>,
}

/// A value of another shape than its parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The parameter or buffer.
    pub name: String,
    /// Its name in the file.
    pub theirs: String,
    /// The parameter's shape.
    pub expected: Vec<usize>,
    /// The value's shape.
    pub got: Vec<usize>,
}

impl LoadReport {
    /// Whether every parameter and buffer was set, and every value was used.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unused.is_empty() && self.unfit.is_empty()
    }

    /// This report, or an error that says what did not match.
    ///
    /// # Errors
    /// [`Error::Incomplete`].
    pub fn complete(self) -> Result<Self> {
        if self.is_complete() {
            Ok(self)
        } else {
            Err(Error::Incomplete { report: self.to_string() })
        }
    }
}

/// The names of a list that a text shows.
const SHOWN: usize = 5;

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.loaded.len();
        write!(f, "{count} parameter{} loaded", if count == 1 { "" } else { "s" })?;
        let unfit = self.unfit.iter().map(|unfit| {
            let ShapeMismatch { name, theirs, expected, got } = unfit;
            format!("`{name}` is {expected:?}, `{theirs}` {got:?}")
        });
        let quoted = |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect();
        for (what, names) in [
            ("not in the file", quoted(&self.missing)),
            ("not in the model", quoted(&self.unused)),
            ("of another shape", unfit.collect::<Vec<_>>()),
        ] {
            let Some(more) = names.len().checked_sub(SHOWN) else {
                if !names.is_empty() {
                    write!(f, "; {what}: {}", names.join(", "))?;
                }
                continue;
            };
            write!(f, "; {what}: {}", names[..SHOWN].join(", "))?;
            if more > 0 {
                write!(f, " and {more} more")?;
            }
        }
        Ok(())
    }
}
