//! Keys.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The key of a value: a number or a string. One store has keys of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Key {
    /// A number.
    Int(i64),
    /// A string, for instance the name of a parameter.
    Name(String),
}

impl Key {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "number",
            Self::Name(_) => "string",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl From<i32> for Key {
    fn from(number: i32) -> Self {
        Self::Int(number.into())
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}
