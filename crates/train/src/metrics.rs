//! Counts of training and evaluation.

use std::collections::BTreeMap;

use candelabrum_dist::{Communicator, Error as DistError, Result as DistResult};
use serde::{Deserialize, Serialize};

/// Loss and other measures over some batches. Each measure is a sum and the weight by which it is divided, so
/// the sums of several ranks or batches add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Sum of the batches' mean losses, as SINGA prints it.
    #[serde(with = "bits")]
    pub loss: f64,
    /// The number of samples.
    #[serde(with = "bits")]
    pub samples: f64,
    /// The number of batches.
    #[serde(with = "bits")]
    pub batches: f64,
    /// The sum of the samples' losses. A batch's mean loss counts for each of its samples.
    #[serde(with = "bits")]
    sample_loss: f64,
    measures: BTreeMap<String, Measure>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Measure {
    #[serde(with = "bits")]
    sum: f64,
    #[serde(with = "bits")]
    weight: f64,
}

/// The measure of [`Metrics::accuracy`].
pub(crate) const ACCURACY: &str = "accuracy";

impl Metrics {
    /// Counts a batch of so many samples by its mean loss.
    pub fn add_batch(&mut self, samples: usize, loss: f32) {
        self.loss += f64::from(loss);
        self.samples += samples as f64;
        self.batches += 1.0;
        self.sample_loss += f64::from(loss) * samples as f64;
    }

    /// Adds to the measure called `name`: its value is the sum of all `sum` divided by that of all `weight`.
    pub fn add_measure(&mut self, name: &str, sum: f64, weight: f64) {
        let measure = self.measures.entry(name.to_owned()).or_default();
        measure.sum += sum;
        measure.weight += weight;
    }

    /// The mean loss of a sample. It does not depend on how the samples were divided into batches and among
    /// ranks.
    pub fn mean_loss(&self) -> f64 {
        if self.samples == 0.0 { 0.0 } else { self.sample_loss / self.samples }
    }

    /// The value of a measure, `None` if nothing was measured.
    pub fn measure(&self, name: &str) -> Option<f64> {
        self.measures.get(name).and_then(Measure::value)
    }

    /// All measures with their values, in the order of their names.
    pub fn measures(&self) -> impl Iterator<Item = (&str, f64)> {
        self.measures.iter().filter_map(|(name, measure)| Some((name.as_str(), measure.value()?)))
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
        sum.sample_loss += other.sample_loss;
        for (name, measure) in &other.measures {
            sum.add_measure(name, measure.sum, measure.weight);
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
        // Numbers travel as bits, which JSON can always represent.
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
    fn value(&self) -> Option<f64> {
        (self.weight != 0.0).then(|| self.sum / self.weight)
    }
}

/// A number as its bits: exact, and JSON has neither NaN nor infinity.
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub(super) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;

    use super::*;

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
}
