//! A borrowed run of f32, f16 or bf16 numbers on a GPU, for operations that compute in any of these
//! types.

use candle_core::{CudaStorage, Layout};

use super::compiler::KernelSource;
use super::launch::{KernelArg, LaunchGrid, launch};
use super::memory::{CudaMemory, allocate_unset};
use super::region::Region;
use super::span::{CudaSpan, CudaSpanMut};
use super::tensor::{elements, number_type};
use crate::error::check_len;
use crate::{ElementType, Error, Result};

/// The kernels of this file.
fn kernels(number: ElementType) -> KernelSource {
    KernelSource { name: "numbers", number, text: [include_str!("kernels/numbers.cu"), ""] }
}

/// A run of f32, f16 or bf16 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaNumbers<'a> {
    region: Region<'a>,
    element: ElementType,
}

/// A mutable run of f32, f16 or bf16 numbers on a GPU.
#[derive(Debug)]
pub struct CudaNumbersMut<'a>(CudaNumbers<'a>);

/// Whether `element` is one of the types of [`CudaNumbers`].
pub(super) fn is_number(element: ElementType) -> bool {
    matches!(element, ElementType::F32 | ElementType::F16 | ElementType::Bf16)
}

/// The elements of a contiguous f32, f16 or bf16 tensor.
///
/// # Errors
/// A tensor of another type, or that is not contiguous.
pub fn numbers<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaNumbers<'a>> {
    let element = number_type(storage);
    let len = layout.shape().elem_count();
    CudaNumbers::new(elements(storage, layout, element, len)?, element)
}

impl CudaMemory {
    /// The first `len` numbers of this type.
    pub(crate) fn numbers(&self, element: ElementType, len: usize) -> Result<CudaNumbers<'_>> {
        CudaNumbers::new(self.region(len * element.size()), element)
    }

    /// The first `len` numbers of this type, mutable.
    pub(crate) fn numbers_mut(
        &mut self,
        element: ElementType,
        len: usize,
    ) -> Result<CudaNumbersMut<'_>> {
        CudaNumbersMut::new(self.region(len * element.size()), element)
    }
}

impl<'a> From<CudaNumbers<'a>> for KernelArg<'a> {
    fn from(numbers: CudaNumbers<'a>) -> Self {
        Self::Memory(numbers.region())
    }
}

/// For numbers that the kernel writes.
impl<'a> From<&'a mut CudaNumbersMut<'_>> for KernelArg<'a> {
    fn from(numbers: &'a mut CudaNumbersMut<'_>) -> Self {
        Self::Memory(numbers.region())
    }
}

impl<'a> From<CudaSpan<'a>> for CudaNumbers<'a> {
    fn from(numbers: CudaSpan<'a>) -> Self {
        Self { region: numbers.region(), element: ElementType::F32 }
    }
}

impl<'a> From<CudaSpanMut<'a>> for CudaNumbersMut<'a> {
    fn from(numbers: CudaSpanMut<'a>) -> Self {
        Self(CudaNumbers { region: numbers.into_region(), element: ElementType::F32 })
    }
}

impl<'a> From<CudaNumbersMut<'a>> for CudaNumbers<'a> {
    fn from(numbers: CudaNumbersMut<'a>) -> Self {
        numbers.0
    }
}

impl<'a> CudaNumbers<'a> {
    /// The numbers of these bytes, which must be whole numbers of the type.
    ///
    /// # Errors
    /// A type that is not one of the three.
    pub(super) fn new(region: Region<'a>, element: ElementType) -> Result<Self> {
        if is_number(element) {
            return Ok(Self { region, element });
        }
        Err(Error::Unsupported {
            what: format!("a kernel of operations on numbers of type {element}"),
        })
    }

    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.region.bytes() / self.element.size()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first number on the device.
    pub fn address(self) -> u64 {
        self.region.at()
    }

    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// The numbers, if they are f32.
    ///
    /// # Errors
    /// [`Error::ElementType`] for numbers of another type.
    pub fn as_f32(self) -> Result<CudaSpan<'a>> {
        match self.element {
            ElementType::F32 => Ok(CudaSpan::new(self.region)),
            got => Err(Error::ElementType { expected: ElementType::F32, got }),
        }
    }

    /// A copy on the device, in the same type.
    pub(crate) fn copy(self) -> Result<CudaMemory> {
        let bytes = self.region.bytes();
        let memory = CudaMemory(allocate_unset(self.region.stream(), bytes)?);
        memory.region(bytes).copy_from(self.region)?;
        Ok(memory)
    }

    pub(super) fn region(self) -> Region<'a> {
        self.region
    }

    /// Runs a kernel of this file with one thread per number. The count is its last argument.
    fn run(self, name: &'static str, args: &[KernelArg<'_>]) -> Result<()> {
        let grid = LaunchGrid::for_each(self.len());
        launch(self.region.stream(), kernels(self.element), name, grid, args)
    }
}

impl<'a> CudaNumbersMut<'a> {
    /// The numbers of these bytes, which must be whole numbers of the type and borrowed mutably.
    ///
    /// # Errors
    /// As [`CudaNumbers::new`].
    pub(super) fn new(region: Region<'a>, element: ElementType) -> Result<Self> {
        CudaNumbers::new(region, element).map(Self)
    }

    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        self.0.element
    }

    /// The same numbers, read-only.
    pub fn as_numbers(&self) -> CudaNumbers<'_> {
        self.0
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> CudaNumbersMut<'_> {
        CudaNumbersMut(self.0)
    }

    /// Sets every number to 0.
    ///
    /// # Errors
    /// The driver's error.
    pub fn clear(&mut self) -> Result<()> {
        self.0.region.clear()
    }

    /// Replaces the numbers by those of `from`, which are as many and of the same type.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn copy_from(&mut self, from: CudaNumbers<'_>) -> Result<()> {
        self.0.region.copy_from(from.region)
    }

    /// Adds the numbers of `from`, which are as many and of the same type. A sum is computed in f32 and
    /// rounded.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::ElementType`], and the driver's error.
    pub fn add(&mut self, from: CudaNumbers<'_>) -> Result<()> {
        check_len("add", self.len(), from.len())?;
        let (expected, got) = (self.element_type(), from.element);
        if expected != got {
            return Err(Error::ElementType { expected, got });
        }
        from.run("add", &[KernelArg::Memory(self.0.region), KernelArg::Memory(from.region)])
    }

    /// Replaces the numbers by as many of `from`, rounded to nearest, ties to even.
    ///
    /// # Errors
    /// [`Error::Length`] and the driver's error.
    pub fn round_from(&mut self, from: CudaSpan<'_>) -> Result<()> {
        self.narrow_from(from, 1.0)
    }

    /// [`Self::round_from`] of the numbers divided by `divisor`.
    pub(super) fn narrow_from(&mut self, from: CudaSpan<'_>, divisor: f32) -> Result<()> {
        check_len("narrow", self.len(), from.len())?;
        let places = [KernelArg::Memory(self.0.region), KernelArg::Memory(from.region())];
        self.0.run("narrow", &[places[0], places[1], KernelArg::F32(divisor)])
    }

    pub(super) fn region(&mut self) -> Region<'_> {
        self.0.region
    }
}

impl CudaSpan<'_> {
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
}

impl CudaSpanMut<'_> {
    pub(crate) fn add(&mut self, from: CudaSpan<'_>) -> Result<()> {
        self.add_numbers(from.into())
    }

    /// Replaces the numbers by those of `from`, in fp16 or bf16 (`element`), exactly.
    pub(crate) fn widen(&mut self, element: ElementType, from: &CudaMemory) -> Result<()> {
        self.widen_from(from.numbers(element, self.len())?)
    }

    /// Replaces the numbers by as many of `from`, exactly.
    ///
    /// # Errors
    /// [`Error::Length`] and the driver's error.
    pub fn widen_from(&mut self, from: CudaNumbers<'_>) -> Result<()> {
        check_len("widen", self.len(), from.len())?;
        from.run("widen", &[KernelArg::Memory(self.region()), KernelArg::Memory(from.region)])
    }

    /// Adds as many numbers of `from`.
    ///
    /// # Errors
    /// [`Error::Length`] and the driver's error.
    pub fn add_numbers(&mut self, from: CudaNumbers<'_>) -> Result<()> {
        check_len("add", self.len(), from.len())?;
        from.run("add_to_f32", &[KernelArg::Memory(self.region()), KernelArg::Memory(from.region)])
    }
}
