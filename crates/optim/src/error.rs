//! What can go wrong with an optimizer.

use std::fmt;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of optimizers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("{owner}: {setting} is {value}, it must be {range}")]
    Setting {
        /// The optimizer, or what else has the setting.
        owner: &'static str,
        /// The setting, and the group that it is of.
        setting: String,
        /// Its value.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// A group that selects no parameter: most likely a name with a slip.
    #[error("{owner}: the group {group} matches no parameter; there are {names}")]
    NothingMatches {
        /// The optimizer.
        owner: &'static str,
        /// The group's selection.
        group: String,
        /// The parameters, as many as fit a message.
        names: String,
    },
    /// An update of a parameter that [`bind`](crate::Optimizer::bind) was not told of.
    #[error("parameter number {index} is not bound: the optimizer was bound to {bound} parameters")]
    Unbound {
        /// The parameter's index.
        index: usize,
        /// How many were bound.
        bound: usize,
    },
    /// Slices of the wrong length.
    #[error(
        "parameter number {index} has {expected} elements, its value {value}, its gradient {grad}"
    )]
    Length {
        /// The parameter's index.
        index: usize,
        /// Its bound length.
        expected: usize,
        /// The value's length.
        value: usize,
        /// The gradient's length.
        grad: usize,
    },
    /// Memory that cannot be had or reached.
    #[error(transparent)]
    Memory(#[from] candelabrum_memory::Error),
}

/// What a setting may be; never infinite and never no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Range {
    /// Any number.
    Number,
    /// At least 0.
    NotNegative,
    /// Above 0.
    Positive,
    /// From 0 to 1, with 0, without 1: what an average keeps of itself.
    Share,
    /// From 0 to 1, with both.
    UpToOne,
}

impl Range {
    /// The same in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Number => "a finite number",
            Self::NotNegative => "a finite number of at least 0",
            Self::Positive => "a finite number above 0",
            Self::Share => "at least 0 and below 1",
            Self::UpToOne => "at least 0 and at most 1",
        }
    }

    /// Refuses a `value` outside, and says whose `setting` it is.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(self, owner: &'static str, setting: impl fmt::Display, value: f64) -> Result<()> {
        let good = match self {
            Self::Number => true,
            Self::NotNegative => value >= 0.0,
            Self::Positive => value > 0.0,
            Self::Share => (0.0..1.0).contains(&value),
            Self::UpToOne => (0.0..=1.0).contains(&value),
        };
        if good && value.is_finite() {
            return Ok(());
        }
        Err(Error::Setting { owner, setting: setting.to_string(), value, range: self.words() })
    }
}
