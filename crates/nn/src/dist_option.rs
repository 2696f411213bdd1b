//! The names of the strategies by which ranks exchange gradients.
//!
//! They live here, below the crate that carries them out, because [`crate::Model::train_one_batch`]
//! takes one: the strategy is chosen per batch, by name.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// How the ranks agree on an update: SINGA's `dist_option`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DistOption {
    /// All-reduce the sum in fp32, divide by the number of ranks, then update.
    #[default]
    Fp32,
    /// The same with fp16 on the wire.
    Fp16,
    /// Every rank updates by itself; one unit of parameters is averaged each step, in rotation.
    PartialUpdate,
    /// Each rank sends the largest `spars · n` elements of each unit.
    SparseTopK,
    /// Each rank sends the elements of magnitude `spars` and above.
    SparseThreshold,
}

impl DistOption {
    /// Every option, in SINGA's order.
    pub const ALL: [Self; 5] =
        [Self::Fp32, Self::Fp16, Self::PartialUpdate, Self::SparseTopK, Self::SparseThreshold];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::PartialUpdate => "partialUpdate",
            Self::SparseTopK => "sparseTopK",
            Self::SparseThreshold => "sparseThreshold",
        }
    }
}

impl fmt::Display for DistOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DistOption {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "plain" => return Ok(Self::Fp32),
            "half" => return Ok(Self::Fp16),
            _ => {}
        }
        Self::ALL.into_iter().find(|option| option.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::UnknownDistOption { name: name.to_owned(), known }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_option() {
        for option in DistOption::ALL {
            assert_eq!(option.name().parse::<DistOption>().unwrap(), option);
        }
        assert_eq!("plain".parse::<DistOption>().unwrap(), DistOption::Fp32);
        assert_eq!("half".parse::<DistOption>().unwrap(), DistOption::Fp16);
    }

    #[test]
    fn an_unknown_name_lists_those_that_exist() {
        let message = "fp8".parse::<DistOption>().unwrap_err().to_string();
        assert!(message.contains("fp8") && message.contains("sparseTopK"), "{message}");
    }
}
