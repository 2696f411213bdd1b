//! New buffers: copies of borrowed numbers, and memory for the results of operations on a GPU.

use candle_core::CudaStorage;

use crate::cuda::{CudaNumbers, Gpu};
use crate::{ElementType, Error, FlatTensor, Result, Span};

impl Span<'_> {
    /// A copy of the numbers, in the same kind of memory.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn to_flat(self) -> Result<FlatTensor> {
        match self {
            Self::Host(values) => Ok(FlatTensor::from_slice(values)),
            Self::Cuda(values) => CudaNumbers::from(values).to_flat(),
        }
    }
}

impl CudaNumbers<'_> {
    /// A copy on the device, in the same type.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn to_flat(self) -> Result<FlatTensor> {
        Ok(FlatTensor::cuda(self.element_type(), self.len(), self.copy()?))
    }
}

impl Gpu {
    /// `len` f32 numbers with unspecified contents.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn numbers(&self, len: usize) -> Result<FlatTensor> {
        self.numbers_of(ElementType::F32, len)
    }

    /// `len` numbers of this type with unspecified contents.
    ///
    /// # Errors
    /// Too little memory on the device.
    pub fn numbers_of(&self, element: ElementType, len: usize) -> Result<FlatTensor> {
        Ok(FlatTensor::cuda(element, len, self.allocate(len * element.size())?))
    }

    /// Makes a storage of candle of f32, f16 or bf16 numbers on this device.
    ///
    /// # Errors
    /// Numbers on the host, or of another type.
    pub fn storage(&self, numbers: FlatTensor) -> Result<CudaStorage> {
        let (element, len) = (numbers.cuda_numbers()?.element_type(), numbers.len());
        let memory = numbers.into_cuda_memory().ok_or(Error::OnDevice)?;
        Ok(self.storage_of(memory, element, len))
    }
}
