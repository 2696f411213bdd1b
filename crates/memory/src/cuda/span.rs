//! A borrowed run of f32 numbers on a GPU, and the arithmetic of a training step on it.

use std::ops::Range;

use super::compiler::Source;
use super::launch::{Arg, Grid, launch};
use super::memory::CudaMemory;
use super::numbers::CudaNumbers;
use super::region::Region;
use crate::{ElementType, Flat, Result};

/// The kernels of this file.
const KERNELS: Source =
    Source { name: "span", number: ElementType::F32, text: [include_str!("kernels/span.cu"), ""] };

/// A run of f32 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaSpan<'a>(Region<'a>);

/// A mutable run of f32 numbers on a GPU.
#[derive(Debug)]
pub struct CudaSpanMut<'a>(Region<'a>);

impl<'a> CudaSpan<'a> {
    /// The numbers of these bytes, which must be whole f32 numbers.
    pub(super) fn new(region: Region<'a>) -> Self {
        Self(region)
    }

    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.0.bytes() / size_of::<f32>()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first number on the device.
    pub fn address(self) -> u64 {
        self.0.at()
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        Self(self.0.range(in_bytes(range)))
    }

    /// A copy on the device.
    pub(crate) fn to_flat(self) -> Result<Flat> {
        CudaNumbers::from(self).to_flat()
    }

    /// Copies the numbers to the host, and waits for the copy. `to` must have as many.
    ///
    /// # Errors
    /// The driver's error.
    pub fn download(self, to: &mut [f32]) -> Result<()> {
        self.0.download(bytemuck::cast_slice_mut(to))
    }

    /// Writes the numbers divided by `divisor` to `to`, in fp16 or bf16 (`element`), rounded to
    /// nearest, ties to even.
    pub(crate) fn narrow(
        self,
        divisor: f32,
        element: ElementType,
        to: &mut CudaMemory,
    ) -> Result<()> {
        to.numbers_mut(element, self.len())?.narrow_from(self, divisor)
    }

    pub(super) fn region(self) -> Region<'a> {
        self.0
    }

    /// Runs a kernel of this file with one thread per number. The count is its last argument.
    fn run(self, name: &'static str, args: &[Arg<'_>]) -> Result<()> {
        launch(self.0.stream(), KERNELS, name, Grid::for_each(self.len()), args)
    }
}

impl<'a> CudaSpanMut<'a> {
    /// The numbers of these bytes, which must be whole f32 numbers and borrowed mutably.
    pub(super) fn new(region: Region<'a>) -> Self {
        Self(region)
    }

    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.as_span().len()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same numbers, read-only.
    pub fn as_span(&self) -> CudaSpan<'_> {
        CudaSpan(self.0)
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> CudaSpanMut<'_> {
        CudaSpanMut(self.0)
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        Self(self.0.range(in_bytes(range)))
    }

    /// The first `at` numbers, and the rest.
    ///
    /// # Panics
    /// With an `at` above the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (at, end) = (at * size_of::<f32>(), self.0.bytes());
        (Self(self.0.range(0..at)), Self(self.0.range(at..end)))
    }

    /// Copies numbers from the host, and waits for the copy. `from` must have as many.
    ///
    /// # Errors
    /// The driver's error.
    pub fn upload(&mut self, from: &[f32]) -> Result<()> {
        self.0.upload(bytemuck::cast_slice(from))
    }

    pub(crate) fn fill(&mut self, value: f32) -> Result<()> {
        self.run("fill", &[Arg::Memory(self.0), Arg::F32(value)])
    }

    pub(crate) fn scale(&mut self, factor: f32) -> Result<()> {
        self.run("scale", &[Arg::Memory(self.0), Arg::F32(factor)])
    }

    pub(crate) fn clamp(&mut self, limit: f32) -> Result<()> {
        self.run("clamp", &[Arg::Memory(self.0), Arg::F32(limit)])
    }

    pub(crate) fn copy_from(&mut self, from: CudaSpan<'_>) -> Result<()> {
        self.0.copy_from(from.0)
    }

    pub(crate) fn add(&mut self, from: CudaSpan<'_>) -> Result<()> {
        self.add_numbers(from.into())
    }

    /// Replaces the first number by NaN if one of `others` is not finite.
    pub(crate) fn poison_unless_finite(&mut self, others: CudaSpan<'_>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let args = [Arg::Memory(self.0), Arg::Memory(others.0)];
        launch(self.0.stream(), KERNELS, "poison", Grid::for_each(others.len()), &args)
    }

    /// Replaces the numbers by those of `from`, in fp16 or bf16 (`element`), exactly.
    pub(crate) fn widen(&mut self, element: ElementType, from: &CudaMemory) -> Result<()> {
        self.widen_from(from.numbers(element, self.len())?)
    }

    pub(super) fn region(&mut self) -> Region<'_> {
        self.0
    }

    pub(super) fn into_region(self) -> Region<'a> {
        self.0
    }

    fn run(&self, name: &'static str, args: &[Arg<'_>]) -> Result<()> {
        self.as_span().run(name, args)
    }
}

fn in_bytes(range: Range<usize>) -> Range<usize> {
    range.start * size_of::<f32>()..range.end * size_of::<f32>()
}
