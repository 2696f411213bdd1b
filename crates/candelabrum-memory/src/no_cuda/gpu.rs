//! A GPU for operations, without a value in builds without GPUs.

use std::convert::Infallible;

use candle_core::{CudaStorage, Device};

use super::launch::{Arg, Grid};
use super::memory::{CudaNumbers, CudaNumbersMut, CudaSpan, CudaSpanMut};
use crate::kernels::Kernels;
use crate::{Convolution, ElementType, Flat, Result};

/// A device of candle that is a GPU.
#[derive(Clone, Debug)]
pub struct Gpu(Infallible);

/// A matrix whose rows lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// The numbers.
    pub values: CudaNumbers<'a>,
    /// The rows and columns in memory.
    pub size: (usize, usize),
    /// Whether the product takes the transposed matrix.
    pub transposed: bool,
}

/// Memory for intermediate results.
#[derive(Debug)]
pub struct Scratch(Infallible);

impl Scratch {
    /// The numbers.
    pub fn span(&self) -> CudaSpan<'_> {
        match self.0 {}
    }

    /// The numbers, mutable.
    pub fn span_mut(&mut self) -> CudaSpanMut<'_> {
        match self.0 {}
    }
}

impl Gpu {
    /// # Errors
    /// None, because no value of this type exists.
    pub fn scratch(&self, _len: usize) -> Result<Scratch> {
        match self.0 {}
    }

    /// Always `None`.
    pub fn of(_device: &Device) -> Option<Self> {
        None
    }

    /// The device.
    pub fn device(&self) -> Device {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn numbers(&self, _len: usize) -> Result<Flat> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn numbers_of(&self, _element: ElementType, _len: usize) -> Result<Flat> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn storage(&self, _numbers: Flat) -> Result<CudaStorage> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn launch(
        &self,
        _kernels: Kernels,
        _kernel: &'static str,
        _grid: Grid,
        _args: &[Arg<'_>],
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn launch_for(
        &self,
        _number: ElementType,
        _kernels: Kernels,
        _kernel: &'static str,
        _grid: Grid,
        _args: &[Arg<'_>],
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn write_constant(
        &self,
        _kernels: Kernels,
        _name: &'static str,
        _numbers: &[f32],
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn matmul(
        &self,
        _out: CudaNumbersMut<'_>,
        _add: bool,
        _a: Matrix<'_>,
        _b: Matrix<'_>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn affine(
        &self,
        _out: CudaNumbersMut<'_>,
        _a: Matrix<'_>,
        _b: Matrix<'_>,
        _bias: CudaNumbers<'_>,
    ) -> Result<bool> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn convolve(
        &self,
        _sizes: &Convolution,
        _ys: CudaNumbersMut<'_>,
        _xs: CudaNumbers<'_>,
        _weight: CudaNumbers<'_>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn convolve_back_to_input(
        &self,
        _sizes: &Convolution,
        _dxs: CudaNumbersMut<'_>,
        _weight: CudaNumbers<'_>,
        _dys: CudaNumbers<'_>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn convolve_back_to_weight(
        &self,
        _sizes: &Convolution,
        _dweight: CudaNumbersMut<'_>,
        _xs: CudaNumbers<'_>,
        _dys: CudaNumbers<'_>,
    ) -> Result<()> {
        match self.0 {}
    }
}
