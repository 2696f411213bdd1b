//! Memory on a GPU and runs of its numbers, without a value in builds without GPUs.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

use candle_core::{CudaStorage, Device, Layout, Tensor};

use super::not_compiled;
use crate::{ElementType, Result};

/// Bytes on a GPU.
#[derive(Debug)]
pub struct CudaMemory(pub(super) Infallible);

/// A run of f32 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaSpan<'a>(pub(super) Infallible, PhantomData<&'a [f32]>);

/// A mutable run of f32 numbers on a GPU.
#[derive(Debug)]
pub struct CudaSpanMut<'a>(pub(super) Infallible, PhantomData<&'a mut [f32]>);

/// A run of f32, f16 or bf16 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaNumbers<'a>(pub(super) Infallible, PhantomData<&'a [u8]>);

/// A mutable run of f32, f16 or bf16 numbers on a GPU.
#[derive(Debug)]
pub struct CudaNumbersMut<'a>(pub(super) Infallible, PhantomData<&'a mut [u8]>);

/// A run of whole numbers of type u8, u32 or i64 on a GPU, read-only.
#[derive(Clone, Copy, Debug)]
pub struct CudaIndices<'a>(pub(super) Infallible, PhantomData<&'a [u8]>);

/// # Errors
/// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
pub(crate) fn zeros(_device: &Device, _bytes: usize) -> Result<CudaMemory> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
pub fn span<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaSpan<'a>> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
pub fn numbers<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaNumbers<'a>> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
pub fn span_mut<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaSpanMut<'a>> {
    Err(not_compiled())
}

/// # Errors
/// None, because no value of [`CudaSpan`] exists.
pub fn round_all(_rounded: &[(CudaSpan<'_>, &CudaStorage, &Layout)]) -> Result<()> {
    Ok(())
}

/// # Errors
/// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
pub fn indices<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaIndices<'a>> {
    Err(not_compiled())
}

impl CudaIndices<'_> {
    /// The number of indices.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The bytes of one index.
    pub fn element_size(&self) -> usize {
        match self.0 {}
    }
}

impl CudaMemory {
    /// The first `len` f32 numbers.
    pub(crate) fn span(&self, _len: usize) -> CudaSpan<'_> {
        match self.0 {}
    }

    /// The first `len` f32 numbers, mutable.
    pub(crate) fn span_mut(&mut self, _len: usize) -> CudaSpanMut<'_> {
        match self.0 {}
    }

    /// The first `len` numbers of this type.
    pub(crate) fn numbers(&self, _element: ElementType, _len: usize) -> Result<CudaNumbers<'_>> {
        match self.0 {}
    }

    /// The first `len` numbers of this type, mutable.
    pub(crate) fn numbers_mut(
        &mut self,
        _element: ElementType,
        _len: usize,
    ) -> Result<CudaNumbersMut<'_>> {
        match self.0 {}
    }

    /// Copies the first bytes to the host, and waits for the copy.
    pub(crate) fn read(&self, _to: &mut [u8]) -> Result<()> {
        match self.0 {}
    }

    /// Copies bytes from the host to the beginning of this memory, and waits for the copy.
    pub(crate) fn write(&mut self, _from: &[u8]) -> Result<()> {
        match self.0 {}
    }

    /// Fills this memory with the `len` elements of a contiguous tensor on a GPU.
    pub(crate) fn copy_from_tensor(
        &mut self,
        _element: ElementType,
        _len: usize,
        _tensor: &Tensor,
    ) -> Result<()> {
        match self.0 {}
    }

    /// Fills a contiguous tensor on a GPU with the `len` elements of this memory.
    pub(crate) fn copy_to_tensor(
        &self,
        _element: ElementType,
        _len: usize,
        _tensor: &Tensor,
    ) -> Result<()> {
        match self.0 {}
    }
}

impl<'a> CudaSpan<'a> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The address of the first number on the device.
    pub fn address(self) -> u64 {
        match self.0 {}
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, _range: Range<usize>) -> Self {
        match self.0 {}
    }

    /// Copies the numbers to the host, and waits for the copy. `to` must have as many.
    ///
    /// # Errors
    /// The driver's error.
    pub fn download(self, _to: &mut [f32]) -> Result<()> {
        match self.0 {}
    }

    /// Writes the numbers divided by `divisor` to `to`, in fp16 or bf16 (`element`), rounded to
    /// nearest, ties to even.
    pub(crate) fn narrow(
        self,
        _divisor: f32,
        _element: ElementType,
        _to: &mut CudaMemory,
    ) -> Result<()> {
        match self.0 {}
    }
}

impl<'a> CudaSpanMut<'a> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The same numbers, read-only.
    pub fn as_span(&self) -> CudaSpan<'_> {
        match self.0 {}
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> CudaSpanMut<'_> {
        match self.0 {}
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, _range: Range<usize>) -> Self {
        match self.0 {}
    }

    /// The first `at` numbers, and the rest.
    ///
    /// # Panics
    /// With an `at` above the length.
    #[must_use]
    pub fn split_at(self, _at: usize) -> (Self, Self) {
        match self.0 {}
    }

    /// Copies numbers from the host, and waits for the copy. `from` must have as many.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload(&mut self, _from: &[f32]) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn fill(&mut self, _value: f32) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn scale(&mut self, _factor: f32) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn clamp(&mut self, _limit: f32) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn copy_from(&mut self, _from: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn add(&mut self, _from: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }

    /// Replaces the first number by NaN if one of `others` is not finite.
    pub(crate) fn poison_unless_finite(&mut self, _others: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }

    /// Replaces the numbers by those of `from`, in fp16 or bf16 (`element`), exactly.
    pub(crate) fn widen(&mut self, _element: ElementType, _from: &CudaMemory) -> Result<()> {
        match self.0 {}
    }
}

impl<'a> From<CudaSpan<'a>> for CudaNumbers<'a> {
    fn from(numbers: CudaSpan<'a>) -> Self {
        match numbers.0 {}
    }
}

impl<'a> From<CudaSpanMut<'a>> for CudaNumbersMut<'a> {
    fn from(numbers: CudaSpanMut<'a>) -> Self {
        match numbers.0 {}
    }
}

impl<'a> CudaNumbers<'a> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// The address of the first number on the device.
    pub fn address(self) -> u64 {
        match self.0 {}
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn as_f32(self) -> Result<CudaSpan<'a>> {
        match self.0 {}
    }

    /// A copy on the device, in the same type.
    pub(crate) fn copy(self) -> Result<CudaMemory> {
        match self.0 {}
    }
}

impl CudaNumbersMut<'_> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        match self.0 {}
    }

    /// The same numbers, read-only.
    pub fn as_numbers(&self) -> CudaNumbers<'_> {
        match self.0 {}
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> CudaNumbersMut<'_> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn clear(&mut self) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn copy_from(&mut self, _from: CudaNumbers<'_>) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn add(&mut self, _from: CudaNumbers<'_>) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn round_from(&mut self, _from: CudaSpan<'_>) -> Result<()> {
        match self.0 {}
    }
}

impl CudaSpanMut<'_> {
    /// # Errors
    /// None, because no value of this type exists.
    pub fn widen_from(&mut self, _from: CudaNumbers<'_>) -> Result<()> {
        match self.0 {}
    }

    /// # Errors
    /// None, because no value of this type exists.
    pub fn add_numbers(&mut self, _from: CudaNumbers<'_>) -> Result<()> {
        match self.0 {}
    }
}
