//! What a strategy remembers between steps: the residual of error feedback, by parameter name.
//!
//! Error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy
//! et al., ICML 2019, arXiv:1901.09847) adds what a step did not send to the next step's gradient,
//! so that nothing is lost, only late. Keyed by name, residuals survive other buckets and belong to
//! a checkpoint.

use std::collections::BTreeMap;

use super::Unit;

/// Vectors of numbers, one per parameter and kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// By kind, then by parameter name; ordered, because it goes into files.
    vectors: BTreeMap<String, BTreeMap<String, Vec<f32>>>,
}

impl Memory {
    /// The kind of vector that [`Self::add_residual`] and [`Self::set_residual`] keep.
    pub const RESIDUAL: &'static str = "residual";

    /// The vector `kind` of the parameter `name`, `len` zeros where there is none yet or one of
    /// another length.
    pub fn vector(&mut self, kind: &str, name: &str, len: usize) -> &mut [f32] {
        let fits = |by_name: &BTreeMap<String, Vec<f32>>| {
            by_name.get(name).is_some_and(|vector| vector.len() == len)
        };
        if !self.vectors.get(kind).is_some_and(fits) {
            let by_name = self.vectors.entry(kind.to_owned()).or_default();
            by_name.insert(name.to_owned(), vec![0.0; len]);
        }
        let vector = self.vectors.get_mut(kind).and_then(|by_name| by_name.get_mut(name));
        vector.map_or(&mut [], Vec::as_mut_slice)
    }

    /// `values += residual`.
    pub fn add_residual(&mut self, unit: &Unit<'_>, values: &mut [f32]) {
        for (param, range) in unit.parameters() {
            let residual = self.vector(Self::RESIDUAL, param.name(), range.len());
            for (value, kept) in values[range].iter_mut().zip(residual) {
                *value += *kept;
            }
        }
    }

    /// `residual = rest`, or zero where there is none.
    pub fn set_residual(&mut self, unit: &Unit<'_>, rest: Option<&[f32]>) {
        for (param, range) in unit.parameters() {
            let residual = self.vector(Self::RESIDUAL, param.name(), range.len());
            match rest {
                Some(rest) => residual.copy_from_slice(&rest[range]),
                None => residual.fill(0.0),
            }
        }
    }

    /// The Euclidean norm of all residuals: how much this rank has yet to send.
    pub fn residual_norm(&self) -> f64 {
        let residuals = self.vectors.get(Self::RESIDUAL).into_iter().flat_map(BTreeMap::values);
        residuals.flatten().fold(0.0, |sum, &value| sum + f64::from(value).powi(2)).sqrt()
    }

    /// Every vector with its kind and parameter name, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &[f32])> {
        self.vectors.iter().flat_map(|(kind, by_name)| {
            by_name.iter().map(|(name, vector)| (kind.as_str(), name.as_str(), vector.as_slice()))
        })
    }
}
