//! A source of data, as a value that fits into a message.
//!
//! In a distributed run one rank of each host finds the data and sends the [`Source`] as text to the
//! other ranks of its host, which open it.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{
    error::{Error, Result},
    mnist::Mnist,
    synthetic,
};

/// A source of the digits. `Display` and `FromStr` are inverse to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory with the four files of MNIST. As text `mnist:/path`.
    Directory(PathBuf),
    /// Generated digits. As text `synthetic:seed=0,train=12000,test=2000`.
    Synthetic {
        /// The seed of the generator.
        seed: u64,
        /// The number of training images.
        train: usize,
        /// The number of test images.
        test: usize,
    },
}

impl Source {
    /// Synthetic digits in the default numbers: 12,000 for training and 2,000 for testing.
    pub fn synthetic(seed: u64) -> Self {
        Self::Synthetic { seed, train: synthetic::TRAIN_LEN, test: synthetic::TEST_LEN }
    }

    /// The name for the user: `mnist` or `synthetic digits`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Directory(_) => "mnist",
            Self::Synthetic { .. } => "synthetic digits",
        }
    }

    /// Reads or generates the data.
    ///
    /// # Errors
    /// Those of [`Mnist::open`] and [`Mnist::synthetic`].
    pub fn open(&self) -> Result<Mnist> {
        match self {
            Self::Directory(dir) => Mnist::open(dir),
            &Self::Synthetic { seed, train, test } => Mnist::synthetic(seed, train, test),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir) => write!(f, "mnist:{}", dir.display()),
            Self::Synthetic { seed, train, test } => {
                write!(f, "synthetic:seed={seed},train={train},test={test}")
            }
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("mnist", dir)) if !dir.is_empty() => Some(Self::Directory(dir.into())),
            Some(("synthetic", numbers)) => parse_synthetic(numbers),
            _ => None,
        }
        .ok_or_else(|| {
            Error::argument(format!(
                "{text:?} is no data source: expected `mnist:DIRECTORY` or \
                 `synthetic:seed=S,train=N,test=M`"
            ))
        })
    }
}

fn parse_synthetic(numbers: &str) -> Option<Source> {
    let mut fields = numbers.split(',');
    let seed = fields.next()?.strip_prefix("seed=")?.parse().ok()?;
    let train = fields.next()?.strip_prefix("train=")?.parse().ok()?;
    let test = fields.next()?.strip_prefix("test=")?.parse().ok()?;
    fields.next().is_none().then_some(Source::Synthetic { seed, train, test })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_way_through_text() {
        for source in [
            Source::synthetic(7),
            Source::Synthetic { seed: u64::MAX, train: 1, test: 2 },
            Source::Directory("/data/my mnist: old, new".into()),
        ] {
            assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
        }
        assert_eq!(Source::synthetic(7).to_string(), "synthetic:seed=7,train=12000,test=2000");
    }

    #[test]
    fn other_text_is_an_error_that_quotes_it() {
        for text in [
            "",
            "mnist",
            "mnist:",
            "cifar:/x",
            "synthetic:",
            "synthetic:seed=1,train=2",
            "synthetic:seed=1,train=2,test=3,more=4",
            "synthetic:seed=-1,train=2,test=3",
        ] {
            let message = text.parse::<Source>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("{text:?} is no data source")), "{message}");
        }
    }
}
