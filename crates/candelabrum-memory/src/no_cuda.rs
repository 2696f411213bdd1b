//! Replaces `cuda` in builds without it. There is no memory on a GPU, so no value of these types exists,
//! and code that uses them compiles and never runs. The comment of an item is at the item of `cuda` that
//! has its name.
#![expect(missing_docs, unused_variables, clippy::missing_errors_doc, reason = "signatures alone")]

use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

use candle_core::{CudaStorage, Device, Layout, Tensor};

pub use crate::kernels::{BLOCK, Formula, Kernels, SCALARS};
use crate::{Convolution, ElementType, Error, Result};

/// Defines functions by their signatures.
macro_rules! functions {
    ($($visible:vis fn $name:ident $(<$lifetime:lifetime>)? ($($parameters:tt)*) -> $result:ty;)*) => {
        $($visible fn $name $(<$lifetime>)? ($($parameters)*) -> $result { body!($($parameters)*) })*
    };
}

/// The body of a function with these parameters. No value has the method, and what would make a value
/// refuses.
macro_rules! body {
    (&mut $self:ident $($others:tt)*) => {
        match $self.0 {}
    };
    (&$self:ident $($others:tt)*) => {
        match $self.0 {}
    };
    ($self:ident $(, $($others:tt)*)?) => {
        match $self.0 {}
    };
    ($($parameters:tt)*) => {
        Err(not_compiled())
    };
}

/// Defines types without values, and their methods by their signatures.
macro_rules! types {
    ($($(#[$derive:meta])? $name:ident $(<$lifetime:lifetime>)? { $($signatures:tt)* })*) => { $(
        $(#[$derive])?
        #[derive(Debug)]
        pub struct $name $(<$lifetime>)? (Infallible, PhantomData<($(&$lifetime (),)?)>);

        impl $(<$lifetime>)? $name $(<$lifetime>)? {
            functions! { $($signatures)* }
        }
    )* };
}

fn not_compiled() -> Error {
    Error::NotCompiled { what: "a buffer on a GPU".to_owned(), feature: "cuda" }
}

pub fn open(ordinal: usize) -> Result<Device> {
    Err(Error::NotCompiled { what: format!("GPU {ordinal}"), feature: "cuda" })
}

/// Rounds nothing, because there are no numbers to round.
pub fn round_all(rounded: &[(CudaSpan<'_>, &CudaStorage, &Layout)]) -> Result<()> {
    Ok(())
}

functions! {
    pub fn trim(device: &Device) -> Result<()>;
    pub fn allocated(device: &Device) -> Result<usize>;
    pub fn most_allocated(device: &Device) -> Result<usize>;
    pub fn forget_most_allocated(device: &Device) -> Result<()>;
    pub(crate) fn zeros(device: &Device, bytes: usize) -> Result<CudaMemory>;
    pub fn span<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaSpan<'a>>;
    pub fn span_mut<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaSpanMut<'a>>;
    pub fn numbers<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaNumbers<'a>>;
    pub fn indices<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaIndices<'a>>;
}

types! {
    CudaMemory {
        pub(crate) fn room(&self) -> usize;
        pub(crate) fn span(&self, len: usize) -> CudaSpan<'_>;
        pub(crate) fn span_mut(&mut self, len: usize) -> CudaSpanMut<'_>;
        pub(crate) fn numbers(&self, element: ElementType, len: usize) -> Result<CudaNumbers<'_>>;
        pub(crate) fn numbers_mut(
            &mut self,
            element: ElementType,
            len: usize
        ) -> Result<CudaNumbersMut<'_>>;
        pub(crate) fn read(&self, to: &mut [u8]) -> Result<()>;
        pub(crate) fn write(&mut self, from: &[u8]) -> Result<()>;
        pub(crate) fn copy_from_tensor(
            &mut self,
            element: ElementType,
            len: usize,
            tensor: &Tensor
        ) -> Result<()>;
        pub(crate) fn copy_to_tensor(
            &self,
            element: ElementType,
            len: usize,
            tensor: &Tensor
        ) -> Result<()>;
    }

    #[derive(Clone, Copy)]
    CudaSpan<'a> {
        pub fn len(&self) -> usize;
        pub fn is_empty(&self) -> bool;
        pub fn address(self) -> u64;
        pub fn range(self, range: Range<usize>) -> Self;
        pub fn download(self, to: &mut [f32]) -> Result<()>;
        pub(crate) fn narrow(
            self,
            divisor: f32,
            element: ElementType,
            to: &mut CudaMemory
        ) -> Result<()>;
    }

    CudaSpanMut<'a> {
        pub fn len(&self) -> usize;
        pub fn is_empty(&self) -> bool;
        pub fn as_span(&self) -> CudaSpan<'_>;
        pub fn reborrow(&mut self) -> CudaSpanMut<'_>;
        pub fn range(self, range: Range<usize>) -> Self;
        pub fn split_at(self, at: usize) -> (Self, Self);
        pub fn upload(&mut self, from: &[f32]) -> Result<()>;
        pub fn widen_from(&mut self, from: CudaNumbers<'_>) -> Result<()>;
        pub fn add_numbers(&mut self, from: CudaNumbers<'_>) -> Result<()>;
        pub(crate) fn fill(&mut self, value: f32) -> Result<()>;
        pub(crate) fn scale(&mut self, factor: f32) -> Result<()>;
        pub(crate) fn clamp(&mut self, limit: f32) -> Result<()>;
        pub(crate) fn copy_from(&mut self, from: CudaSpan<'_>) -> Result<()>;
        pub(crate) fn add(&mut self, from: CudaSpan<'_>) -> Result<()>;
        pub(crate) fn poison_unless_finite(&mut self, others: CudaSpan<'_>) -> Result<()>;
        pub(crate) fn widen(&mut self, element: ElementType, from: &CudaMemory) -> Result<()>;
    }

    #[derive(Clone, Copy)]
    CudaNumbers<'a> {
        pub fn len(&self) -> usize;
        pub fn is_empty(&self) -> bool;
        pub fn address(self) -> u64;
        pub fn element_type(&self) -> ElementType;
        pub fn as_f32(self) -> Result<CudaSpan<'a>>;
        pub(crate) fn copy(self) -> Result<CudaMemory>;
    }

    CudaNumbersMut<'a> {
        pub fn len(&self) -> usize;
        pub fn is_empty(&self) -> bool;
        pub fn element_type(&self) -> ElementType;
        pub fn as_numbers(&self) -> CudaNumbers<'_>;
        pub fn reborrow(&mut self) -> CudaNumbersMut<'_>;
        pub fn clear(&mut self) -> Result<()>;
        pub fn copy_from(&mut self, from: CudaNumbers<'_>) -> Result<()>;
        pub fn add(&mut self, from: CudaNumbers<'_>) -> Result<()>;
        pub fn round_from(&mut self, from: CudaSpan<'_>) -> Result<()>;
    }

    #[derive(Clone, Copy)]
    CudaIndices<'a> {
        pub fn len(&self) -> usize;
        pub fn is_empty(&self) -> bool;
        pub fn element_size(&self) -> usize;
    }

    CudaNorm {
        pub(crate) fn new(values: CudaSpan<'_>) -> Result<Self>;
        pub(crate) fn add(&mut self, values: CudaSpan<'_>) -> Result<()>;
        pub(crate) fn sum_of_squares(&self) -> Result<f64>;
    }

    CudaSearch {
        pub(crate) fn new(values: CudaSpan<'_>) -> Result<Self>;
        pub(crate) fn look(&mut self, bucket: usize, values: CudaSpan<'_>) -> Result<()>;
        pub(crate) fn first(&self) -> Result<Option<(usize, usize)>>;
    }

    JointUpdate<'a> {
        pub fn takes(
            &self,
            formula: Formula,
            scalars: &[f64; SCALARS],
            grad: CudaSpan<'_>
        ) -> bool;
        pub fn push(
            &mut self,
            value: CudaSpanMut<'a>,
            grad: CudaSpan<'a>,
            state: Vec<CudaSpanMut<'a>>,
            scalars: [f64; SCALARS]
        ) -> ();
        pub fn run(self) -> Result<()>;
    }

    Capture {
        pub fn begin(device: &Device) -> Result<Self>;
        pub fn end(self) -> Result<Graph>;
    }

    Graph {
        pub fn launch(&self) -> Result<()>;
    }

    Scratch {
        pub fn span(&self) -> CudaSpan<'_>;
        pub fn span_mut(&mut self) -> CudaSpanMut<'_>;
    }

    #[derive(Clone)]
    Gpu {
        pub fn device(&self) -> Device;
        pub fn scratch(&self, len: usize) -> Result<Scratch>;
        pub(crate) fn allocate(&self, bytes: usize) -> Result<CudaMemory>;
        pub(crate) fn storage_of(
            &self,
            memory: CudaMemory,
            element: ElementType,
            len: usize
        ) -> CudaStorage;
        pub fn launch(
            &self,
            kernels: Kernels,
            kernel: &'static str,
            grid: LaunchGrid,
            args: &[KernelArg<'_>]
        ) -> Result<()>;
        pub fn launch_for(
            &self,
            number: ElementType,
            kernels: Kernels,
            kernel: &'static str,
            grid: LaunchGrid,
            args: &[KernelArg<'_>]
        ) -> Result<()>;
        pub fn write_constant(
            &self,
            kernels: Kernels,
            name: &'static str,
            numbers: &[f32]
        ) -> Result<()>;
        pub fn matmul(
            &self,
            out: CudaNumbersMut<'_>,
            add: bool,
            a: CudaMatrix<'_>,
            b: CudaMatrix<'_>
        ) -> Result<()>;
        pub fn affine(
            &self,
            out: CudaNumbersMut<'_>,
            a: CudaMatrix<'_>,
            b: CudaMatrix<'_>,
            bias: CudaNumbers<'_>
        ) -> Result<bool>;
        pub fn convolve(
            &self,
            sizes: &Convolution,
            ys: CudaNumbersMut<'_>,
            xs: CudaNumbers<'_>,
            weight: CudaNumbers<'_>
        ) -> Result<()>;
        pub fn convolve_back_to_input(
            &self,
            sizes: &Convolution,
            dxs: CudaNumbersMut<'_>,
            weight: CudaNumbers<'_>,
            dys: CudaNumbers<'_>
        ) -> Result<()>;
        pub fn convolve_back_to_weight(
            &self,
            sizes: &Convolution,
            dweight: CudaNumbersMut<'_>,
            xs: CudaNumbers<'_>,
            dys: CudaNumbers<'_>
        ) -> Result<()>;
    }
}

impl Gpu {
    pub fn from_device(device: &Device) -> Option<Self> {
        None
    }
}

#[derive(Debug, Default)]
pub struct UpdateTable(());

impl<'a> JointUpdate<'a> {
    pub fn new(formula: Formula, grad: CudaSpan<'a>, table: &'a mut UpdateTable) -> Self {
        match grad.0 {}
    }
}

#[derive(Clone, Copy, Debug)]
pub struct CudaMatrix<'a> {
    pub values: CudaNumbers<'a>,
    pub size: (usize, usize),
    pub transposed: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct LaunchGrid(());

impl LaunchGrid {
    pub fn for_each(count: usize) -> Self {
        Self(())
    }

    pub fn for_packs(count: usize, width: usize) -> Self {
        Self(())
    }

    pub fn by_share(count: usize, share: usize) -> Self {
        Self(())
    }

    pub fn one_block(count: usize) -> Self {
        Self(())
    }
}

#[derive(Clone, Copy, Debug)]
pub enum KernelArg<'a> {
    Nothing,
    Some(PhantomData<&'a ()>),
}

impl<'a, T: Into<KernelArg<'a>>> From<Option<T>> for KernelArg<'a> {
    fn from(memory: Option<T>) -> Self {
        Self::Some(PhantomData)
    }
}

/// Defines the arguments of kernels by their types.
macro_rules! arguments {
    ($($from:ty),*) => { $(
        impl<'a> From<$from> for KernelArg<'a> {
            fn from(value: $from) -> Self {
                Self::Some(PhantomData)
            }
        }
    )* };
}

arguments!(CudaSpan<'a>, &'a mut CudaSpanMut<'_>, CudaNumbers<'a>, &'a mut CudaNumbersMut<'_>);
arguments!(&'a CudaMemory, &'a mut CudaMemory, CudaIndices<'a>, usize, u64, f32, f64);

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
