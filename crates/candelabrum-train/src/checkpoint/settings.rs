//! The settings of a run, as a checkpoint keeps them.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::Sampling;

/// The settings of a run by their stable names. What is absent is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSettings {
    /// The seed of shuffling and augmentation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The fingerprint of the training data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The number of training samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// The order of the samples, and the length of an epoch. Before it was noted, every run was shuffled, with all
    /// samples in an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<String>,
    /// Whether an epoch uses all samples, the last ones in a smaller batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uneven: Option<bool>,
    /// Further settings that must be the same in a run that continues, those of a loop of your own among them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fixed: BTreeMap<String, String>,
    /// The samples of all ranks in a step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_batch_size: Option<usize>,
    /// The samples of one rank in a step, micro-batches included, as the first start of the run asked for them. The same
    /// command asks for them again at any number of ranks, although each rank's part of the global batch is another one
    /// there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_batch_size: Option<usize>,
    /// The strategy, and its parameter. A run that continues may have another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The optimizers, by the names of their models. A run that continues may change their settings.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub optimizers: BTreeMap<String, String>,
}

/// A setting that is not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedSetting {
    /// The setting, in words.
    pub(crate) what: String,
    pub(crate) there: String,
    pub(crate) here: String,
}

impl RunSettings {
    /// The first setting of a run that continues this one, and must be the same, that is another one.
    pub(crate) fn refused(&self, here: &Self) -> Option<ChangedSetting> {
        let sampling = self.sampling.clone().or_else(|| Some(Sampling::default().to_string()));
        let known = [
            change("the seed", &self.seed, &here.seed),
            change("the training data", &self.data, &here.data),
            change("the number of training samples", &self.samples, &here.samples),
            change("the sampling", &sampling, &here.sampling),
            change("`uneven`", &self.uneven, &here.uneven),
        ];
        let own = here
            .fixed
            .iter()
            .map(|(name, here)| change(name, &self.fixed.get(name).cloned(), &Some(here.clone())));
        known.into_iter().chain(own).flatten().next()
    }

    /// The settings that a run that continues this one has changed, and may change.
    pub(crate) fn changed(&self, here: &Self) -> Vec<ChangedSetting> {
        let optimizers = here.optimizers.iter().map(|(name, here)| {
            let what = match name.as_str() {
                "" => "the optimizer".to_owned(),
                name => format!("the optimizer of `{name}`"),
            };
            change(&what, &self.optimizers.get(name).cloned(), &Some(here.clone()))
        });
        let strategy = change("the strategy", &self.strategy, &here.strategy);
        optimizers.chain([strategy]).flatten().collect()
    }
}

/// Settings by their names in words: those of a run, and those in a checkpoint of format 1.
impl FromIterator<(String, String)> for RunSettings {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(named: I) -> Self {
        let mut settings = Self::default();
        for (name, value) in named {
            match name.as_str() {
                "the seed" => settings.seed = value.parse().ok(),
                "the sampling" => settings.sampling = Some(value),
                "`uneven`" => settings.uneven = value.parse().ok(),
                "the training data" => settings.data = Some(value),
                "the number of training samples" => settings.samples = value.parse().ok(),
                "the global batch size" => settings.global_batch_size = value.parse().ok(),
                "the strategy" => settings.strategy = Some(value),
                "the optimizer" => {
                    settings.optimizers.insert(String::new(), value);
                }
                _ => {
                    let part = name.strip_prefix("the optimizer of `");
                    match part.and_then(|part| part.strip_suffix('`')) {
                        Some(part) => settings.optimizers.insert(part.to_owned(), value),
                        None => settings.fixed.insert(name, value),
                    };
                }
            }
        }
        settings
    }
}

fn change<T: PartialEq + Display>(
    what: &str,
    there: &Option<T>,
    here: &Option<T>,
) -> Option<ChangedSetting> {
    let (there, here) = (there.as_ref()?, here.as_ref()?);
    (there != here).then(|| ChangedSetting {
        what: what.to_owned(),
        there: short(there.to_string()),
        here: short(here.to_string()),
    })
}

/// A digest by its first digits, and anything else as it is.
fn short(setting: String) -> String {
    let is_digest = setting.len() == 64 && setting.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_digest { format!("{}…", &setting[..12]) } else { setting }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RunSettings {
        RunSettings {
            seed: Some(3),
            data: Some("0".repeat(64)),
            samples: Some(10),
            sampling: Some("shuffled".to_owned()),
            uneven: Some(false),
            fixed: [("the vocabulary".to_owned(), "a".to_owned())].into(),
            global_batch_size: Some(4),
            rank_batch_size: Some(2),
            strategy: Some("fp32".to_owned()),
            optimizers: [(String::new(), "sgd".to_owned())].into(),
        }
    }

    #[test]
    fn the_sentences_of_format_1_are_the_same_settings() {
        let sentences = [
            ("the seed", "3"),
            ("the training data", &"0".repeat(64)),
            ("the number of training samples", "10"),
            ("the global batch size", "4"),
            ("the strategy", "fp32"),
            ("the optimizer", "sgd"),
            ("the optimizer of `critic`", "adam"),
            ("the vocabulary", "a"),
        ];
        let sentences = sentences.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut expected =
            RunSettings { sampling: None, uneven: None, rank_batch_size: None, ..settings() };
        expected.optimizers.insert("critic".to_owned(), "adam".to_owned());
        assert_eq!(sentences.into_iter().collect::<RunSettings>(), expected);
    }

    #[test]
    fn what_must_be_the_same_is_refused_and_what_may_change_is_named() {
        let there = settings();
        assert_eq!((there.refused(&there), there.changed(&there)), (None, Vec::new()));
        assert_eq!(there.refused(&RunSettings::default()), None);
        let here = RunSettings { data: Some("1".repeat(64)), ..settings() };
        let ChangedSetting { what, there: old, here: new } = there.refused(&here).unwrap();
        assert_eq!(what, "the training data");
        assert_eq!((&*old, &*new), ("000000000000…", "111111111111…"));
        let here = RunSettings { sampling: Some("in order".to_owned()), ..settings() };
        for there in [settings(), RunSettings { sampling: None, ..settings() }] {
            let ChangedSetting { what, there, .. } = there.refused(&here).unwrap();
            assert_eq!((&*what, &*there), ("the sampling", "shuffled"));
        }
        let here = RunSettings { uneven: Some(true), strategy: Some("fp16".into()), ..settings() };
        assert_eq!(there.refused(&here).unwrap().what, "`uneven`");
        assert_eq!(there.changed(&here)[0].what, "the strategy");
        let here =
            RunSettings { fixed: [("the vocabulary".into(), "b".into())].into(), ..settings() };
        assert_eq!(there.refused(&here).unwrap().here, "b");
    }

    #[test]
    fn settings_survive_a_file() {
        let text = serde_json::to_string(&settings()).unwrap();
        assert_eq!(serde_json::from_str::<RunSettings>(&text).unwrap(), settings());
        assert_eq!(serde_json::from_str::<RunSettings>("{}").unwrap(), RunSettings::default());
        assert!(serde_json::from_str::<RunSettings>(r#"{"the seed":"3"}"#).is_err());
    }
}
