//! Labels and indices of candle's tensors on a GPU. They stay there: a kernel reads them.

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaStorageSlice;
use candle_core::{CudaStorage, Layout};

use super::launch::KernelArg;
use super::region::Region;
use super::tensor::contiguous;
use crate::{Error, Result};

/// A run of whole numbers of type u8, u32 or i64 on a GPU, read-only.
#[derive(Clone, Copy, Debug)]
pub struct CudaIndices<'a> {
    region: Region<'a>,
    element_size: usize,
}

impl<'a> CudaIndices<'a> {
    /// The number of indices.
    pub fn len(&self) -> usize {
        self.region.bytes() / self.element_size
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of one index, by which a kernel knows the type: 1 for u8, 4 for u32, 8 for i64.
    pub fn element_size(&self) -> usize {
        self.element_size
    }

    pub(super) fn region(self) -> Region<'a> {
        self.region
    }
}

/// The elements of a contiguous tensor of type u8, u32 or i64.
///
/// # Errors
/// A tensor of another type, or that is not contiguous.
pub fn indices<'a>(storage: &'a CudaStorage, layout: &Layout) -> Result<CudaIndices<'a>> {
    let (all, element_size) = match &storage.slice {
        CudaStorageSlice::U8(slice) => (Region::new(slice), 1),
        CudaStorageSlice::U32(slice) => (Region::new(slice), 4),
        CudaStorageSlice::I64(slice) => (Region::new(slice), 8),
        _ => {
            let what = format!("using a tensor of {:?} as indices", storage.dtype());
            return Err(Error::Unsupported { what });
        }
    };
    Ok(CudaIndices { region: contiguous(all, element_size, layout)?, element_size })
}

impl<'a> From<CudaIndices<'a>> for KernelArg<'a> {
    fn from(indices: CudaIndices<'a>) -> Self {
        Self::Memory(indices.region())
    }
}
