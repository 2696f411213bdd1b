//! The norm and the search of spans on a GPU, without a value in builds without GPUs.

use std::convert::Infallible;

use super::memory::CudaSpan;
use super::not_compiled;
use crate::Result;

/// The sum of the squares of spans on a GPU.
#[derive(Debug)]
pub struct CudaNorm(Infallible);

/// A search for the first number that is not finite in spans on a GPU.
#[derive(Debug)]
pub struct CudaSearch(Infallible);

impl CudaNorm {
    /// Zero, on the device of `values`.
    pub(crate) fn new(_values: CudaSpan<'_>) -> Result<Self> {
        Err(not_compiled())
    }

    /// Adds the squares of `values`.
    pub(crate) fn add(&mut self, _values: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }

    /// The sum. Waits for the device.
    pub(crate) fn sum_of_squares(&self) -> Result<f64> {
        match self.0 {}
    }
}

impl CudaSearch {
    /// A search on the device of `values`, that has found nothing yet.
    pub(crate) fn new(_values: CudaSpan<'_>) -> Result<Self> {
        Err(not_compiled())
    }

    /// Checks the numbers of `unit`.
    pub(crate) fn look(&mut self, _unit: usize, _values: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }

    /// The lowest unit with a bad number, and the position of its first bad number. Waits for the
    /// device.
    pub(crate) fn first(&self) -> Result<Option<(usize, usize)>> {
        match self.0 {}
    }
}
