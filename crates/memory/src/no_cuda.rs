//! Replaces `cuda` in builds without it. There is no memory on a GPU, so no value of these types
//! exists.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

use candle_core::{CudaStorage, Device, Layout, Tensor};

pub use crate::kernels::{BLOCK, Formula, Kernels, SCALARS};
use crate::{Convolution, ElementType, Error, Flat, Result};

/// Bytes on a GPU.
#[derive(Debug)]
pub struct CudaMemory(Infallible);

/// A run of f32 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaSpan<'a>(Infallible, PhantomData<&'a [f32]>);

/// A mutable run of f32 numbers on a GPU.
#[derive(Debug)]
pub struct CudaSpanMut<'a>(Infallible, PhantomData<&'a mut [f32]>);

/// A run of f32, f16 or bf16 numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaNumbers<'a>(Infallible, PhantomData<&'a [u8]>);

/// A mutable run of f32, f16 or bf16 numbers on a GPU.
#[derive(Debug)]
pub struct CudaNumbersMut<'a>(Infallible, PhantomData<&'a mut [u8]>);

/// A run of whole numbers of type u8, u32 or i64 on a GPU, read-only.
#[derive(Clone, Copy, Debug)]
pub struct CudaIndices<'a>(Infallible, PhantomData<&'a [u8]>);

/// The sum of the squares of spans on a GPU.
#[derive(Debug)]
pub struct CudaNorm(Infallible);

/// A search for the first number that is not finite in spans on a GPU.
#[derive(Debug)]
pub struct CudaSearch(Infallible);

/// A capture under way.
#[derive(Debug)]
pub struct Capture(Infallible);

/// Recorded work, ready to run.
#[derive(Debug)]
pub struct Graph(Infallible);

/// An update of several parameters by one formula, in one launch.
#[derive(Debug)]
pub struct JointUpdate<'a>(Infallible, PhantomData<&'a mut [f32]>);

/// The table of an update that is repeated.
#[derive(Debug, Default)]
pub struct UpdateTable(());

fn not_compiled() -> Error {
    Error::NotCompiled { what: "a buffer on a GPU".to_owned(), feature: "cuda" }
}

/// # Errors
/// Always [`Error::NotCompiled`].
pub(crate) fn zeros(_device: &Device, _element: ElementType, _len: usize) -> Result<Flat> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`].
pub fn span<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaSpan<'a>> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`].
pub fn numbers<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaNumbers<'a>> {
    Err(not_compiled())
}

/// # Errors
/// Always [`Error::NotCompiled`].
pub fn span_mut<'a>(_storage: &'a CudaStorage, _layout: &Layout) -> Result<CudaSpanMut<'a>> {
    Err(not_compiled())
}

/// # Errors
/// None, because no value of [`CudaSpan`] exists.
pub fn round_all(_rounded: &[(CudaSpan<'_>, &CudaStorage, &Layout)]) -> Result<()> {
    Ok(())
}

/// # Errors
/// Always [`Error::NotCompiled`].
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

impl Capture {
    /// # Errors
    /// Always [`Error::NotCompiled`].
    pub fn begin(_device: &Device) -> Result<Self> {
        Err(not_compiled())
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// Recorded work that cannot be repeated, and the driver's error.
    pub fn end(self) -> Result<Graph> {
        match self.0 {}
    }
}

impl Graph {
    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// The driver's error.
    pub fn launch(&self) -> Result<()> {
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

    /// A copy on the device.
    pub(crate) fn to_flat(self) -> Result<Flat> {
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

    /// # Errors
    /// None, because no value of this type exists.
    pub fn to_flat(self) -> Result<Flat> {
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

/// The blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid(());

impl Grid {
    /// Threads for `count` numbers.
    pub fn for_each(_count: usize) -> Self {
        Self(())
    }

    /// One block for every `share` numbers of `count`.
    pub fn by_share(_count: usize, _share: usize) -> Self {
        Self(())
    }

    /// One block.
    pub fn one_block(_count: usize) -> Self {
        Self(())
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a>(PhantomData<&'a [f32]>);

impl<'a> From<CudaSpan<'a>> for Arg<'a> {
    fn from(numbers: CudaSpan<'a>) -> Self {
        match numbers.0 {}
    }
}

impl<'a> From<&'a mut CudaSpanMut<'_>> for Arg<'a> {
    fn from(numbers: &'a mut CudaSpanMut<'_>) -> Self {
        match numbers.0 {}
    }
}

impl<'a> From<CudaNumbers<'a>> for Arg<'a> {
    fn from(numbers: CudaNumbers<'a>) -> Self {
        match numbers.0 {}
    }
}

impl<'a> From<&'a mut CudaNumbersMut<'_>> for Arg<'a> {
    fn from(numbers: &'a mut CudaNumbersMut<'_>) -> Self {
        match numbers.0 {}
    }
}

impl<'a, T: Into<Arg<'a>>> From<Option<T>> for Arg<'a> {
    fn from(_memory: Option<T>) -> Self {
        Self(PhantomData)
    }
}

impl<'a> From<&'a CudaMemory> for Arg<'a> {
    fn from(memory: &'a CudaMemory) -> Self {
        match memory.0 {}
    }
}

impl<'a> From<&'a mut CudaMemory> for Arg<'a> {
    fn from(memory: &'a mut CudaMemory) -> Self {
        match memory.0 {}
    }
}

impl<'a> From<CudaIndices<'a>> for Arg<'a> {
    fn from(indices: CudaIndices<'a>) -> Self {
        match indices.0 {}
    }
}

impl From<usize> for Arg<'_> {
    fn from(_number: usize) -> Self {
        Self(PhantomData)
    }
}

impl From<u64> for Arg<'_> {
    fn from(_number: u64) -> Self {
        Self(PhantomData)
    }
}

impl From<f32> for Arg<'_> {
    fn from(_number: f32) -> Self {
        Self(PhantomData)
    }
}

impl From<f64> for Arg<'_> {
    fn from(_number: f64) -> Self {
        Self(PhantomData)
    }
}

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

/// As with `cuda`.
#[derive(Debug)]
pub enum Epilogue<'a> {
    /// As with `cuda`.
    Identity,
    /// As with `cuda`.
    Relu,
    /// As with `cuda`.
    GeluTanh(CudaNumbersMut<'a>),
}

impl Gpu {
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
    pub fn matmul_then(
        &self,
        _out: CudaNumbersMut<'_>,
        _a: Matrix<'_>,
        _b: Matrix<'_>,
        _bias: Option<CudaNumbers<'_>>,
        _epilogue: Epilogue<'_>,
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
