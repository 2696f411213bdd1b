//! The arguments of a kernel, without a value in builds without GPUs.

use std::marker::PhantomData;

use super::memory::{CudaIndices, CudaMemory, CudaNumbers, CudaNumbersMut, CudaSpan, CudaSpanMut};

/// The blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid(());

impl Grid {
    /// Threads for `count` numbers.
    pub fn for_each(_count: usize) -> Self {
        Self(())
    }

    /// Threads for packs of `width` of the `count` numbers.
    pub fn for_packs(_count: usize, _width: usize) -> Self {
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
pub enum Arg<'a> {
    /// The address 0, for memory that the kernel does not use.
    Nothing,
    /// Any other argument.
    Some(PhantomData<&'a [f32]>),
}

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
        Self::Some(PhantomData)
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
        Self::Some(PhantomData)
    }
}

impl From<u64> for Arg<'_> {
    fn from(_number: u64) -> Self {
        Self::Some(PhantomData)
    }
}

impl From<f32> for Arg<'_> {
    fn from(_number: f32) -> Self {
        Self::Some(PhantomData)
    }
}

impl From<f64> for Arg<'_> {
    fn from(_number: f64) -> Self {
        Self::Some(PhantomData)
    }
}
