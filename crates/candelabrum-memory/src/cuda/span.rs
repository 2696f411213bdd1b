//! A borrowed run of f32 numbers on a GPU, and the arithmetic of a training step on it.

use std::ops::Range;

use candle_core::{CudaStorage, Layout};

use super::compiler::KernelSource;
use super::launch::{KernelArg, LaunchGrid, launch};
use super::memory::CudaMemory;
use super::region::Region;
use super::tensor::elements;
use crate::{ElementType, Result};

/// The kernels of this file.
const KERNELS: KernelSource = KernelSource {
    name: "span",
    number: ElementType::F32,
    text: [include_str!("kernels/span.cu"), ""],
};

/// A run of f32 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaSpan<'a>(Region<'a>);

/// A mutable run of f32 numbers on a GPU.
#[derive(Debug)]
pub struct CudaSpanMut<'a>(Region<'a>);

/// The elements of a contiguous f32 tensor.
///
/// # Errors
/// A tensor of another type, or that is not contiguous.
pub fn span<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaSpan<'a>> {
    Ok(CudaSpan::new(elements(storage, layout, ElementType::F32, layout.shape().elem_count())?))
}

/// The elements of a contiguous f32 tensor, mutable.
///
/// The borrow of the storage keeps the memory alive. It need not be mutable: a change is work on the
/// stream, which runs after all earlier work and before all later work, whatever is locked on the host.
/// The caller must have only one mutable span of a storage at a time.
///
/// # Errors
/// Those of [`span`].
pub fn span_mut<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaSpanMut<'a>> {
    let len = layout.shape().elem_count();
    Ok(CudaSpanMut::new(elements(storage, layout, ElementType::F32, len)?))
}

impl CudaMemory {
    /// The first `len` f32 numbers.
    pub(crate) fn span(&self, len: usize) -> CudaSpan<'_> {
        CudaSpan::new(Region::new(&self.0).range(0..len * size_of::<f32>()))
    }

    /// The first `len` f32 numbers, mutable.
    pub(crate) fn span_mut(&mut self, len: usize) -> CudaSpanMut<'_> {
        CudaSpanMut::new(Region::new(&self.0).range(0..len * size_of::<f32>()))
    }
}

impl<'a> From<CudaSpan<'a>> for KernelArg<'a> {
    fn from(numbers: CudaSpan<'a>) -> Self {
        Self::Memory(numbers.region())
    }
}

/// For numbers that the kernel writes.
impl<'a> From<&'a mut CudaSpanMut<'_>> for KernelArg<'a> {
    fn from(numbers: &'a mut CudaSpanMut<'_>) -> Self {
        Self::Memory(numbers.region())
    }
}

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

    /// Copies the numbers to the host, and waits for the copy. `to` must have as many.
    ///
    /// # Errors
    /// The driver's error.
    pub fn download(self, to: &mut [f32]) -> Result<()> {
        self.0.download(bytemuck::cast_slice_mut(to))
    }

    pub(super) fn region(self) -> Region<'a> {
        self.0
    }

    /// Runs a kernel of this file with one thread per number. The count is its last argument.
    fn run(self, name: &'static str, args: &[KernelArg<'_>]) -> Result<()> {
        launch(self.0.stream(), KERNELS, name, LaunchGrid::for_each(self.len()), args)
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
        self.run("fill", &[KernelArg::Memory(self.0), KernelArg::F32(value)])
    }

    pub(crate) fn scale(&mut self, factor: f32) -> Result<()> {
        self.run("scale", &[KernelArg::Memory(self.0), KernelArg::F32(factor)])
    }

    pub(crate) fn clamp(&mut self, limit: f32) -> Result<()> {
        self.run("clamp", &[KernelArg::Memory(self.0), KernelArg::F32(limit)])
    }

    pub(crate) fn copy_from(&mut self, from: CudaSpan<'_>) -> Result<()> {
        self.0.copy_from(from.0)
    }

    /// Replaces the first number by NaN if one of `others` is not finite.
    pub(crate) fn poison_unless_finite(&mut self, others: CudaSpan<'_>) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let args = [KernelArg::Memory(self.0), KernelArg::Memory(others.0)];
        launch(self.0.stream(), KERNELS, "poison", LaunchGrid::for_each(others.len()), &args)
    }

    pub(super) fn region(&mut self) -> Region<'_> {
        self.0
    }

    pub(super) fn into_region(self) -> Region<'a> {
        self.0
    }

    fn run(&self, name: &'static str, args: &[KernelArg<'_>]) -> Result<()> {
        self.as_span().run(name, args)
    }
}

fn in_bytes(range: Range<usize>) -> Range<usize> {
    range.start * size_of::<f32>()..range.end * size_of::<f32>()
}
