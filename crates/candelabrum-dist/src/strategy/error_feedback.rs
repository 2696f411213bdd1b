//! The error feedback of a strategy: the residuals, by parameter name.
//!
//! Error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy
//! et al., ICML 2019, arXiv:1901.09847) adds the values that a step did not send to the next step's
//! gradient, so that they arrive later instead of never. Residuals are stored by parameter name, so
//! they survive a change of buckets and can be saved in a checkpoint.
//!
//! New values are *staged* during a step. They replace the old values only if the step is taken. A
//! step that fails or is skipped changes nothing.
//!
//! A residual is where its strategy works: on the host, or on a GPU. The first bucket that needs it at
//! the other place moves it. So a state that was saved on a CPU continues on a GPU, and the reverse.

use std::collections::BTreeMap;
use std::sync::Arc;

use candelabrum_memory::{ElementType, FlatTensor, Norm, Span, SpanMut};

use super::Bucket;
use crate::Result;

/// Vectors of numbers, one per kind and parameter. A clone is a snapshot and copies no numbers.
#[derive(Clone, Debug, Default)]
pub struct ErrorFeedback {
    /// By kind, then by parameter name. Ordered, because it is written to files.
    vectors: BTreeMap<String, BTreeMap<String, StagedVector>>,
}

/// Values do not change: a step that is taken exchanges them for the staged ones. So clones share
/// them.
#[derive(Clone, Debug)]
struct StagedVector {
    values: Arc<FlatTensor>,
    /// The staged values. While nothing is staged, the numbers have no meaning but their memory is
    /// kept.
    next: Arc<FlatTensor>,
    staged: bool,
}

impl From<FlatTensor> for StagedVector {
    fn from(values: FlatTensor) -> Self {
        Self { values: Arc::new(values), next: Arc::new(zeros(0)), staged: false }
    }
}

impl Default for StagedVector {
    fn default() -> Self {
        zeros(0).into()
    }
}

fn zeros(len: usize) -> FlatTensor {
    FlatTensor::zeros(ElementType::F32, len)
}

impl StagedVector {
    /// Memory of its own for `len` staged values on the host or on a GPU. `make` allocates it if the
    /// memory that was kept does not fit.
    fn stage(
        &mut self,
        len: usize,
        on_device: bool,
        make: impl FnOnce() -> Result<FlatTensor>,
    ) -> Result<&mut FlatTensor> {
        let fits = self.next.len() == len && self.next.is_on_device() == on_device;
        if !fits || Arc::get_mut(&mut self.next).is_none() {
            self.next = Arc::new(make()?);
        }
        self.staged = true;
        Ok(Arc::get_mut(&mut self.next)
            .expect("no clone shares memory that was just made or found"))
    }
}

impl ErrorFeedback {
    /// The kind of vector that [`Self::add_residual`] and [`Self::set_residual`] use.
    pub const RESIDUAL: &'static str = "residual";

    /// The values of a parameter; `None` or empty before the first step that was taken. `None` for
    /// values on a GPU.
    pub fn get(&self, kind: &str, name: &str) -> Option<&[f32]> {
        self.vectors.get(kind)?.get(name)?.values.as_slice().ok()
    }

    /// The bytes of all vectors, the staged ones, too.
    pub fn bytes(&self) -> usize {
        let vectors = self.vectors.values().flat_map(BTreeMap::values);
        vectors.map(|vector| vector.values.byte_len() + vector.next.byte_len()).sum()
    }

    /// Stages a vector of `len` elements on the host for a parameter. The caller must write all of
    /// its elements.
    pub fn stage(&mut self, kind: &str, name: &str, len: usize) -> &mut [f32] {
        let staged = self.vector(kind, name).stage(len, false, || Ok(zeros(len)));
        staged.and_then(|staged| Ok(staged.as_mut_slice()?)).unwrap_or_default()
    }

    /// Makes the staged values the present ones if the step was `taken`, and drops them otherwise.
    pub fn end_step(&mut self, taken: bool) {
        for vector in self.vectors.values_mut().flat_map(BTreeMap::values_mut) {
            if std::mem::take(&mut vector.staged) && taken {
                std::mem::swap(&mut vector.values, &mut vector.next);
            }
        }
    }

    /// `values += residual`.
    ///
    /// # Errors
    /// A device's error.
    pub fn add_residual(&mut self, bucket: &Bucket<'_>, mut values: SpanMut<'_>) -> Result<()> {
        for (param, range) in bucket.parameters() {
            let vector = self.vector(Self::RESIDUAL, param.name());
            if vector.values.is_empty() {
                continue;
            }
            let mut values = values.reborrow().range(range);
            if vector.values.is_on_device() != matches!(values, SpanMut::Cuda(_)) {
                let mut moved = values.as_span().to_flat()?; // memory of the right kind
                moved.span_mut()?.copy_from(vector.values.span()?)?;
                vector.values = Arc::new(moved);
            }
            values.add(vector.values.span()?)?;
        }
        Ok(())
    }

    /// Stages `residual = rest`, or zeros if there is no rest.
    ///
    /// # Errors
    /// A device's error.
    pub fn set_residual(&mut self, bucket: &Bucket<'_>, rest: Option<Span<'_>>) -> Result<()> {
        for (param, range) in bucket.parameters() {
            let vector = self.vector(Self::RESIDUAL, param.name());
            let len = range.len();
            match rest.map(|rest| rest.range(range)) {
                Some(rest) => {
                    let on_device = matches!(rest, Span::Cuda(_));
                    let staged = vector.stage(len, on_device, || Ok(rest.to_flat()?))?;
                    staged.span_mut()?.copy_from(rest)?;
                }
                None => {
                    // The first zeros are on the host. The next step moves them if need be.
                    let values = Arc::clone(&vector.values);
                    let make = || match values.len() {
                        0 => Ok(zeros(len)),
                        _ => Ok(values.span()?.to_flat()?),
                    };
                    let staged = vector.stage(len, values.is_on_device(), make)?;
                    staged.span_mut()?.fill(0.0)?;
                }
            }
        }
        Ok(())
    }

    /// The Euclidean norm of all residuals, the values that this rank has not sent yet. Waits for a
    /// GPU.
    ///
    /// # Errors
    /// A device's error.
    pub fn residual_norm(&self) -> Result<f64> {
        let mut norm = Norm::default();
        for vector in self.vectors.get(Self::RESIDUAL).into_iter().flat_map(BTreeMap::values) {
            norm.add(vector.values.span()?)?;
        }
        Ok(norm.get()?)
    }

    /// A copy with all values on the host, as [`Self::iter`] needs them. Waits for a GPU.
    ///
    /// # Errors
    /// A device's error.
    pub fn to_host(&self) -> Result<Self> {
        let mut copy = self.clone();
        for vector in copy.vectors.values_mut().flat_map(BTreeMap::values_mut) {
            if vector.values.is_on_device() {
                *vector = vector.values.to_host()?.into();
            }
        }
        Ok(copy)
    }

    /// All values on the host with their kinds and parameter names, in order. Values on a GPU are
    /// not among them: see [`Self::to_host`].
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &[f32])> {
        self.vectors.iter().flat_map(|(kind, by_name)| {
            by_name.iter().filter_map(move |(name, vector)| {
                let values = vector.values.as_slice().ok().filter(|values| !values.is_empty())?;
                Some((kind.as_str(), name.as_str(), values))
            })
        })
    }

    fn all(&self) -> impl Iterator<Item = &StagedVector> {
        self.vectors.values().flat_map(BTreeMap::values)
    }

    fn vector(&mut self, kind: &str, name: &str) -> &mut StagedVector {
        let by_name = self.vectors.entry(kind.to_owned()).or_default();
        by_name.entry(name.to_owned()).or_default()
    }
}

/// Collects kinds, parameter names and values, in the form of [`ErrorFeedback::iter`].
impl FromIterator<(String, String, Vec<f32>)> for ErrorFeedback {
    fn from_iter<I: IntoIterator<Item = (String, String, Vec<f32>)>>(vectors: I) -> Self {
        let mut feedback = Self::default();
        for (kind, name, values) in vectors {
            let by_name = feedback.vectors.entry(kind).or_default();
            by_name.insert(name, FlatTensor::from_slice(&values).into());
        }
        feedback
    }
}

/// Compares the present values. Staged vectors do not count. Values on a GPU equal nothing.
impl PartialEq for ErrorFeedback {
    fn eq(&self, other: &Self) -> bool {
        let on_host = |feedback: &Self| feedback.all().all(|vector| !vector.values.is_on_device());
        on_host(self) && on_host(other) && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_staged_is_remembered_only_if_the_step_is_taken() {
        let mut feedback = ErrorFeedback::default();
        let stage = |feedback: &mut ErrorFeedback, value: f32| {
            feedback.stage("residual", "w", 2).fill(value);
        };
        stage(&mut feedback, 1.0);
        assert_eq!(feedback.residual_norm().unwrap(), 0.0);
        feedback.end_step(true);
        assert_eq!(feedback.get("residual", "w"), Some(&[1.0, 1.0][..]));
        let before = feedback.clone();
        stage(&mut feedback, 2.0);
        feedback.end_step(false);
        assert_eq!(feedback, before);
        feedback.end_step(true);
        assert_eq!(feedback, before, "nothing was staged");
        stage(&mut feedback, 3.0);
        feedback.end_step(true);
        assert_eq!(feedback.residual_norm().unwrap(), f64::sqrt(18.0));
    }

    #[test]
    fn a_clone_stays_as_it_was() {
        let mut feedback = ErrorFeedback::default();
        let mut step = |taken: bool, value: f32| {
            feedback.stage("residual", "w", 2).fill(value);
            feedback.end_step(taken);
            feedback.clone()
        };
        let clones = [step(false, 1.0), step(true, 2.0), step(true, 3.0), step(true, 4.0)];
        let of = |feedback: &ErrorFeedback| {
            feedback.iter().map(|(.., values)| values[0]).collect::<Vec<_>>()
        };
        assert_eq!(clones.each_ref().map(of), [vec![], vec![2.0], vec![3.0], vec![4.0]]);
    }

    #[test]
    fn an_error_feedback_is_made_of_what_it_gives() {
        let mut feedback = ErrorFeedback::default();
        feedback.stage("residual", "w", 2).copy_from_slice(&[1.0, -2.0]);
        feedback.stage("velocity", "b", 1).copy_from_slice(&[0.5]);
        feedback.end_step(true);
        let owned = |(kind, name, values): (&str, &str, &[f32])| {
            (kind.to_owned(), name.to_owned(), values.to_vec())
        };
        assert_eq!(feedback.iter().map(owned).collect::<ErrorFeedback>(), feedback);
    }
}
