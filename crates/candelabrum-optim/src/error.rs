//! Errors of optimizers.

use std::fmt;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an optimizer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its range.
    #[error("{owner}: {setting} is {value}, it must be {range}")]
    Setting {
        /// The optimizer, or another owner of the setting.
        owner: &'static str,
        /// The setting, and the group that contains it.
        setting: String,
        /// Its value.
        value: f64,
        /// The allowed values.
        range: &'static str,
    },
    /// A group that selects no parameter, mostly because of a misspelt name.
    #[error("{owner}: the group {group} matches no parameter; there are {names}")]
    NothingMatches {
        /// The optimizer.
        owner: &'static str,
        /// The group's selection.
        group: String,
        /// The names of the parameters, as many as fit a message.
        names: String,
    },
    /// An update of a parameter that was not bound with [`bind`](crate::Optimizer::bind).
    #[error("parameter number {index} is not bound: the optimizer was bound to {bound} parameters")]
    Unbound {
        /// The parameter's index.
        index: usize,
        /// The number of bound parameters.
        bound: usize,
    },
    /// A parameter that occurs twice in one [`update_all`](crate::Optimizer::update_all).
    #[error("parameter number {index} occurs twice in one update")]
    Repeated {
        /// The parameter's index.
        index: usize,
    },
    /// An update of a part of a parameter by a formula that needs the whole parameter.
    #[error("parameter number {index}: {optimizer} updates only whole parameters")]
    Whole {
        /// The parameter's index.
        index: usize,
        /// The optimizer.
        optimizer: String,
    },
    /// State in bf16 for an optimizer whose state is no numbers.
    #[error("{optimizer} has a state of fewer than 16 bits: leave out the state in bf16")]
    NoNumbers {
        /// The optimizer.
        optimizer: &'static str,
    },
    /// A factor of the learning rate for an optimizer that has none.
    #[error(
        "{optimizer} has no factor of its learning rate: implement `Optimizer::set_rate_factor`"
    )]
    FixedRate {
        /// The optimizer.
        optimizer: String,
    },
    /// Slices of the wrong length.
    #[error(
        "parameter number {index} has {expected} elements, its value {value}, its gradient {grad}"
    )]
    Length {
        /// The parameter's index.
        index: usize,
        /// The bound length.
        expected: usize,
        /// The value's length.
        value: usize,
        /// The gradient's length.
        grad: usize,
    },
    /// Memory that cannot be allocated or accessed.
    #[error(transparent)]
    Memory(#[from] candelabrum_memory::Error),
}

/// The allowed values of a setting. They are never infinite or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedRange {
    /// Any finite number.
    Number,
    /// At least 0.
    NotNegative,
    /// Above 0.
    Positive,
    /// At most 0.
    NotPositive,
    /// At least 1.
    FromOne,
    /// From 0 to 1, with 0 and without 1: the share of an average that a step keeps.
    Share,
    /// From 0 to 1, with 0 and 1.
    UpToOne,
    /// From 0 to 100, without 100: a number of iterations.
    BelowHundred,
}

impl AllowedRange {
    /// The range in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Number => "a finite number",
            Self::NotNegative => "a finite number of at least 0",
            Self::Positive => "a finite number above 0",
            Self::NotPositive => "a finite number of at most 0",
            Self::FromOne => "a finite number of at least 1",
            Self::Share => "at least 0 and below 1",
            Self::UpToOne => "at least 0 and at most 1",
            Self::BelowHundred => "at least 0 and below 100",
        }
    }

    /// Refuses a `value` outside the range. The error names `owner` and `setting`.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(self, owner: &'static str, setting: impl fmt::Display, value: f64) -> Result<()> {
        let good = match self {
            Self::Number => true,
            Self::NotNegative => value >= 0.0,
            Self::Positive => value > 0.0,
            Self::NotPositive => value <= 0.0,
            Self::FromOne => value >= 1.0,
            Self::Share => (0.0..1.0).contains(&value),
            Self::UpToOne => (0.0..=1.0).contains(&value),
            Self::BelowHundred => (0.0..100.0).contains(&value),
        };
        if good && value.is_finite() {
            return Ok(());
        }
        Err(Error::Setting { owner, setting: setting.to_string(), value, range: self.words() })
    }
}
