//! Zeros, for processors whose assembly is not known here.

use super::super::float::Float;

/// A vector of `len` elements.
pub(super) fn vector<T: Float>(len: usize) -> Vec<T> {
    vec![T::default(); len]
}
