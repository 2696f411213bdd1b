//! The memory of a strategy: the residuals of error feedback, by parameter name.
//!
//! Error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy
//! et al., ICML 2019, arXiv:1901.09847) adds the values that a step did not send to the next step's
//! gradient, so that they arrive later instead of never. Residuals are stored by parameter name, so
//! they survive a change of buckets and can be saved in a checkpoint.
//!
//! New values are *staged* during a step. They replace the old values only if the step is taken. A
//! step that fails or is skipped changes nothing.

use std::collections::BTreeMap;

use super::Unit;

/// Vectors of numbers, one per kind and parameter.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By kind, then by parameter name. Ordered, because it is written to files.
    vectors: BTreeMap<String, BTreeMap<String, Vector>>,
}

#[derive(Clone, Debug, Default)]
struct Vector {
    values: Vec<f32>,
    /// The staged values. While nothing is staged, the numbers have no meaning but their memory is
    /// kept.
    next: Vec<f32>,
    staged: bool,
}

impl Memory {
    /// The kind of vector that [`Self::add_residual`] and [`Self::set_residual`] use.
    pub const RESIDUAL: &'static str = "residual";

    /// The values of a parameter; `None` or empty before the first step that was taken.
    pub fn get(&self, kind: &str, name: &str) -> Option<&[f32]> {
        Some(&self.vectors.get(kind)?.get(name)?.values)
    }

    /// Stages a vector of `len` elements for a parameter. The caller must write all of its
    /// elements.
    pub fn stage(&mut self, kind: &str, name: &str, len: usize) -> &mut [f32] {
        let known = self.vectors.get(kind).is_some_and(|by_name| by_name.contains_key(name));
        if !known {
            let by_name = self.vectors.entry(kind.to_owned()).or_default();
            by_name.insert(name.to_owned(), Vector::default());
        }
        let vector = self.vectors.get_mut(kind).and_then(|by_name| by_name.get_mut(name));
        vector.map_or(&mut [], |vector| {
            vector.staged = true;
            vector.next.resize(len, 0.0);
            &mut vector.next
        })
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
    pub fn add_residual(&self, unit: &Unit<'_>, values: &mut [f32]) {
        for (param, range) in unit.parameters() {
            let Some(residual) = self.get(Self::RESIDUAL, param.name()) else { continue };
            for (value, kept) in values[range].iter_mut().zip(residual) {
                *value += *kept;
            }
        }
    }

    /// Stages `residual = rest`, or zeros if there is no rest.
    pub fn set_residual(&mut self, unit: &Unit<'_>, rest: Option<&[f32]>) {
        for (param, range) in unit.parameters() {
            let residual = self.stage(Self::RESIDUAL, param.name(), range.len());
            match rest {
                Some(rest) => residual.copy_from_slice(&rest[range]),
                None => residual.fill(0.0),
            }
        }
    }

    /// The Euclidean norm of all residuals, the values that this rank has not sent yet.
    pub fn residual_norm(&self) -> f64 {
        let residuals = self.iter().filter(|(kind, ..)| *kind == Self::RESIDUAL);
        let values = residuals.flat_map(|(.., values)| values);
        values.fold(0.0, |sum, &value| sum + f64::from(value).powi(2)).sqrt()
    }

    /// All values with their kinds and parameter names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &[f32])> {
        self.vectors.iter().flat_map(|(kind, by_name)| {
            let vector = |(name, vector)| -> (&str, &str, &[f32]) {
                let (name, vector): (&String, &Vector) = (name, vector);
                (kind, name, &vector.values)
            };
            by_name.iter().map(vector)
        })
    }
}

/// Collects kinds, parameter names and values, in the form of [`Memory::iter`].
impl FromIterator<(String, String, Vec<f32>)> for Memory {
    fn from_iter<I: IntoIterator<Item = (String, String, Vec<f32>)>>(vectors: I) -> Self {
        let mut memory = Self::default();
        for (kind, name, values) in vectors {
            let by_name = memory.vectors.entry(kind).or_default();
            by_name.insert(name, Vector { values, ..Vector::default() });
        }
        memory
    }
}

/// Compares the present values. Staged and empty vectors do not count.
impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        let known = |(.., values): &(&str, &str, &[f32])| !values.is_empty();
        self.iter().filter(known).eq(other.iter().filter(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_staged_is_remembered_only_if_the_step_is_taken() {
        let mut memory = Memory::default();
        let stage = |memory: &mut Memory, value: f32| {
            memory.stage("residual", "w", 2).fill(value);
        };
        stage(&mut memory, 1.0);
        assert_eq!(memory.residual_norm(), 0.0);
        memory.end_step(true);
        assert_eq!(memory.get("residual", "w"), Some(&[1.0, 1.0][..]));
        let before = memory.clone();
        stage(&mut memory, 2.0);
        memory.end_step(false);
        assert_eq!(memory, before);
        memory.end_step(true);
        assert_eq!(memory, before, "nothing was staged");
        stage(&mut memory, 3.0);
        memory.end_step(true);
        assert_eq!(memory.residual_norm(), f64::sqrt(18.0));
    }

    #[test]
    fn a_memory_is_made_of_what_it_gives() {
        let mut memory = Memory::default();
        memory.stage("residual", "w", 2).copy_from_slice(&[1.0, -2.0]);
        memory.stage("velocity", "b", 1).copy_from_slice(&[0.5]);
        memory.end_step(true);
        let owned = |(kind, name, values): (&str, &str, &[f32])| {
            (kind.to_owned(), name.to_owned(), values.to_vec())
        };
        assert_eq!(memory.iter().map(owned).collect::<Memory>(), memory);
    }
}
