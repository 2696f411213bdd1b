//! An optimizer's formula as a kernel, without a value in builds without GPUs.

use std::convert::Infallible;
use std::marker::PhantomData;

use super::memory::{CudaSpan, CudaSpanMut};
use crate::Result;
use crate::kernels::{Formula, SCALARS};

/// An update of several parameters by one formula, in one launch.
#[derive(Debug)]
pub struct JointUpdate<'a>(Infallible, PhantomData<&'a mut [f32]>);

/// The table of an update that is repeated.
#[derive(Debug, Default)]
pub struct UpdateTable(());

impl<'a> JointUpdate<'a> {
    /// An update of no parameters so far, on the device of `grad`.
    pub fn new(_formula: Formula, grad: CudaSpan<'a>, _table: &'a mut UpdateTable) -> Self {
        match grad.0 {}
    }

    /// Whether a parameter with this formula, these scalars and this gradient can be added.
    pub fn takes(&self, _formula: Formula, _scalars: &[f64; SCALARS], _grad: CudaSpan<'_>) -> bool {
        match self.0 {}
    }

    /// Adds a parameter, its gradient and its state vectors.
    pub fn push(
        &mut self,
        _value: CudaSpanMut<'a>,
        _grad: CudaSpan<'a>,
        _state: Vec<CudaSpanMut<'a>>,
        _scalars: [f64; SCALARS],
    ) {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn run(self) -> Result<()> {
        match self.0 {}
    }
}
