//! The elements of tensors, on the CPU and on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{self, CudaNumbers};
use candle_core::{Device, Result, Storage, Tensor, bail};

use crate::autograd::view::StridedView;
use crate::kernels::float::{Float, cpu_slice};

/// Calls `f` with the elements of each tensor, contiguous and on the CPU. `None` becomes an empty
/// slice.
pub(super) fn with_inputs<T: Float, R>(
    tensors: &[Option<&Tensor>],
    op: &'static str,
    f: impl FnOnce(&[&[T]]) -> Result<R>,
) -> Result<R> {
    let guards: Vec<_> =
        tensors.iter().map(|tensor| tensor.map(Tensor::storage_and_layout)).collect();
    let mut slices: Vec<&[T]> = Vec::with_capacity(guards.len());
    for guard in &guards {
        slices.push(match guard {
            None => &[],
            Some((storage, layout)) => match &**storage {
                Storage::Cpu(storage) => cpu_slice(storage, layout, op)?,
                _ => bail!("{op}: one input is on the CPU, another is not"),
            },
        });
    }
    f(&slices)
}

/// The elements of a tensor on the CPU, contiguous: the tensor itself, or a copy outside of the graph.
/// candle's own copy of a transposed tensor goes number by number.
pub(super) fn contiguous<T: Float>(tensor: &Tensor) -> Result<Tensor> {
    let view = StridedView::of_layout(tensor.layout()).filter(|_| !tensor.is_contiguous());
    let (storage, _) = tensor.storage_and_layout();
    let (Some(view), Storage::Cpu(storage)) = (view, &*storage) else { return tensor.contiguous() };
    let mut values = vec![T::default(); view.len()];
    view.gather(T::cpu_storage_as_slice(storage)?, &mut values);
    Tensor::from_vec(values, tensor.shape(), &Device::Cpu)
}

/// A copy of a tensor's elements on a GPU, in their type.
pub(super) fn to_flat(tensor: &Tensor) -> Result<FlatTensor> {
    let tensor = tensor.contiguous()?;
    with_numbers(&[Some(&tensor)], |numbers| match numbers {
        [Some(numbers)] => Ok(numbers.to_flat()?),
        _ => bail!("a tensor without numbers, this is a bug"),
    })
}

/// Calls `f` with the elements of each tensor, which is contiguous and on a GPU.
pub(super) fn with_numbers<R>(
    tensors: &[Option<&Tensor>],
    f: impl FnOnce(&[Option<CudaNumbers<'_>>]) -> Result<R>,
) -> Result<R> {
    let guards: Vec<_> =
        tensors.iter().map(|tensor| tensor.map(Tensor::storage_and_layout)).collect();
    let mut numbers = Vec::with_capacity(guards.len());
    for guard in &guards {
        numbers.push(match guard {
            None => None,
            Some((storage, layout)) => match &**storage {
                Storage::Cuda(storage) => Some(cuda::numbers(storage, layout)?),
                _ => bail!("one input is on a GPU, another is not"),
            },
        });
    }
    f(&numbers)
}
