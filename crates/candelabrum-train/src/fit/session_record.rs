//! The state of a session in a checkpoint: the states of hooks, the last evaluation, and why the run has ended.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::HOOK_FILES;
use crate::hooks::Hook;
use crate::{Metrics, Result};

/// The name in [`RunState::shared`](crate::checkpoint::RunState::shared).
const NAME: &str = "session";

/// The state of a session, the same on all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    /// The states of hooks by their keys.
    #[serde(default)]
    pub(super) hooks: BTreeMap<String, Value>,
    /// The last evaluation.
    #[serde(default)]
    pub(super) evaluated: Option<EvaluationRecord>,
    /// Why the run has ended, if a hook has ended it.
    #[serde(default)]
    pub(super) ended: Option<RunEnd>,
    /// The step after which it has ended inside an epoch, because it had all its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) closed: Option<u64>,
}

/// An evaluation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EvaluationRecord {
    /// The step after which it was.
    pub(super) step: u64,
    /// The metrics over all ranks, for the report of an epoch that ends after the same step.
    pub(super) metrics: Metrics,
}

/// The end of a run by a hook.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunEnd {
    pub(super) reason: String,
    /// The key of the hook, if it is known.
    pub(super) hook: Option<String>,
}

impl SessionRecord {
    /// As it is in a checkpoint.
    pub(super) fn to_shared(&self) -> Value {
        serde_json::json!({ NAME: self })
    }

    /// Reads what a checkpoint has. One of format 1 has the states of hooks by their names, and counts as evaluated.
    pub(super) fn of_shared(shared: &Value, step: u64) -> serde_json::Result<Self> {
        if let Some(record) = shared.get(NAME) {
            return Self::deserialize(record);
        }
        let hooks = shared.as_object().into_iter().flatten();
        let hooks = hooks.map(|(name, state)| (name.clone(), state.clone())).collect();
        let evaluated = Some(EvaluationRecord { step, metrics: Metrics::default() });
        Ok(Self { hooks, evaluated, ended: None, closed: None })
    }

    /// The state of the hook with this key. A checkpoint of format 1 has it by the name of the hook.
    pub(super) fn state_of(&self, key: &str, hook: &(dyn Hook + '_)) -> Option<&Value> {
        let state = self.hooks.get(key).or_else(|| self.hooks.get(hook.name()));
        state.filter(|state| !state.is_null())
    }
}

/// The keys of hooks, each another one: where two hooks have the same, the second gets a number.
pub(super) fn keys<'a>(hooks: &[Box<dyn Hook + 'a>]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut key = |hook: &(dyn Hook + 'a)| {
        let key = hook.key();
        let count = seen.entry(key.clone()).or_default();
        *count += 1;
        if *count == 1 { key } else { format!("{key}#{count}") }
    };
    hooks.iter().map(|hook| key(&**hook)).collect()
}

/// The name of the file in which a checkpoint has the vectors of the hook with this key, without its ending.
pub(super) fn vectors_file(key: &str) -> String {
    format!("{HOOK_FILES}{}", plain(key))
}

/// A text of letters, digits and hyphens, for the name of a file.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect()
}

/// The files in which the best checkpoints of hooks are noted: `best` for the first hook of its kind, and the measure for
/// each further one.
pub(super) fn best_files<'a>(hooks: &[Box<dyn Hook + 'a>]) -> Vec<Option<(String, String)>> {
    let mut names: Vec<String> = Vec::new();
    let mut file = |hook: &(dyn Hook + 'a)| {
        let measure = hook.best_measure()?;
        let plain = plain(&measure);
        let name = if names.is_empty() { "best".to_owned() } else { format!("best-{plain}") };
        let again = names.iter().filter(|other| **other == name).count();
        names.push(name.clone());
        let name = if again == 0 { name } else { format!("{name}-{}", again + 1) };
        Some((name, measure))
    };
    hooks.iter().map(|hook| file(&**hook)).collect()
}

/// Continues a hook with its state.
///
/// # Errors
/// A state that is not this hook's, unless the hook only reports: then the reason is returned.
pub(super) fn restore(hook: &mut (dyn Hook + '_), state: &Value) -> Result<Option<String>> {
    match hook.restore(state) {
        Err(error) if hook.only_reports() => Ok(Some(format!("{error}; it begins anew"))),
        result => result.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::{BestModel, Direction, EarlyStopping, Monitor};

    fn hooks() -> Vec<Box<dyn Hook>> {
        vec![
            Box::new(EarlyStopping::new(Monitor::loss(), 2)),
            Box::new(BestModel::new(Monitor::loss())),
            Box::new(BestModel::new(Monitor::new("top 5", Direction::Maximize))),
            Box::new(BestModel::new(Monitor::new("top 5", Direction::Minimize))),
            Box::new(EarlyStopping::new(Monitor::loss(), 9)),
        ]
    }

    #[test]
    fn each_hook_has_a_key_and_a_file_of_its_own() {
        let keys = keys(&hooks());
        let expected = [
            "early_stopping:loss:min",
            "best_model:loss:min",
            "best_model:top 5:max",
            "best_model:top 5:min",
            "early_stopping:loss:min#2",
        ];
        assert_eq!(keys, expected);
        let files = best_files(&hooks()).into_iter().flatten().map(|(file, _)| file);
        assert_eq!(files.collect::<Vec<_>>(), ["best", "best-top-5", "best-top-5-2"]);
    }

    #[test]
    fn a_checkpoint_of_format_1_has_states_by_the_names_of_hooks() {
        let shared = serde_json::json!({ "best_model": { "best": 0.5 }, "report": null });
        let record = SessionRecord::of_shared(&shared, 7).unwrap();
        let mut hook = BestModel::new(Monitor::loss());
        let state = record.state_of("best_model:loss:min", &hook).unwrap().clone();
        assert_eq!(restore(&mut hook, &state).unwrap(), None);
        assert_eq!((hook.best(), record.evaluated.unwrap().step), (Some(0.5), 7));
        assert!(SessionRecord::of_shared(&Value::Null, 0).unwrap().hooks.is_empty());
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut metrics = Metrics::default();
        metrics.add_batch(1, f32::NAN);
        let record = SessionRecord {
            hooks: [("early_stopping:loss:min".to_owned(), serde_json::json!({ "best": 1 }))]
                .into(),
            evaluated: Some(EvaluationRecord { step: 12, metrics }),
            ended: Some(RunEnd { reason: "enough".to_owned(), hook: None }),
            closed: Some(12),
        };
        let read = SessionRecord::of_shared(&record.to_shared(), 0).unwrap();
        assert_eq!((&read.hooks, read.closed), (&record.hooks, Some(12)));
        let evaluated = read.evaluated.unwrap();
        assert!(evaluated.step == 12 && evaluated.metrics.loss.is_nan());
        assert_eq!(read.ended.unwrap().reason, "enough");
    }
}
