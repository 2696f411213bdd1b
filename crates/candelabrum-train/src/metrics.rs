//! Counts of training and evaluation.

use std::collections::{BTreeMap, BTreeSet};

use candelabrum_dist::{Communicator, Error as DistError, Result as DistResult};
use candelabrum_runlog::{Number, number};
use serde::{Deserialize, Serialize};

use crate::Confusion;

/// Loss and other measures over some batches. Each measure is a sum and the weight by which it is divided, so
/// the sums of several ranks or batches add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SavedMetrics")]
pub struct Metrics {
    /// Sum of the batches' mean losses, as SINGA prints it.
    #[serde(with = "number::single")]
    pub loss: f64,
    /// The number of samples.
    #[serde(with = "number::single")]
    pub samples: f64,
    /// The number of batches.
    #[serde(with = "number::single")]
    pub batches: f64,
    /// The mean losses of the batches, each with the weight of what it counted.
    weighted_loss: Measure,
    measures: BTreeMap<String, Measure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confusion: Option<Confusion>,
    /// Whether the perplexity is one of the measures.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    perplexity: bool,
    /// Those of further evaluation sets, by the names of the sets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sets: BTreeMap<String, Metrics>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Measure {
    #[serde(with = "number::single")]
    sum: f64,
    #[serde(with = "number::single")]
    weight: f64,
}

/// The measure of [`Metrics::accuracy`].
pub(crate) const ACCURACY: &str = "accuracy";

/// The measure of [`Metrics::confusion`].
const MACRO_F1: &str = "f1_macro";

/// The name of [`Metrics::mean_loss`] where measures have names.
const LOSS: &str = "loss";

/// The exponential of the mean loss.
const PERPLEXITY: &str = "perplexity";

impl Metrics {
    /// Counts a batch of so many samples by its mean loss, for a loss that counts all samples.
    pub fn add_batch(&mut self, samples: usize, loss: f32) {
        self.add_weighted_batch(samples, loss, samples as f64);
    }

    /// Counts a batch of so many samples by its mean loss, which has this
    /// [weight](candelabrum_nn::LossWeight): the number of tokens that are not ignored, for instance.
    pub fn add_weighted_batch(&mut self, samples: usize, loss: f32, weight: f64) {
        self.samples += samples as f64;
        self.batches += 1.0;
        // A loss that counts nothing is no loss.
        if weight != 0.0 {
            self.loss += f64::from(loss);
            self.weighted_loss.add(f64::from(loss) * weight, weight);
        }
    }

    /// Adds to the measure called `name`: its value is the sum of all `sum` divided by that of all `weight`.
    pub fn add_measure(&mut self, name: &str, sum: f64, weight: f64) {
        self.measures.entry(name.to_owned()).or_default().add(sum, weight);
    }

    /// Adds counts of right and predicted classes.
    pub fn add_confusion(&mut self, confusion: &Confusion) {
        self.confusion.get_or_insert_default().add_all(confusion);
    }

    /// Makes the exponential of [`mean_loss`](Self::mean_loss) one of the measures.
    pub(crate) fn tell_perplexity(&mut self) {
        self.perplexity = true;
    }

    /// How often each class was taken for each other one, if a [`ConfusionMatrix`](crate::ConfusionMatrix) counts it.
    pub fn confusion(&self) -> Option<&Confusion> {
        self.confusion.as_ref()
    }

    /// The mean loss of what the losses counted: of a sample, or of a token that is not ignored. It does not
    /// depend on how the samples were divided into batches and among ranks. 0 without batches, and NaN if the losses of
    /// all batches have counted nothing.
    pub fn mean_loss(&self) -> f64 {
        let nothing = if self.batches == 0.0 { 0.0 } else { f64::NAN };
        self.weighted_loss.value().unwrap_or(nothing)
    }

    /// How much the losses have counted.
    pub fn loss_weight(&self) -> f64 {
        self.weighted_loss.weight
    }

    /// Adds what was measured on a further evaluation set.
    pub(crate) fn add_set(&mut self, name: &str, metrics: Self) {
        self.sets.insert(name.to_owned(), metrics);
    }

    /// What was measured on each further one of the [`EvaluationSets`](crate::EvaluationSets), by its name.
    pub fn sets(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.sets.iter().map(|(name, metrics)| (&**name, metrics))
    }

    /// The measures of each further evaluation set, its mean loss among them, as `SET/NAME`.
    pub(crate) fn measures_of_sets(&self) -> impl Iterator<Item = (String, f64)> {
        self.sets().flat_map(|(set, metrics)| metrics.measures_of(set))
    }

    /// The measures of the evaluation set of this name, which these metrics are of, with its mean loss.
    pub(crate) fn measures_of(&self, set: &str) -> impl Iterator<Item = (String, f64)> {
        let all = [(LOSS, self.mean_loss())].into_iter().chain(self.measures());
        all.map(move |(name, value)| (format!("{set}/{name}"), value))
    }

    /// The value that hooks know by this name: `loss`, a measure, or `SET/loss` and `SET/NAME` of a further evaluation
    /// set. `None` if it was not measured, and NaN if nothing counted.
    pub(crate) fn monitored(&self, name: &str) -> Option<f64> {
        if name == LOSS {
            return Some(self.mean_loss());
        }
        let own = self.measure(name).or(self.knows(name).then_some(f64::NAN));
        own.or_else(|| {
            let (set, name) = name.split_once('/')?;
            self.sets.get(set)?.monitored(name)
        })
    }

    /// The value of a measure, `None` if nothing was measured.
    pub fn measure(&self, name: &str) -> Option<f64> {
        match (name, &self.confusion) {
            (MACRO_F1, Some(confusion)) => confusion.macro_f1(),
            (PERPLEXITY, _) if self.perplexity => self.weighted_loss.value().map(f64::exp),
            _ => self.measures.get(name).and_then(Measure::value),
        }
    }

    /// Whether a score has added to this measure, if only with a weight of 0.
    fn knows(&self, name: &str) -> bool {
        self.measures.contains_key(name)
            || name == MACRO_F1 && self.confusion.is_some()
            || name == PERPLEXITY && self.perplexity
    }

    /// All measures with their values, in the order of their names.
    pub fn measures(&self) -> impl Iterator<Item = (&str, f64)> {
        let names = self.measures.keys().map(String::as_str);
        let names: BTreeSet<&str> = names.chain(self.computed()).collect();
        names.into_iter().filter_map(|name| Some((name, self.measure(name)?)))
    }

    /// The names of the measures that are computed from others.
    fn computed(&self) -> impl Iterator<Item = &str> {
        let confusion = self.confusion.as_ref().map(|_| MACRO_F1);
        confusion.into_iter().chain(self.perplexity.then_some(PERPLEXITY))
    }

    /// The share of samples, or of tokens, that were classified correctly. 0 if nothing was classified.
    pub fn accuracy(&self) -> f64 {
        self.measure(ACCURACY).unwrap_or(0.0)
    }

    /// The sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.loss += other.loss;
        sum.samples += other.samples;
        sum.batches += other.batches;
        sum.weighted_loss.add(other.weighted_loss.sum, other.weighted_loss.weight);
        for (name, measure) in &other.measures {
            sum.add_measure(name, measure.sum, measure.weight);
        }
        if let Some(confusion) = &other.confusion {
            sum.add_confusion(confusion);
        }
        sum.perplexity |= other.perplexity;
        for (name, metrics) in &other.sets {
            let own = sum.sets.entry(name.clone()).or_default();
            *own = own.plus(metrics);
        }
        sum
    }

    /// The sum over all ranks, added in rank order, so it is the same on every rank.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn over_ranks(&self, comm: &dyn Communicator) -> DistResult<Self> {
        if comm.world_size() == 1 {
            return Ok(self.clone());
        }
        let own = serde_json::to_string(self).unwrap_or_default();
        let mut sum = Self::default();
        for text in comm.all_gather_text(&own)? {
            let unreadable = |error: serde_json::Error| DistError::Protocol {
                what: format!("a rank sent unreadable metrics: {error}"),
            };
            sum = sum.plus(&serde_json::from_str(&text).map_err(unreadable)?);
        }
        Ok(sum)
    }
}

impl Measure {
    fn add(&mut self, sum: f64, weight: f64) {
        self.sum += sum;
        self.weight += weight;
    }

    fn value(&self) -> Option<f64> {
        (self.weight != 0.0).then(|| self.sum / self.weight)
    }
}

/// Metrics in a file of this version, or of one that wrote numbers as their bits.
#[derive(Deserialize)]
#[serde(untagged)]
enum SavedMetrics {
    Numbers {
        loss: Number,
        samples: Number,
        batches: Number,
        weighted_loss: Measure,
        measures: BTreeMap<String, Measure>,
        #[serde(default)]
        confusion: Option<Confusion>,
        #[serde(default)]
        perplexity: bool,
        #[serde(default)]
        sets: BTreeMap<String, Metrics>,
    },
    Bits {
        loss: u64,
        samples: u64,
        batches: u64,
        sample_loss: u64,
        measures: BTreeMap<String, MeasureBits>,
    },
}

#[derive(Deserialize)]
struct MeasureBits {
    sum: u64,
    weight: u64,
}

impl From<SavedMetrics> for Metrics {
    fn from(saved: SavedMetrics) -> Self {
        match saved {
            SavedMetrics::Numbers {
                loss,
                samples,
                batches,
                weighted_loss,
                measures,
                confusion,
                perplexity,
                sets,
            } => {
                let [loss, samples, batches] = [loss, samples, batches].map(f64::from);
                Self {
                    loss,
                    samples,
                    batches,
                    weighted_loss,
                    measures,
                    confusion,
                    perplexity,
                    sets,
                }
            }
            SavedMetrics::Bits { loss, samples, batches, sample_loss, measures } => {
                let [loss, samples, batches, sum] =
                    [loss, samples, batches, sample_loss].map(f64::from_bits);
                let measures = measures.into_iter().map(|(name, MeasureBits { sum, weight })| {
                    let [sum, weight] = [sum, weight].map(f64::from_bits);
                    (name, Measure { sum, weight })
                });
                let weighted_loss = Measure { sum, weight: samples };
                let measures = measures.collect();
                Self { loss, samples, batches, weighted_loss, measures, ..Self::default() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;

    use super::*;

    #[test]
    fn the_perplexity_is_that_of_all_batches_together() {
        let mut metrics = Metrics::default();
        metrics.add_weighted_batch(1, 2.0, 10.0);
        metrics.add_weighted_batch(1, 5.0, 20.0);
        assert_eq!((metrics.measure(PERPLEXITY), metrics.knows(PERPLEXITY)), (None, false));
        metrics.tell_perplexity();
        let sum = Metrics::default().plus(&metrics);
        assert_eq!(sum.measures().collect::<Vec<_>>(), [(PERPLEXITY, 4_f64.exp())]);
        let text = serde_json::to_string(&sum).expect("metrics are JSON");
        assert_eq!(serde_json::from_str::<Metrics>(&text).expect("metrics"), sum);
    }

    #[test]
    fn measures_of_further_sets_have_the_names_of_their_sets() {
        let of = |loss, hits| {
            let mut metrics = Metrics::default();
            metrics.add_batch(2, loss);
            metrics.add_measure(ACCURACY, hits, 2.0);
            metrics
        };
        let mut metrics = of(0.5, 1.0);
        metrics.add_set("test", of(0.25, 2.0));
        let values = ["loss", "accuracy", "test/loss", "test/accuracy", "test/mae", "other/loss"]
            .map(|name| metrics.monitored(name));
        assert_eq!(values, [Some(0.5), Some(0.5), Some(0.25), Some(1.0), None, None]);
        assert_eq!(metrics.measures().collect::<Vec<_>>(), [(ACCURACY, 0.5)]);
        let of_sets = [("test/loss".to_owned(), 0.25), ("test/accuracy".to_owned(), 1.0)];
        assert_eq!(metrics.measures_of_sets().collect::<Vec<_>>(), of_sets);
        let text = serde_json::to_string(&metrics).unwrap();
        assert_eq!(serde_json::from_str::<Metrics>(&text).unwrap(), metrics);
        let twice = metrics.plus(&metrics);
        assert_eq!(twice.sets().map(|(_, set)| set.samples).collect::<Vec<_>>(), [4.0]);
    }

    #[test]
    fn measures_are_sums_that_add_up() {
        let mut metrics = Metrics::default();
        metrics.add_batch(3, 0.5);
        metrics.add_measure(ACCURACY, 2.0, 3.0);
        metrics.add_measure("nothing", 0.0, 0.0);
        let twice = metrics.plus(&metrics);
        assert_eq!((twice.loss, twice.samples, twice.batches), (1.0, 6.0, 2.0));
        assert_eq!((twice.mean_loss(), twice.accuracy()), (0.5, 4.0 / 6.0));
        metrics.add_batch(1, 1.5);
        assert_eq!((metrics.loss, metrics.mean_loss()), (2.0, 0.75), "a smaller batch counts less");
        assert_eq!(twice.measures().collect::<Vec<_>>(), [(ACCURACY, 4.0 / 6.0)]);
        assert_eq!(metrics.over_ranks(World::single().comm()).unwrap(), metrics);
        assert_eq!((Metrics::default().accuracy(), Metrics::default().mean_loss()), (0.0, 0.0));
    }

    #[test]
    fn every_number_survives_a_file() {
        let mut metrics = Metrics { loss: f64::NAN, ..Metrics::default() };
        metrics.add_measure("perplexity", f64::INFINITY, 0.1 + 0.2);
        let text = serde_json::to_string(&metrics).unwrap();
        let read: Metrics = serde_json::from_str(&text).unwrap();
        assert!(read.loss.is_nan());
        assert_eq!(read.measures, metrics.measures);
    }

    #[test]
    fn metrics_of_the_format_before_are_read() {
        let bits = f64::to_bits;
        let text = format!(
            r#"{{"loss":{},"samples":{},"batches":{},"sample_loss":{},"measures":{{"mae":{{"sum":{},"weight":{}}}}}}}"#,
            bits(f64::INFINITY),
            bits(4.0),
            bits(2.0),
            bits(6.0),
            bits(0.1),
            bits(0.2),
        );
        let read: Metrics = serde_json::from_str(&text).unwrap();
        let Metrics { loss, samples, batches, .. } = read;
        assert_eq!((loss, samples, batches), (f64::INFINITY, 4.0, 2.0));
        assert_eq!((read.mean_loss(), read.measure("mae")), (1.5, Some(0.1 / 0.2)));
    }

    #[test]
    fn a_loss_weighs_what_it_counted() {
        let mut metrics = Metrics::default();
        metrics.add_weighted_batch(4, 2.0, 1.0);
        metrics.add_weighted_batch(4, 1.0, 3.0);
        metrics.add_weighted_batch(4, f32::NAN, 0.0);
        assert_eq!((metrics.mean_loss(), metrics.loss_weight()), (1.25, 4.0));
        assert_eq!((metrics.loss, metrics.samples, metrics.batches), (3.0, 12.0, 3.0));
        let mut nothing = Metrics::default();
        nothing.add_weighted_batch(4, 0.0, 0.0);
        assert!(nothing.mean_loss().is_nan());
    }
}
