//! The datasets of a run's evaluations: a main one, and others by their names.

use std::fmt;
use std::sync::Arc;

use candelabrum_datasets::{Collated, Dataset};

use crate::{Error, Metrics, Result, parts};

/// Names that measures of a report begin with already.
const TAKEN: [&str; 2] = ["train", "evaluation"];

/// The datasets on which [`Fit`](crate::Fit) evaluates a model, one after another.
///
/// The first one is the main one: its measures have their plain names, `loss` or `accuracy` for instance. Those of each
/// further set have its name before theirs: `test/loss`, `test/accuracy`. Hooks follow them by
/// [`Monitor::new("test/accuracy", ..)`](crate::hooks::Monitor::new).
///
/// A reference to a dataset is a main set alone, and so is `Some` of it. `None` is no evaluation.
///
/// ```no_run
/// # use candelabrum_datasets::ImageDataset;
/// # use candelabrum_train::{EvaluationSets, Fit, Trainer};
/// # fn f<M: candelabrum_nn::Model>(
/// #     trainer: &mut Trainer<M>, fit: Fit<'_>, train: &ImageDataset, valid: &ImageDataset, test: &ImageDataset,
/// # ) -> candelabrum_train::Result<()> {
/// let reports = trainer.fit_with(fit, train, EvaluationSets::new(valid).and("test", test))?;
/// println!("{:?}", reports[0].measures["test/accuracy"]);
/// # Ok(())
/// # }
/// ```
pub struct EvaluationSets<B> {
    main: Option<AnyDataset<B>>,
    others: Vec<(String, AnyDataset<B>)>,
}

/// The sets of a run may be of different types, with batches of one type.
type AnyDataset<B> = Arc<dyn Dataset<Batch = B>>;

impl<B: Collated> EvaluationSets<B> {
    /// The main set.
    pub fn new(main: &(impl Dataset<Batch = B> + Clone)) -> Self {
        Self { main: Some(Arc::new(main.clone())), others: Vec::new() }
    }

    /// Adds a set with this name, which has no `/`. All ranks add the same ones.
    #[must_use]
    pub fn and(mut self, name: &str, data: &(impl Dataset<Batch = B> + Clone)) -> Self {
        self.others.push((name.to_owned(), Arc::new(data.clone())));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.main.is_none()
    }

    /// Refuses names by which measures could not be told apart.
    pub(super) fn check(&self) -> Result<()> {
        for (number, name) in self.names().enumerate() {
            let refuse = |range| Err(Error::option("the name of an evaluation set", &name, range));
            if name.is_empty() || name.contains(|c: char| c == '/' || c.is_control()) {
                return refuse("a word without `/`, such as `test`");
            }
            if TAKEN.contains(&name) {
                return refuse("another one: reports have measures that begin with it already");
            }
            if self.names().take(number).any(|other| other == name) {
                return refuse("another one for each set");
            }
            if self.main.is_none() {
                return refuse(
                    "left out without a main set: `EvaluationSets::new` begins with one",
                );
            }
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(|(name, _)| &**name)
    }

    /// What must be the same on all ranks: the names first, so that the error of a set that a rank lacks is about it.
    pub(super) fn facts(&self) -> Result<Vec<(String, String)>> {
        let names = self.names().collect::<Vec<_>>().join(", ");
        let main = self.main.as_ref().map(parts::described).transpose()?;
        let mut facts = vec![
            ("the further evaluation sets".to_owned(), names),
            ("the test data".to_owned(), main.unwrap_or_default()),
        ];
        for (name, data) in &self.others {
            facts.push((format!("the evaluation set `{name}`"), parts::described(data)?));
        }
        Ok(facts)
    }

    /// All datasets, the main one first.
    pub(super) fn datasets(&self) -> Vec<AnyDataset<B>> {
        let others = self.others.iter().map(|(_, data)| data);
        self.main.iter().chain(others).map(Arc::clone).collect()
    }

    /// The metrics of the main set, which have those of the others beside them.
    pub(super) fn together(&self, metrics: Vec<Metrics>) -> Metrics {
        let mut metrics = metrics.into_iter();
        let mut main = metrics.next().unwrap_or_default();
        for (name, of_set) in self.names().zip(metrics) {
            main.add_set(name, of_set);
        }
        main
    }
}

impl<D: Dataset + Clone> From<&D> for EvaluationSets<D::Batch> {
    fn from(main: &D) -> Self {
        Self::new(main)
    }
}

impl<D: Dataset + Clone> From<Option<&D>> for EvaluationSets<D::Batch> {
    fn from(main: Option<&D>) -> Self {
        main.map_or(Self { main: None, others: Vec::new() }, Self::new)
    }
}

impl<B> fmt::Debug for EvaluationSets<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.others.iter().map(|(name, _)| name).collect();
        f.debug_struct("EvaluationSets").field("others", &names).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_datasets::TensorDataset;
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn names_that_measures_cannot_have_are_refused() {
        let xs = Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu).unwrap();
        let data = TensorDataset::single(xs).unwrap();
        let sets = |names: &[&str]| {
            let main = EvaluationSets::new(&data);
            names.iter().fold(main, |sets, name| sets.and(name, &data))
        };
        sets(&["test", "other hosts", "test-2"]).check().unwrap();
        for (names, expected) in [
            (&["te/st"][..], "the name of an evaluation set is te/st: it must be a word"),
            (&[""], "a word without `/`"),
            (&["ok", "train"], "set is train: it must be another one: reports have"),
            (&["a", "b", "a"], "is a: it must be another one for each set"),
        ] {
            let error = sets(names).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let none = EvaluationSets::from(None::<&TensorDataset<Tensor>>);
        none.check().unwrap();
        assert!(none.and("test", &data).check().is_err());
    }
}
