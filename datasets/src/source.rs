//! A source of data, as a value that fits into a message.
//!
//! In a distributed run one rank of each host finds the data and sends the [`Source`] as text to the
//! other ranks of its host, which open it.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{
    error::{Error, Result},
    image_set::{ImageSet, ImageSplit},
    synthetic,
};

/// A source of images. `Display` and `FromStr` are inverse to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory with the files of a set. As text `mnist:/path`, with the name of the set.
    Directory(ImageSet, PathBuf),
    /// Generated images in the shape of a set. As text `synthetic:mnist,seed=0,train=12000,test=2000`.
    Synthetic {
        /// The set.
        set: ImageSet,
        /// The seed of the generator.
        seed: u64,
        /// The number of training images.
        train: usize,
        /// The number of test images.
        test: usize,
    },
}

impl Source {
    /// Synthetic images in the default numbers: 12,000 for training and 2,000 for testing.
    pub fn synthetic(set: ImageSet, seed: u64) -> Self {
        Self::Synthetic { set, seed, train: synthetic::TRAIN_LEN, test: synthetic::TEST_LEN }
    }

    /// The name for the user: that of the set, `synthetic digits` or `synthetic colored digits`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Directory(set, _) => set.name(),
            Self::Synthetic { set, .. } => set.stand_in(),
        }
    }

    /// Reads or generates the data.
    ///
    /// # Errors
    /// Those of [`ImageSet::open`] and [`ImageSet::synthetic`].
    pub fn open(&self) -> Result<ImageSplit> {
        match self {
            Self::Directory(set, dir) => set.open(dir),
            &Self::Synthetic { set, seed, train, test } => set.synthetic(seed, train, test),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(set, dir) => write!(f, "{set}:{}", dir.display()),
            Self::Synthetic { set, seed, train, test } => {
                write!(f, "synthetic:{set},seed={seed},train={train},test={test}")
            }
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("synthetic", numbers)) => parse_synthetic(numbers),
            Some((name, dir)) if !dir.is_empty() => {
                set_of(name).map(|set| Self::Directory(set, dir.into()))
            }
            _ => None,
        }
        .ok_or_else(|| {
            Error::argument(format!(
                "{text:?} is no data source: expected `mnist:DIRECTORY` or \
                 `synthetic:mnist,seed=S,train=N,test=M`"
            ))
        })
    }
}

fn set_of(name: &str) -> Option<ImageSet> {
    ImageSet::ALL.into_iter().find(|set| set.name() == name)
}

fn parse_synthetic(numbers: &str) -> Option<Source> {
    let mut fields = numbers.split(',');
    let set = set_of(fields.next()?)?;
    let seed = fields.next()?.strip_prefix("seed=")?.parse().ok()?;
    let train = fields.next()?.strip_prefix("train=")?.parse().ok()?;
    let test = fields.next()?.strip_prefix("test=")?.parse().ok()?;
    fields.next().is_none().then_some(Source::Synthetic { set, seed, train, test })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_way_through_text() {
        for source in [
            Source::synthetic(ImageSet::Cifar10, 7),
            Source::Synthetic { set: ImageSet::Mnist, seed: u64::MAX, train: 1, test: 2 },
            Source::Directory(ImageSet::Mnist, "/data/my mnist: old, new".into()),
            Source::Directory(ImageSet::FashionMnist, "/data".into()),
            Source::Directory(ImageSet::Cifar100, "/data".into()),
        ] {
            assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
        }
        let text = Source::synthetic(ImageSet::Mnist, 7).to_string();
        assert_eq!(text, "synthetic:mnist,seed=7,train=12000,test=2000");
    }

    #[test]
    fn other_text_is_an_error_that_quotes_it() {
        for text in [
            "",
            "mnist",
            "mnist:",
            "cifar:/x",
            "synthetic:",
            "synthetic:seed=1,train=2,test=3",
            "synthetic:mnist,seed=1,train=2",
            "synthetic:mnist,seed=1,train=2,test=3,more=4",
            "synthetic:mnist,seed=-1,train=2,test=3",
        ] {
            let message = text.parse::<Source>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("{text:?} is no data source")), "{message}");
        }
    }
}
