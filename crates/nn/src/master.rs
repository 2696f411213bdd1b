//! The master of a half-precision parameter: its values in f32, which updates change.
//!
//! An update is often smaller than half a unit in the last place of a 16-bit value, and would be
//! lost. So updates change the master, and the parameter is the master rounded to nearest (Micikevicius
//! et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740).

use std::sync::{Arc, Mutex, PoisonError};

use candelabrum_memory::{ElementType, Flat, Location, Span, SpanMut};
use candle_core::{DType, Error, Result, Var};

use crate::tensors::{of_flat, with_span};

/// The master of a parameter, made of the parameter's values at the first use. Clones of a parameter
/// share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Master(Arc<Mutex<Option<Flat>>>);

/// Whether parameters of this type have masters, and operations in it no kernels of their own.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl Master {
    /// Runs `update` on the master of `var`, and sets `var` to the master.
    pub(crate) fn update<R>(&self, var: &Var, update: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        self.with(var, |master| {
            let result = update(master.span_mut()?);
            var.set(&of_flat(master, var)?.to_dtype(var.dtype())?)?;
            Ok(result)
        })
    }

    /// Calls `f` with the master of `var`.
    pub(crate) fn read<R>(&self, var: &Var, f: impl FnOnce(Span<'_>) -> Result<R>) -> Result<R> {
        self.with(var, |master| f(master.span()?))
    }

    /// Forgets the master, because the parameter has been set to other values.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn with<R>(&self, var: &Var, f: impl FnOnce(&mut Flat) -> Result<R>) -> Result<R> {
        let mut master = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let master = match &mut *master {
            Some(master) => master,
            none => {
                let location = Location::of(var.device());
                let mut values = Flat::zeros_on(&location, ElementType::F32, var.elem_count())?;
                with_span(var, |numbers| {
                    values.span_mut()?.copy_from(numbers).map_err(Error::from)
                })?;
                none.insert(values)
            }
        };
        f(master)
    }
}
