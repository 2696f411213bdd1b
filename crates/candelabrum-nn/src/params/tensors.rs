//! The numbers of candle's tensors as spans.

use std::cell::{Cell, RefCell};

use candelabrum_memory::{ElementType, FlatTensor, Span, SpanMut, cuda};
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Result, Storage, Tensor, Var, bail,
};
use half::{bf16, f16};

/// The bytes of a tensor's elements.
pub(super) fn tensor_bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// Calls `f` with the elements of an f32 tensor, in row-major order, or with those of an f16 or bf16
/// tensor converted to f32.
///
/// # Errors
/// A tensor of another type, or on a device that this crate does not support. The error of `f`.
pub fn with_span<R, E>(
    tensor: &Tensor,
    f: impl FnOnce(Span<'_>) -> std::result::Result<R, E>,
) -> std::result::Result<R, E>
where
    E: From<candle_core::Error>,
{
    let tensor = match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.detach().to_dtype(DType::F32)?.contiguous()?,
        _ => tensor.contiguous()?,
    };
    let (storage, layout) = tensor.storage_and_layout();
    let values = match &*storage {
        Storage::Cpu(storage) => {
            let start = layout.start_offset();
            Span::Host(&storage.as_slice::<f32>()?[start..start + tensor.elem_count()])
        }
        Storage::Cuda(storage) => {
            Span::Cuda(cuda::span(storage, layout).map_err(candle_core::Error::from)?)
        }
        Storage::Metal(_) => return Err(on_metal().into()),
    };
    f(values)
}

fn on_metal() -> candle_core::Error {
    candle_core::Error::Msg("a tensor on Metal is not supported".to_owned())
}

/// The values of a variable, in row-major order.
#[derive(Debug)]
pub(crate) enum VariableValues<'a> {
    F32(SpanMut<'a>),
    /// On the host.
    F64(&'a mut [f64]),
}

/// Calls `f` with the values of a variable in place, without a copy and outside of the graph.
///
/// # Errors
/// A variable that is not contiguous, or neither f32 nor f64 (f64 on the CPU only). The error of `f`.
pub(crate) fn with_variable<R>(
    var: &Var,
    f: impl FnOnce(VariableValues<'_>) -> Result<R>,
) -> Result<R> {
    let op = InPlace(RefCell::new((Some(f), None)));
    var.inplace_op1(&op)?;
    match op.0.into_inner().1 {
        Some(result) => Ok(result),
        None => bail!("candle did not run the change of a variable"),
    }
}

/// A change of values as an operation of candle. It contains the function until the function has
/// run, then its result.
struct InPlace<F, R>(RefCell<(Option<F>, Option<R>)>);

impl<R, F: FnOnce(VariableValues<'_>) -> Result<R>> InplaceOp1 for InPlace<F, R> {
    fn name(&self) -> &'static str {
        "change-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("values must be contiguous to be changed in place")
        };
        let values = match storage {
            CpuStorage::F32(values) => VariableValues::F32(SpanMut::Host(&mut values[start..end])),
            CpuStorage::F64(values) => VariableValues::F64(&mut values[start..end]),
            other => {
                bail!("values must be f32 or f64 to be changed in place, not {:?}", other.dtype())
            }
        };
        self.run(values)
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        self.run(VariableValues::F32(SpanMut::Cuda(cuda::span_mut(storage, layout)?)))
    }
}

impl<R, F: FnOnce(VariableValues<'_>) -> Result<R>> InPlace<F, R> {
    fn run(&self, values: VariableValues<'_>) -> Result<()> {
        let mut state = self.0.borrow_mut();
        let Some(f) = state.0.take() else { bail!("candle ran the change of a variable twice") };
        state.1 = Some(f(values)?);
        Ok(())
    }
}

/// The values of a variable, put together from runs of them.
pub(super) enum WholeValues {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl WholeValues {
    /// No values yet of `var`, in its type. For a variable on a GPU they are f32, and are rounded there.
    pub(super) fn from_var(var: &Var) -> Self {
        let len = var.elem_count();
        match var.dtype() {
            DType::F16 if var.device().is_cpu() => Self::F16(Vec::with_capacity(len)),
            DType::BF16 if var.device().is_cpu() => Self::Bf16(Vec::with_capacity(len)),
            _ => Self::F32(Vec::with_capacity(len)),
        }
    }

    /// Appends a run of values, rounded to nearest.
    pub(super) fn push(&mut self, values: &[f32]) {
        match self {
            Self::F32(all) => all.extend_from_slice(values),
            Self::F16(all) => all.extend(values.iter().map(|&value| f16::from_f32(value))),
            Self::Bf16(all) => all.extend(values.iter().map(|&value| bf16::from_f32(value))),
        }
    }

    /// Makes them the values of `var`, whose memory may be empty.
    pub(super) fn put(self, var: &Var) -> Result<()> {
        let len = match &self {
            Self::F32(all) => all.len(),
            Self::F16(all) => all.len(),
            Self::Bf16(all) => all.len(),
        };
        if len != var.elem_count() {
            bail!("{len} values of a variable of {} have come", var.elem_count());
        }
        let values = match self {
            Self::F32(all) if !var.device().is_cpu() => {
                let values = Tensor::from_vec(all, var.shape(), var.device())?;
                return var
                    .inplace_op1(&Replaced(Cell::new(None), Some(values.to_dtype(var.dtype())?)));
            }
            Self::F32(all) => CpuStorage::F32(all),
            Self::F16(all) => CpuStorage::F16(all),
            Self::Bf16(all) => CpuStorage::BF16(all),
        };
        var.inplace_op1(&Replaced(Cell::new(Some(values)), None))
    }
}

/// Gives the memory of a variable back. Its values are lost, and any use of one of its tensors is an error.
pub(super) fn clear_variable(var: &Var) -> Result<()> {
    let device = match var.device().is_cpu() {
        true => None,
        // An allocation of nothing may fail on a GPU.
        false => Some(Tensor::zeros(1, DType::U8, var.device())?),
    };
    var.inplace_op1(&Replaced(Cell::new(Some(no_values())), device))
}

/// Memory without values. candle has no operation on this type: one on numbers of the variable's type would read memory
/// that is not there.
pub(super) fn no_values() -> CpuStorage {
    CpuStorage::F8E8M0(Vec::new())
}

/// Puts `memory` in the place of that of a variable on the CPU, and the variable's into `memory`.
pub(super) fn exchange_memory(var: &Var, memory: &mut CpuStorage) -> Result<()> {
    let op = Replaced(Cell::new(Some(std::mem::replace(memory, no_values()))), None);
    var.inplace_op1(&op)?;
    *memory = op.0.take().unwrap_or_else(no_values);
    Ok(())
}

/// Puts other memory in the place of a variable's: this on the CPU, which gets the variable's, a copy of the tensor's on a
/// GPU.
struct Replaced(Cell<Option<CpuStorage>>, Option<Tensor>);

impl InplaceOp1 for Replaced {
    fn name(&self) -> &'static str {
        "replace"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        if let Some(values) = self.0.take() {
            self.0.set(Some(std::mem::replace(storage, values)));
        }
        Ok(())
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        if let Some(values) = &self.1 {
            let (values, layout) = values.storage_and_layout();
            let Storage::Cuda(values) = &*values else { bail!("the values are not on the GPU") };
            *storage = values.try_clone(layout)?;
        }
        Ok(())
    }
}

/// A copy of an f32 tensor's elements, in host memory.
///
/// # Errors
/// Those of [`with_span`].
pub fn to_flat(tensor: &Tensor) -> Result<FlatTensor> {
    let mut flat = FlatTensor::zeros(ElementType::F32, tensor.elem_count());
    with_span(tensor, |values| {
        values.copy_to_slice(flat.as_mut_slice()?)?;
        Ok(flat)
    })
}
