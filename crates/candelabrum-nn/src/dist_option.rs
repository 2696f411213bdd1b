//! The names of the strategies by which ranks exchange gradients.
//!
//! They are in this crate, below the crate that implements the strategies, because
//! [`crate::Model::train_one_batch`] takes a name: each batch can use another strategy.

use std::fmt;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

use crate::Error;

/// The way in which ranks agree on an update: SINGA's `dist_option`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DistOption {
    /// All-reduce the sum in fp32, divide by the number of ranks, then update.
    #[default]
    Fp32,
    /// [`Self::Fp32`] with fp16 on the wire.
    Fp16,
    /// [`Self::Fp32`] with bf16 on the wire: the range of fp32, about three digits.
    Bf16,
    /// Every rank updates its own parameters, and each step averages one unit of parameters, in
    /// rotation.
    PartialUpdate,
    /// Each rank sends the largest `spars · n` elements of each unit.
    SparseTopK,
    /// Each rank sends the elements of magnitude `spars` and above.
    SparseThreshold,
    /// Each rank sends `spars`, `-spars` or 0 of each element: MXNet's compression 2bit.
    TwoBit,
    /// Each rank sends 1 of each element above `spars` and -1 of all others: MXNet's compression 1bit.
    OneBit,
    /// A user's own strategy, by the name given to [`DistOption::custom`].
    Custom(&'static str),
}

/// The names of users' own strategies, which the parser accepts too.
static CUSTOM: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

impl DistOption {
    /// All built-in options, in SINGA's order, then MXNet's.
    pub const ALL: [Self; 8] = [
        Self::Fp32,
        Self::Fp16,
        Self::Bf16,
        Self::PartialUpdate,
        Self::SparseTopK,
        Self::SparseThreshold,
        Self::TwoBit,
        Self::OneBit,
    ];

    /// SINGA's other names for some of them.
    const ALIASES: [(&'static str, Self); 2] = [("plain", Self::Fp32), ("half", Self::Fp16)];

    /// Registers `name`, so that it parses as a user's own strategy. The distributed optimizer's
    /// registry calls this function. A name alone has no effect.
    ///
    /// # Errors
    /// [`Error::DistOptionName`] if the name is taken, empty, or not one word.
    pub fn custom(name: &'static str) -> Result<Self, Error> {
        let refuse = |why| Err(Error::DistOptionName { name: name.to_owned(), why });
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return refuse("it must be one word");
        }
        let mut custom = CUSTOM.write().unwrap_or_else(PoisonError::into_inner);
        if Self::ours(name).is_some() || custom.contains(&name) {
            return refuse("the name is taken");
        }
        custom.push(name);
        Ok(Self::Custom(name))
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::PartialUpdate => "partialUpdate",
            Self::SparseTopK => "sparseTopK",
            Self::SparseThreshold => "sparseThreshold",
            Self::TwoBit => "2bit",
            Self::OneBit => "1bit",
            Self::Custom(name) => name,
        }
    }

    fn ours(name: &str) -> Option<Self> {
        let alias = Self::ALIASES.into_iter().find(|(alias, _)| *alias == name);
        alias
            .map(|(_, option)| option)
            .or_else(|| Self::ALL.into_iter().find(|option| option.name() == name))
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
        let custom = CUSTOM.read().unwrap_or_else(PoisonError::into_inner);
        let own = || custom.iter().find(|own| **own == name).map(|&own| Self::Custom(own));
        Self::ours(name).or_else(own).ok_or_else(|| {
            let ours = Self::ALL.map(Self::name);
            let known: Vec<&str> = ours.iter().chain(custom.iter()).copied().collect();
            Error::UnknownDistOption { name: name.to_owned(), known: known.join(", ") }
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

    #[test]
    fn a_name_of_the_users_own_parses_once_it_is_known_and_is_taken_then() {
        assert!("everyOther".parse::<DistOption>().is_err());
        let option = DistOption::custom("everyOther").unwrap();
        assert_eq!("everyOther".parse::<DistOption>().unwrap(), option);
        assert_eq!(option.to_string(), "everyOther");
        for taken in ["everyOther", "fp16", "half", "two words", ""] {
            assert!(DistOption::custom(taken).is_err(), "{taken}");
        }
        assert!("fp8".parse::<DistOption>().unwrap_err().to_string().contains("everyOther"));
    }
}
