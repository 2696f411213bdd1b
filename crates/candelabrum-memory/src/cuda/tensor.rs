//! The elements of candle's tensors on a GPU.

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaStorageSlice;
use candle_core::{CpuStorage, CudaStorage, InplaceOp1, Layout, Storage, Tensor};

use super::region::Region;
use crate::{ElementType, Error, Result};

/// The type of a storage of f32 numbers or of 16-bit floats.
pub(super) fn number_type(storage: &CudaStorage) -> ElementType {
    match storage.slice {
        CudaStorageSlice::F16(_) => ElementType::F16,
        CudaStorageSlice::BF16(_) => ElementType::Bf16,
        _ => ElementType::F32,
    }
}

/// Calls `f` with the elements of a contiguous tensor of this type and length.
pub(super) fn with_tensor<R>(
    tensor: &Tensor,
    element: ElementType,
    len: usize,
    f: impl FnOnce(Region<'_>) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { return Err(not_on_gpu(tensor)) };
    f(elements(storage, layout, element, len)?)
}

/// Replaces the elements of a contiguous tensor of this type and length by `from`.
pub(super) fn fill_tensor(
    tensor: &Tensor,
    element: ElementType,
    len: usize,
    from: Region<'_>,
) -> Result<()> {
    if !tensor.device().is_cuda() {
        return Err(not_on_gpu(tensor));
    }
    tensor.inplace_op1(&FillBytes { from, element, len }).map_err(Error::from)
}

/// Writes bytes into a tensor's storage.
struct FillBytes<'a> {
    from: Region<'a>,
    element: ElementType,
    len: usize,
}

impl InplaceOp1 for FillBytes<'_> {
    fn name(&self) -> &'static str {
        "copy_to_tensor"
    }

    fn cpu_fwd(&self, _storage: &mut CpuStorage, _layout: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a buffer on a GPU is not copied to a tensor on the CPU in place")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let to = elements(storage, layout, self.element, self.len)?;
        Ok(to.copy_from(self.from)?)
    }
}

/// The `len` elements of a contiguous tensor, which have the type `element`.
pub(super) fn elements<'a>(
    storage: &'a CudaStorage,
    layout: &Layout,
    element: ElementType,
    len: usize,
) -> Result<Region<'a>> {
    let all = match (element, &storage.slice) {
        (ElementType::F32, CudaStorageSlice::F32(slice)) => Region::new(slice),
        (ElementType::F64, CudaStorageSlice::F64(slice)) => Region::new(slice),
        (ElementType::F16, CudaStorageSlice::F16(slice)) => Region::new(slice),
        (ElementType::Bf16, CudaStorageSlice::BF16(slice)) => Region::new(slice),
        (ElementType::I32, CudaStorageSlice::I32(slice)) => Region::new(slice),
        (ElementType::I64, CudaStorageSlice::I64(slice)) => Region::new(slice),
        (ElementType::U8, CudaStorageSlice::U8(slice)) => Region::new(slice),
        _ => {
            let what = format!("using a tensor of {:?} as {element}", storage.dtype());
            return Err(Error::Unsupported { what });
        }
    };
    let elements = contiguous(all, element.size(), layout)?;
    let got = elements.bytes() / element.size();
    if got != len {
        return Err(Error::Length { op: "the copy of a tensor", expected: len, got });
    }
    Ok(elements)
}

/// The elements of a contiguous tensor, `element_size` bytes each, in the memory of its storage.
pub(super) fn contiguous<'a>(
    all: Region<'a>,
    element_size: usize,
    layout: &Layout,
) -> Result<Region<'a>> {
    let what = "using a tensor that is not contiguous (call `contiguous()` first)".to_owned();
    let (start, end) = layout.contiguous_offsets().ok_or(Error::Unsupported { what })?;
    Ok(all.range(start * element_size..end * element_size))
}

fn not_on_gpu(tensor: &Tensor) -> Error {
    let what = format!("copying between a buffer on a GPU and a tensor on {:?}", tensor.device());
    Error::Unsupported { what }
}
