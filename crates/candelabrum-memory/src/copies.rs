//! Copies of borrowed numbers in memory of their own.

use crate::cuda::CudaNumbers;
use crate::{Flat, Result, Span};

impl Span<'_> {
    /// A copy of the numbers, in the same kind of memory.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn to_flat(self) -> Result<Flat> {
        match self {
            Self::Host(values) => Ok(Flat::from_slice(values)),
            Self::Cuda(values) => CudaNumbers::from(values).to_flat(),
        }
    }
}

impl CudaNumbers<'_> {
    /// A copy on the device, in the same type.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn to_flat(self) -> Result<Flat> {
        Ok(Flat::cuda(self.element_type(), self.len(), self.copy()?))
    }
}
