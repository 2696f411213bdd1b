//! The master of a half-precision parameter: its values in f32, which updates change.
//!
//! An update is often smaller than half a unit in the last place of a 16-bit value, and would be
//! lost. So updates change the master, and the parameter is the master rounded to nearest (Micikevicius
//! et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candelabrum_memory::{ElementType, FlatTensor, Location, Span, SpanMut, cuda};
use candle_core::{DType, Error, Result, Storage, Tensor, Var, bail};

use super::tensors::with_span;

/// The master of a parameter, made of the parameter's values at the first use. Clones of a parameter
/// share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Master(Arc<Mutex<Option<FlatTensor>>>);

/// Whether this type has 16 bits. A parameter of a type of 16 bits has a master, and the CPU computes in f32 and rounds.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl Master {
    /// Runs `update` on the master of `var`, and sets `var` to the master.
    pub(crate) fn update<R>(&self, var: &Var, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let mut master = self.lock();
        let master = made(&mut master, var)?;
        let result = update(master.span_mut()?);
        round(master, var)?;
        Ok(result)
    }

    /// Calls `f` with the master of `var`.
    pub(crate) fn read<R>(&self, var: &Var, f: impl FnOnce(Span<'_>) -> Result<R>) -> Result<R> {
        f(made(&mut self.lock(), var)?.span()?)
    }

    /// Sets the master to `values`, of which the parameter has the rounded ones.
    pub(crate) fn set(&self, values: FlatTensor) {
        *self.lock() = Some(values);
    }

    /// Forgets the master, because the parameter has been set to other values.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<FlatTensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The master of `var`, made now if it was not yet.
pub(crate) fn made<'a>(
    master: &'a mut Option<FlatTensor>,
    var: &Var,
) -> Result<&'a mut FlatTensor> {
    match master {
        Some(master) => Ok(master),
        none => {
            let location = Location::from_device(var.device());
            let mut values = FlatTensor::zeros_on(&location, ElementType::F32, var.elem_count())?;
            with_span(var, |numbers| values.span_mut()?.copy_from(numbers).map_err(Error::from))?;
            Ok(none.insert(values))
        }
    }
}

/// Sets `var` to its master.
pub(crate) fn round(master: &FlatTensor, var: &Var) -> Result<()> {
    let values = match master.span()? {
        Span::Host(values) => Tensor::from_slice(values, var.shape(), var.device())?,
        Span::Cuda(values) => {
            let (storage, layout) = var.storage_and_layout();
            let Storage::Cuda(storage) = &*storage else { bail!("a master on another device") };
            return Ok(cuda::round_all(&[(values, storage, layout)])?);
        }
    };
    var.set(&values.to_dtype(var.dtype())?)
}
